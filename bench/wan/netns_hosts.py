"""Sets a ring's hosts up: namespaces, devices, addresses, routes.

Guarantees: everything made here is held by this process's descriptors and goes with it; what fails
half way is taken back; names and addresses that are in use make it try the next ring number.
Must never know: delays, except to hand them to the kernel's own emulator.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.wan import netns_kernel, netns_netem
from bench.wan.netns_topology import COORDINATOR_IDX, NUM_NETWORKS, Topology, ring_topology
from bench.wan.profile import LinkShape
from engine.errors import ConfigError

Packets = Literal["carrier", "netem"]
SYSCTL = Path("/proc/sys/net/ipv4")


@dataclass(slots=True)
class Hosts:
    """A ring's hosts while they stand.

    Attributes:
        packets: who carries them: this process, or the kernel's `tc netem`.
        namespace_fds: by host; the coordinator's is the one this process started in.
        tuns: descriptor by (cable, host); empty with netem.
    """

    topology: Topology
    packets: Packets
    namespace_fds: list[int] = field(default_factory=list)
    tuns: dict[tuple[int, int], int] = field(default_factory=dict)

    def close(self) -> None:
        """Let go of everything; the kernel takes it down."""
        for descriptor in (*self.tuns.values(), *self.namespace_fds):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.tuns.clear()
        self.namespace_fds.clear()


def stand_up(shapes: list[LinkShape], token: str) -> Hosts:
    """Make the hosts of a ring; the calling thread ends where it began.

    Args:
        shapes: the N + 1 links in ring order.
        token: names the run.

    Raises:
        ConfigError: something is missing or refused; the message says what to do.
    """
    home_fd = os.open(netns_kernel.OWN_NETWORK, os.O_RDONLY)
    try:
        packets: Packets = "carrier"
        if netns_netem.takes(ring_topology(shapes, ring_idx=0)):
            netns_kernel.unshare_network()
            packets = "netem" if netns_netem.is_in_kernel() else "carrier"
            netns_kernel.set_network(home_fd)
        for ring_idx in range(NUM_NETWORKS):
            hosts = Hosts(ring_topology(shapes, ring_idx), packets)
            try:
                build(hosts, token)
            except FileExistsError:
                hosts.close()
                netns_kernel.set_network(home_fd)
            except BaseException:
                hosts.close()
                netns_kernel.set_network(home_fd)
                raise
            else:
                return hosts
    finally:
        os.close(home_fd)
    raise ConfigError(
        f"all {NUM_NETWORKS} numbers for rings in namespaces are taken; "
        "`python -m bench wan clean` removes those of dead runs"
    )


def build(hosts: Hosts, token: str) -> None:
    """Make namespaces, devices and routes; the caller closes `hosts` if this fails.

    Raises:
        FileExistsError: the ring's number is taken.
        ConfigError: something is missing or refused.
    """
    topology = hosts.topology
    hosts.namespace_fds.append(os.open(netns_kernel.OWN_NETWORK, os.O_RDONLY))
    for _ in range(1, topology.num_hosts):
        netns_kernel.unshare_network()
        hosts.namespace_fds.append(os.open(netns_kernel.OWN_NETWORK, os.O_RDONLY))
        _set_switches(topology)
    if hosts.packets == "netem":
        _lay_veths(hosts)
    for host_idx, namespace_fd in enumerate(hosts.namespace_fds):
        netns_kernel.set_network(namespace_fd)
        if hosts.packets == "carrier":
            for cable_idx in topology.cables_of(host_idx):
                device_fd = netns_kernel.open_tun(topology.device(cable_idx))
                hosts.tuns[cable_idx, host_idx] = device_fd
        netns_kernel.run_batch("ip", topology.host_commands(host_idx, token))
        if hosts.packets == "netem":
            netns_kernel.run_batch("tc", netns_netem.shape_commands(topology, host_idx))
    netns_kernel.set_network(hosts.namespace_fds[COORDINATOR_IDX])


def _set_switches(topology: Topology) -> None:
    # What one connection learned of a path must not make the next one start faster.
    switches = {"tcp_no_metrics_save": "1"}
    if topology.forwards:
        switches["ip_forward"] = "1"
    for name, value in switches.items():
        try:
            (SYSCTL / name).write_text(value)
        except OSError as error:
            raise ConfigError(
                f"{SYSCTL / name} cannot be set in a new network namespace: {error.strerror}; in a "
                "container /proc/sys must be writable"
            ) from error


def _lay_veths(hosts: Hosts) -> None:
    for cable_idx, cable in enumerate(hosts.topology.cables):
        netns_kernel.set_network(hosts.namespace_fds[cable.near_idx])
        far = f"/proc/{os.getpid()}/fd/{hosts.namespace_fds[cable.far_idx]}"
        line = netns_netem.veth_command(hosts.topology, cable_idx, far)
        netns_kernel.run_batch("ip", [line])
