"""The kernel's own emulator in place of the carrier: which links it takes, the commands for it.

Guarantees: only links on which nothing is drawn at random go to `tc netem`: most kernels cannot
seed its draws, and its jitter reorders. Delay, rate and queue are those of the same profile file.
Must never know: processes, namespaces' names.
"""

from __future__ import annotations

import subprocess

from bench.wan.delay_line import NS_PER_S
from bench.wan.netns_topology import MTU_BYTES, Topology
from bench.wan.profile import LinkShape

NS_PER_US = 1000
UNLIMITED_PACKETS = 1_000_000  # netem's own default of 1000 would drop at 12 MB/s and 125 ms
PROBE_DEVICE = "lo"


def takes(topology: Topology) -> bool:
    """Whether netem can do every link as the profile means it."""
    shapes = [shape for cable in topology.cables for shape in (cable.forth, cable.back)]
    return not any(shape.jitter_ns or shape.loss_ppm or shape.reorder_ppm for shape in shapes)


def probe_command() -> list[str]:
    """Fails where the kernel has no netem; for a namespace that is thrown away afterwards."""
    return ["tc", "qdisc", "add", "dev", PROBE_DEVICE, "root", "netem", "delay", "1us"]


def is_in_kernel() -> bool:
    """Try it; the caller is in a namespace of its own.

    Without `tc` the answer is no.
    """
    try:
        return subprocess.run(probe_command(), capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def veth_command(topology: Topology, cable_idx: int, far_namespace: str) -> str:
    """Line for `ip -batch` at a cable's near end: both ends at once.

    One segment at a time, so that netem's rate and queue see packets as a wire would.

    Args:
        far_namespace: path of the far host's network namespace.
    """
    device = topology.device(cable_idx)
    return (
        f"link add name {device} gso_max_segs 1 type veth "
        f"peer name {device} netns {far_namespace} gso_max_segs 1"
    )


def shape_commands(topology: Topology, host_idx: int) -> list[str]:
    """Lines for `tc -batch` in a host's namespace: what leaves by each of its cables."""
    lines = []
    for cable_idx in topology.cables_of(host_idx):
        cable = topology.cables[cable_idx]
        shape = cable.forth if host_idx == cable.near_idx else cable.back
        if not shape.is_transparent:
            device = topology.device(cable_idx)
            lines.append(f"qdisc replace dev {device} root netem {netem_options(shape)}")
    return lines


def netem_options(shape: LinkShape) -> str:
    """The part of a tc line that says what a link does.

    netem's limit counts packets, those that travel included: the profile's queue is added to what
    the delay holds at the link's rate.
    """
    options = f"limit {_limit_packets(shape)}"
    if shape.one_way_ns:
        options += f" delay {_us(shape.one_way_ns)}us"
    if shape.rate_bytes_per_s:
        options += f" rate {shape.rate_bytes_per_s * 8}bit"
    return options


def _limit_packets(shape: LinkShape) -> int:
    if not shape.queue_bytes:
        return UNLIMITED_PACKETS
    travelling_bytes = shape.rate_bytes_per_s * shape.one_way_ns // NS_PER_S
    return -(-(shape.queue_bytes + travelling_bytes) // MTU_BYTES)


def _us(duration_ns: int) -> str:
    return f"{duration_ns / NS_PER_US:.3f}".rstrip("0").rstrip(".")
