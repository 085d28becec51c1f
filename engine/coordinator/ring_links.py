"""The coordinator's links to a ring, joined into one queue of events.

Guarantees: every message is delivered with the link it came on, so that a reply counts only from
the last stage and an acknowledgement only from the stage concerned; closing leaves no thread
behind that owns a socket. Must never know what a job is.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

from engine.errors import LinkClosedError
from engine.transport.connection import Received, WireUse
from engine.transport.credentials import Credentials
from engine.transport.introduce import call
from engine.transport.keep_warm import OFF, KeepWarm
from engine.transport.link import Link
from engine.transport.message import (
    AnyMessage,
    Challenge,
    EvidenceReport,
    JobErrorReport,
    Levers,
    Noop,
    Probe,
    ProbeAck,
    ProbeOrder,
    ProbeReport,
)
from engine.transport.peer_log import PeerLog
from engine.transport.probe import LinkProbe, ProbePlan, Prober
from engine.transport.reader import read_in_background
from engine.trust.job_digests import JobDigests

DIAL_TIMEOUT_S = 30.0
EVIDENCE_TIMEOUT_S = 120.0
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RingAddresses:
    """Whom the coordinator dials."""

    first_input: Address
    last_return: Address
    controls: tuple[Address, ...]  # by stage


@dataclass(frozen=True, slots=True)
class Event:
    """A message, where it came from and when it was read (monotonic ns)."""

    source: str  # "return", or "control"
    stage_idx: int
    received: Received
    read_ns: int

    @property
    def message(self) -> AnyMessage:
        return self.received.message


class RingLinks:
    """One input link, one return link, a control link to every stage."""

    def __init__(self, addresses: RingAddresses, credentials: Credentials) -> None:
        self.num_stages = len(addresses.controls)
        self._credentials = credentials
        self._log = PeerLog(credentials.node_id)
        self._events: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
        self._prober = Prober()
        self.digests = JobDigests()
        self._closing = False
        self._lock = threading.Lock()
        self._num_stray = 0
        self._controls: list[Link] = []
        last_idx = self.num_stages - 1
        try:
            for stage_idx, address in enumerate(addresses.controls):
                self._controls.append(self._open("control", stage_idx, address))
            self._return = self._open("return", last_idx, addresses.last_return)
            self._input = self._open("input", 0, addresses.first_input)
            self._warmth = KeepWarm(self._input)
            for link in (self._input, self._return):
                link.watch(self.digests.tap)
        except BaseException:
            self.close()
            raise

    def send(self, message: AnyMessage) -> int:
        """Send to the first stage; returns the frame's bytes."""
        return self._input.send(message)

    def open_job(self, job: int, levers: Levers) -> None:
        """What a job asks of links: noops to the first stage in silence, digests of its frames."""
        self.digests.begin(job, levers.attestation)
        self._warmth.every(levers.keepwarm_ms)

    def close_job(self) -> None:
        """Its last frame has been answered."""
        self._warmth.every(OFF)

    def take_wire_use(self) -> WireUse:
        """Time spent packing and sealing on the ring links, and noops sent, since the last call."""
        noops = WireUse(noops_sent=self._warmth.take_num_sent())
        return self._input.take_wire_use() + self._return.take_wire_use() + noops

    def next_event(self, deadline_ns: int | None) -> Event | None:
        """Wait for a message until the deadline (monotonic ns); None if none came.

        Raises:
            LinkClosedError: a link of the ring ended.
            RemoteProtocolError: a peer broke the protocol.
        """
        timeout_s = None
        if deadline_ns is not None:
            timeout_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, Exception):
            raise event
        return event

    def discard_events(self) -> None:
        """Throw away, and count, what is queued between jobs."""
        while self.next_event(0) is not None:
            self._count_stray()

    def take_num_stray(self) -> int:
        """How many messages nobody was entitled to send, or to send then, since the last call."""
        with self._lock:
            num_stray, self._num_stray = self._num_stray, 0
            return num_stray

    def measure(self, plan: ProbePlan) -> list[LinkProbe]:
        """Probe every link of the ring from its sending end, one after another.

        Returns:
            One result for each of the N + 1 links, ring order.

        Raises:
            LinkClosedError: a link is gone or silent.
        """
        probes = [self._prober.measure(self._input, plan)]
        order = ProbeOrder(count=plan.count, payload_bytes=plan.payload_bytes, idle_ms=plan.idle_ms)
        for stage_idx, control in enumerate(self._controls):
            control.send(order)
            deadline_ns = time.monotonic_ns() + int(plan.longest_s() * 1e9)
            message = self._report(stage_idx, ProbeReport, deadline_ns).message
            assert isinstance(message, ProbeReport)
            probes.append(
                LinkProbe(
                    rtt_ns=message.rtt_ns,
                    payload_bytes=plan.payload_bytes,
                    payload_rtt_ns=message.payload_rtt_ns,
                    idle_payload_rtt_ns=message.idle_payload_rtt_ns,
                )
            )
        return probes

    def challenge(self, challenge: Challenge) -> list[Received]:
        """Ask one stage after another for its evidence.

        Raises:
            LinkClosedError: a link is gone or silent.
        """
        reports = []
        for stage_idx, control in enumerate(self._controls):
            control.send(challenge)
            deadline_ns = time.monotonic_ns() + int(EVIDENCE_TIMEOUT_S * 1e9)
            reports.append(self._report(stage_idx, EvidenceReport, deadline_ns))
        return reports

    def _report(self, stage_idx: int, kind: type[AnyMessage], deadline_ns: int) -> Received:
        """Wait for the report of the stage that was asked; drop and count anything else.

        Raises:
            LinkClosedError: a stage reports a lost link, or the asked one says nothing in time.
        """
        while (event := self.next_event(deadline_ns)) is not None:
            message = event.message
            if isinstance(message, JobErrorReport):
                raise LinkClosedError(f"stage {message.stage_idx}: {message.detail}")
            if isinstance(message, kind) and event.stage_idx == stage_idx:
                return event.received
            self._count_stray()
        raise LinkClosedError(f"stage {stage_idx} sent no {kind.__name__} in time")

    def _count_stray(self) -> None:
        with self._lock:
            self._num_stray += 1

    def close(self) -> None:
        """Close every link."""
        self._closing = True
        if hasattr(self, "_warmth"):
            self._warmth.end()
        for name in ("_input", "_return"):
            link = getattr(self, name, None)
            if link is not None:
                link.close()
        for link in self._controls:
            link.close()

    def _open(self, role: str, stage_idx: int, address: Address) -> Link:
        link = call(address, self._credentials, role, f"stage-{stage_idx}", DIAL_TIMEOUT_S)

        def on_message(received: Received, read_ns: int) -> None:
            message = received.message
            if isinstance(message, Probe):
                link.send(ProbeAck(seq=message.seq))
            elif isinstance(message, ProbeAck):
                self._prober.on_ack(message.seq, read_ns)
            elif not isinstance(message, Noop):
                self._events.put(Event(role, stage_idx, received, read_ns))

        def on_stray(received: Received) -> None:
            self._count_stray()
            self._log.stray(link.peer, received.message)

        def on_end(reason: Exception) -> None:
            self._log.ended(reason)
            if not self._closing:
                self._events.put(reason)

        read_in_background(link, on_message, on_stray, on_end)
        return link
