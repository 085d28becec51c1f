"""The carrier: one process that holds a ring's namespaces and carries the packets between them.

Started by `bench.wan.netns` as `python -m bench.wan.netns_carrier TOKEN`. It reads one line of JSON
(`CarrierConfig`), writes one (`CarrierReady`) once the hosts stand, and when its standard input
closes writes a last one (`CarrierReport`) and ends. Guarantees: it ends with its parent, and hosts,
devices and routes end with it; packets are never altered.
Must never know: what packets carry, who sends them.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import msgspec

from bench.wan import netns_kernel
from bench.wan.netns_hosts import Hosts, Packets, stand_up
from bench.wan.netns_line import PacketLine
from bench.wan.netns_topology import MTU_BYTES
from bench.wan.profile import LinkShape
from engine.errors import LonghaulError

READ_BYTES = MTU_BYTES + 64  # never truncates: the device's MTU is the limit
BURST_PACKETS = 32  # read from one device before what is due is looked at again
PARENT_CHECK_S = 1.0  # the longest sleep; then look whether the parent still lives
LATE_NS = 1_000_000  # what is delivered later than this after its time is counted as late
IPV4 = 4  # IP version: the kernel's own IPv6 chatter on new devices is not carried


class CarrierConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the carrier reads: the N + 1 links in ring order, and as a relay whose end ends it."""

    seed: int
    parent_pid: int = 0
    shapes: tuple[LinkShape, ...]


class CarrierReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the carrier answers; lists are by host, the coordinator first.

    Attributes:
        namespaces: paths that last as long as the carrier.
        packets: "carrier", or "netem" where the kernel carries them itself.
        runs_first: the carrier has real-time priority; without it packets may wait on a busy
            machine, and the report's `num_late` counts those that did.
        error: empty, or why there is no ring.
    """

    addresses: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    packets: Packets = "carrier"
    runs_first: bool = False
    error: str = ""


class DirectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one direction's packets.

    Attributes:
        name: the link's, and ` (back)` for its reverse direction.
        num_late: delivered more than 1 ms after their time.
        max_late_ns: the latest after its time.
    """

    name: str
    num_packets: int
    num_bytes: int
    num_overflowed: int
    num_lost: int
    num_reordered: int
    num_late: int
    max_late_ns: int


class CarrierReport(msgspec.Struct, frozen=True, kw_only=True):
    """The carrier's last line; no directions where the kernel carried the packets."""

    directions: tuple[DirectionReport, ...] = ()


@dataclass(slots=True, eq=False)
class Direction:
    """One way through a cable: from one device to another."""

    name: str
    source_fd: int
    sink_fd: int
    line: PacketLine
    num_late: int = 0
    max_late_ns: int = 0

    def read(self) -> None:
        """Take what the kernel sends into this direction, at most a burst."""
        for _ in range(BURST_PACKETS):
            try:
                packet = os.read(self.source_fd, READ_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 == IPV4:
                self.line.push(time.monotonic_ns(), packet)

    def deliver(self) -> None:
        """Hand the far host what is due."""
        while taken := self.line.pop_due(now_ns := time.monotonic_ns()):
            due_ns, packet = taken
            os.write(self.sink_fd, packet)
            late_ns = now_ns - due_ns
            self.max_late_ns = max(self.max_late_ns, late_ns)
            self.num_late += late_ns > LATE_NS

    def report(self) -> DirectionReport:
        """What became of the packets so far."""
        counts = self.line.counts
        return DirectionReport(
            name=self.name,
            num_packets=counts.num_packets,
            num_bytes=counts.num_bytes,
            num_overflowed=counts.num_overflowed,
            num_lost=counts.num_lost,
            num_reordered=counts.num_reordered,
            num_late=self.num_late,
            max_late_ns=self.max_late_ns,
        )


def directions_of(hosts: Hosts, seed: int) -> list[Direction]:
    """Both ways through every cable; none where the kernel carries the packets."""
    directions = []
    for cable_idx, cable in enumerate(hosts.topology.cables):
        if hosts.packets == "netem":
            continue
        near_fd = hosts.tuns[cable_idx, cable.near_idx]
        far_fd = hosts.tuns[cable_idx, cable.far_idx]
        back_name = cable.back.name + (" (back)" if cable.back == cable.forth else "")
        for name, way, shape, source_fd, sink_fd in (
            (cable.forth.name, "forth", cable.forth, near_fd, far_fd),
            (back_name, "back", cable.back, far_fd, near_fd),
        ):
            line = PacketLine(shape, f"{seed}/{shape.name}/{way}")
            directions.append(Direction(name, source_fd, sink_fd, line))
    return directions


def carry(directions: list[Direction], control_fd: int, parent_pid: int) -> None:
    """Carry packets until `control_fd` reaches its end or the parent process is gone."""
    readers = {direction.source_fd: direction for direction in directions}
    watched = [control_fd, *readers]
    while os.getppid() == parent_pid:
        # select takes microseconds; epoll rounds up to a millisecond, and timerfd needs 3.13.
        readable, _, _ = select.select(watched, [], [], _sleep_s(directions))
        for direction in directions:
            direction.deliver()
        for descriptor in readable:
            if descriptor != control_fd:
                readers[descriptor].read()
            elif not os.read(control_fd, READ_BYTES):
                return


def _sleep_s(directions: list[Direction]) -> float:
    dues_ns = [each.line.head_due_ns for each in directions]
    due_ns = min((due_ns for due_ns in dues_ns if due_ns is not None), default=None)
    if due_ns is None:
        return PARENT_CHECK_S
    return min(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), PARENT_CHECK_S)


def serve_from_stdin(token: str) -> int:
    """Set the hosts up, carry until the parent is done, report; return the exit status."""
    # Ctrl-C goes to the whole group; the parent closes standard input when its ring is down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    control = sys.stdin.buffer
    try:
        config = msgspec.json.decode(control.readline(), type=CarrierConfig)
        hosts = stand_up(list(config.shapes), token)
    except (msgspec.DecodeError, LonghaulError) as error:
        _say(CarrierReady(error=str(error)))
        return 2
    try:
        directions = directions_of(hosts, config.seed)
        netns_kernel.sharpen_timers()
        # Stages compute on every core: a packet must not wait for one of them to be preempted.
        _say(_ready(hosts, netns_kernel.run_first()))
        gc.disable()  # nothing here makes cycles, and a collection would hold packets up
        carry(directions, control.fileno(), config.parent_pid or os.getppid())
        _say(CarrierReport(directions=tuple(each.report() for each in directions)))
    finally:
        hosts.close()
    return 0


def _ready(hosts: Hosts, runs_first: bool) -> CarrierReady:
    topology = hosts.topology
    return CarrierReady(
        addresses=tuple(topology.address(idx) for idx in range(topology.num_hosts)),
        namespaces=tuple(f"/proc/{os.getpid()}/fd/{each}" for each in hosts.namespace_fds),
        packets=hosts.packets,
        runs_first=runs_first,
    )


def _exit_on_signal(signal_number: int, frame: FrameType | None) -> NoReturn:
    # Raising is safe here: whatever was made goes with this process.
    raise SystemExit(0)


def _say(line: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    raise SystemExit(serve_from_stdin(sys.argv[1]))
