"""Long links on one machine, packet by packet: hosts as network namespaces, the kernel's own TCP.

Guarantees: each link of the ring has its profile's delay, jitter, rate, queue, loss and reordering,
both ways; control links cross the same cables; the stages' sockets are ordinary TCP, so slow start
after idle, loss recovery and congestion control show; whatever way this process ends, namespaces,
devices, routes and processes end with it.
Must never know: jobs, models, frames.

Needs root, or a user namespace (`python -m bench wan enter -- COMMAND …`), `/dev/net/tun` and
iproute2; says which of them is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager

from bench.wan.netns_carrier import CarrierReady, CarrierReport
from bench.wan.netns_kernel import in_network
from bench.wan.netns_process import CarrierProcess
from bench.wan.profile import LinkProfile
from engine.cluster.launch import StagePlace
from engine.coordinator.ring_links import Address
from engine.errors import ConfigError

SHIM_MODULE = "bench.wan.netns_stage"


class NamespacedLinks:
    """The engine's `LinkEmulator` for a profile: every stage on a host of its own.

    Args:
        seed: of jitter, loss and reordering.
    """

    def __init__(self, profile: LinkProfile, seed: int) -> None:
        self._profile = profile
        self._seed = seed
        self._carrier = CarrierProcess()
        self._ready = CarrierReady()

    @property
    def packets(self) -> str:
        """Who carries them: "carrier", or "netem" where the kernel does it itself."""
        return self._ready.packets

    @property
    def report(self) -> CarrierReport:
        """What became of the packets; complete once closed."""
        return self._carrier.report

    @property
    def carrier_pid(self) -> int | None:
        """The process id while the hosts stand."""
        return self._carrier.pid

    def places(self, num_stages: int) -> list[StagePlace]:
        """Set the hosts up; return where each stage runs.

        Raises:
            ConfigError: something is missing, or the profile asks for what packets do not do here;
                the message says what to do about it.
            LinkClosedError: the carrier ended or said nothing.
        """
        shapes = self._profile.links(num_stages)
        if any(shape.stall_ns for shape in shapes):
            raise ConfigError(
                f"profile {self._profile.name!r}: links that stall are emulated by a relay only; "
                "use --links relay, or a profile without stall_ms"
            )
        self._ready = self._carrier.start(shapes, self._seed)
        shim = (sys.executable, "-m", SHIM_MODULE, self._carrier.token)
        hosts = zip(self._ready.namespaces[1:], self._ready.addresses[1:], strict=True)
        return [StagePlace((*shim, namespace, host), host) for namespace, host in hosts]

    def open(self, targets: Sequence[Address]) -> list[Address]:
        """Nothing stands in front of a stage: its address is already far away.

        Raises:
            LinkClosedError: the carrier is gone.
        """
        self._carrier.check()
        return list(targets)

    def check(self) -> None:
        """Raise `LinkClosedError` if the carrier is gone: every link is then down."""
        self._carrier.check()

    def on_host(self, host_idx: int) -> AbstractContextManager[None]:
        """Let the calling thread open sockets on a host: 0 the coordinator, i + 1 stage i."""
        return in_network(self._ready.namespaces[host_idx])

    def address(self, host_idx: int) -> str:
        """Where a host is reached."""
        return self._ready.addresses[host_idx]

    def close(self) -> None:
        """Take everything down."""
        self._carrier.stop()
