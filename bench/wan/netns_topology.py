"""Hosts, cables and routes of a ring: what has to be set up in which namespace, as plain values.

Words: a *host* is where one process of the ring lives (the coordinator, each stage), with one
address; a *cable* joins two neighbours of the ring and has a device at either end. Guarantees: each
link of the ring is one direction of a cable, the other direction has the same numbers; hosts that
are no neighbours reach each other over the ring's own cables, the way round with the smaller delay.
Must never know: processes, file descriptors, whether a program or the kernel carries the packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from bench.wan.profile import LinkShape
from engine.errors import ConfigError

NAME_PREFIX = "lhaul"  # of every device: `lhaul<ring>c<cable>`, at most 15 characters
# RFC 2544 sets 198.18.0.0/15 aside for measurements: no real network lives there. Its lower half
# is left alone, since some proxies hand out their own made-up addresses from it.
NETWORK = "198.19"
NUM_NETWORKS = 256  # of 256 addresses each; one ring uses one
MAX_HOSTS = 200
MTU_BYTES = 1500
TX_QUEUE_PACKETS = 10_000  # between kernel and carrier: never the queue that fills first
COORDINATOR_IDX = 0  # as a host; stage i is host i + 1


@dataclass(frozen=True, slots=True)
class Cable:
    """Two hosts and what happens between them.

    Attributes:
        near_idx, far_idx: hosts; frames of the ring go from near to far.
        forth: shape from near to far.
        back: shape from far to near.
    """

    near_idx: int
    far_idx: int
    forth: LinkShape
    back: LinkShape

    def other_end(self, host_idx: int) -> int:
        """The host at the end where this one is not."""
        return self.far_idx if host_idx == self.near_idx else self.near_idx


@dataclass(frozen=True, slots=True)
class Topology:
    """A ring of hosts.

    Args:
        shapes: the N + 1 links in ring order.
        ring_idx: which of the machine's emulated rings this is; makes names and addresses unique.
    """

    cables: tuple[Cable, ...]
    num_hosts: int
    ring_idx: int

    def address(self, host_idx: int) -> str:
        """The one IPv4 address of a host."""
        return f"{NETWORK}.{self.ring_idx}.{host_idx + 1}"

    def device(self, cable_idx: int) -> str:
        """Name of both ends of a cable; they are in different namespaces."""
        return f"{NAME_PREFIX}{self.ring_idx}c{cable_idx}"

    def cables_of(self, host_idx: int) -> list[int]:
        """Cables that end at a host."""
        return [
            cable_idx
            for cable_idx, cable in enumerate(self.cables)
            if host_idx in (cable.near_idx, cable.far_idx)
        ]

    def first_cable(self, source_idx: int, sink_idx: int) -> int:
        """The cable on which packets leave for another host.

        Neighbours have their own; others take the way round with less delay, then with fewer
        cables (so that hosts on the way agree, even over cables without delay), the same both ways
        (since a strict `rp_filter` drops what comes in where nothing would go out).
        """
        with_ring = [(source_idx + step) % self.num_hosts for step in range(self.num_hosts)]
        against = [(source_idx - step) % self.num_hosts for step in range(self.num_hosts)]
        ways = []
        for hosts in (with_ring, against):
            path = hosts[: hosts.index(sink_idx) + 1]
            ways.append([self._cable_between(here, there) for here, there in pairwise(path)])
        if len(direct := min(ways, key=len)) == 1:
            return direct[0]
        return min(ways, key=lambda way: (self._delay_ns(way), len(way), min(way)))[0]

    def congestion_control(self, source_idx: int, sink_idx: int) -> str:
        """Of TCP from one host to another; "" is the kernel's default."""
        return self.cables[self.first_cable(source_idx, sink_idx)].forth.congestion_control

    def host_commands(self, host_idx: int, token: str) -> list[str]:
        """Lines for `ip -batch` in a host's namespace; its devices are there already.

        Args:
            token: names the run on each device, so that a later one can tell whose it is.

        The congestion control goes with the route, so it reaches every socket of the pair at both
        ends, accepted ones too, and a program that asks for another one still gets it.
        """
        lines = [] if host_idx == COORDINATOR_IDX else ["link set dev lo up"]
        for cable_idx in self.cables_of(host_idx):
            device = self.device(cable_idx)
            lines += [
                f"link set dev {device} mtu {MTU_BYTES} txqueuelen {TX_QUEUE_PACKETS} "
                f"alias {token} up",
                f"address add {self.address(host_idx)}/32 dev {device}",
            ]
        for other_idx in range(self.num_hosts):
            if other_idx == host_idx:
                continue
            cable_idx = self.first_cable(host_idx, other_idx)
            next_idx = self.cables[cable_idx].other_end(host_idx)
            via = "" if next_idx == other_idx else f"via {self.address(next_idx)} onlink "
            line = (
                f"route add {self.address(other_idx)}/32 {via}"
                f"dev {self.device(cable_idx)} src {self.address(host_idx)}"
            )
            control = self.congestion_control(host_idx, other_idx)
            lines.append(f"{line} congctl {control}" if control else line)
        return lines

    @property
    def forwards(self) -> bool:
        """True when some hosts reach others only through a third one."""
        return self.num_hosts > 3

    def _delay_ns(self, way: list[int]) -> int:
        return sum(self.cables[cable_idx].forth.one_way_ns for cable_idx in way)

    def _cable_between(self, host_idx: int, other_idx: int) -> int:
        return next(idx for idx in self.cables_of(host_idx) if idx in self.cables_of(other_idx))


def ring_topology(shapes: list[LinkShape], ring_idx: int) -> Topology:
    """Lay out a ring.

    With one stage there are two links between the same two hosts: one cable has both.

    Args:
        shapes: the N + 1 links in ring order.
        ring_idx: which of the machine's emulated rings this is; makes names and addresses unique.

    Raises:
        ConfigError: more stages than a network has addresses, or no such network.
    """
    num_hosts = len(shapes)
    if not 2 <= num_hosts <= MAX_HOSTS:
        raise ConfigError(f"{num_hosts - 1} stages in namespaces; allowed: 1 to {MAX_HOSTS - 1}")
    if not 0 <= ring_idx < NUM_NETWORKS:
        raise ConfigError(f"ring {ring_idx} in namespaces; allowed: 0 to {NUM_NETWORKS - 1}")
    if num_hosts == 2:
        cables: tuple[Cable, ...] = (Cable(near_idx=0, far_idx=1, forth=shapes[0], back=shapes[1]),)
    else:
        cables = tuple(
            Cable(idx, (idx + 1) % num_hosts, forth=shape, back=shape)
            for idx, shape in enumerate(shapes)
        )
    return Topology(cables, num_hosts, ring_idx)
