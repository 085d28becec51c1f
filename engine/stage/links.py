"""A stage's links: who may call it, whom it calls, and what comes in on each.

Guarantees: one link per role, a newer one replaces an older one; what arrives on a link that may
not send it, or for a job that was not opened on that link, is dropped, counted and logged at a
limited rate; a lost peer is reported and the next one awaited. Must never know what a job computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.errors import ConfigError, LinkClosedError
from engine.stage.config import Successor
from engine.transport.connection import Received, WireUse
from engine.transport.credentials import Credentials
from engine.transport.introduce import answer_callers, call
from engine.transport.keep_warm import OFF, KeepWarm
from engine.transport.link import Link, Listener
from engine.transport.message import (
    Challenge,
    Noop,
    Probe,
    ProbeAck,
    ProbeOrder,
    ProbeReport,
    Reset,
)
from engine.transport.peer_log import PeerLog
from engine.transport.probe import ProbePlan, Prober
from engine.transport.reader import read_in_background
from engine.trust.job_digests import JobDigests

DIAL_TIMEOUT_S = 30.0


class StageLinks:
    """Links by role: input, control, return (last stage only) and onward (the others).

    Args:
        credentials: who this stage is and who may call it.
        successor: whom it sends to.
        digests: sees the frames of attested jobs as they cross the ring's links.
        on_frame: gets job messages of the input link and when they were read (monotonic ns).
        on_lost: gets the reason when the link onward is gone.
    """

    def __init__(
        self,
        credentials: Credentials,
        successor: Successor,
        listener: Listener,
        digests: JobDigests,
        on_frame: Callable[[Received, int], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._credentials = credentials
        self._successor = successor
        self._listener = listener
        self._digests = digests
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._log = PeerLog(credentials.node_id)
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()
        self._prober = Prober()
        self._num_stray = 0
        self.onward_role = "return" if successor.address is None else "onward"
        self._warmth: KeepWarm | None = None  # of the link onward
        self._keepwarm_ms = OFF

    def start(self) -> None:
        """Listen for callers; dial the next stage, if there is one."""
        threading.Thread(target=self._accept_all, name="accept", daemon=True).start()
        self.dial_onward()

    def dial_onward(self) -> None:
        """Open the link onward, unless it is there or the coordinator has to open it.

        Raises:
            LinkClosedError: the next stage cannot be reached or there is no agreement with it.
        """
        with self._lock:
            present = "onward" in self._links
        if self._successor.address is None or present:
            return
        link = call(
            self._successor.address,
            self._credentials,
            "input",
            self._successor.node_id,
            DIAL_TIMEOUT_S,
        )
        self._adopt("onward", link)

    def get(self, role: str) -> Link:
        """The link in a role.

        Raises:
            LinkClosedError: there is none now.
        """
        with self._lock:
            link = self._links.get(role)
        if link is None:
            raise LinkClosedError(f"{self._credentials.node_id} has no {role} link now")
        return link

    def keep_warm(self, interval_ms: int) -> None:
        """Post noops on the link onward after so much silence; 0 stops."""
        with self._lock:
            self._keepwarm_ms = interval_ms
            warmth = self._warmth
        if warmth is not None:
            warmth.every(interval_ms)

    def take_wire_use(self) -> WireUse:
        """Time spent packing and sealing on the ring's links, those of now, and noops sent on,
        since the last call."""
        with self._lock:
            ring_links = [self._links.get(role) for role in ("input", self.onward_role)]
            warmth = self._warmth
        noops = WireUse(noops_sent=warmth.take_num_sent() if warmth else 0)
        return sum((link.take_wire_use() for link in ring_links if link), noops)

    def take_num_stray(self) -> int:
        """How many messages were dropped since the last call."""
        with self._lock:
            num_stray, self._num_stray = self._num_stray, 0
            return num_stray

    def close(self) -> None:
        """Stop listening and close every link."""
        self._listener.close()
        with self._lock:
            links = list(self._links.values())
            warmth = self._warmth
        if warmth is not None:
            warmth.end()
        for link in links:
            link.close()

    def _accept_all(self) -> None:
        answer_callers(self._listener, self._credentials, self._adopt, self._log.refused)

    def _adopt(self, role: str, link: Link) -> None:
        """Take a link into its role and read it."""
        if role in ("input", self.onward_role):
            link.watch(self._digests.tap)
        with self._lock:
            older, self._links[role] = self._links.get(role), link
            if role == self.onward_role:
                colder, self._warmth = self._warmth, KeepWarm(link)
                self._warmth.every(self._keepwarm_ms)
                if colder is not None:
                    colder.end()
        if older is not None:
            older.close()
        if role == "control":
            on_message = self._reader_of_control(link)
        elif role == "input":
            on_message = self._reader_of_input(link)
        else:
            on_message = self._on_probe_ack
        read_in_background(
            link,
            on_message,
            lambda received: self._drop(link, received),
            lambda reason: self._on_end(role, link, reason),
        )

    def _on_end(self, role: str, link: Link, reason: Exception) -> None:
        self._log.ended(reason)
        link.close()
        with self._lock:
            current = self._links.get(role) is link
            if current:
                del self._links[role]
        if current and role == "input":
            self.keep_warm(OFF)  # whose job it was for is gone
        if current and role == "onward":
            self._on_lost(f"forward link lost: {reason}")

    def _drop(self, link: Link, received: Received) -> None:
        with self._lock:
            self._num_stray += 1
        self._log.stray(link.peer, received.message)

    def _reader_of_input(self, link: Link) -> Callable[[Received, int], None]:
        opened_job = 0  # a job lives on the link it was opened on; a newer link knows nothing of it

        def on_message(received: Received, read_ns: int) -> None:
            nonlocal opened_job
            message = received.message
            if isinstance(message, Probe):
                link.send(ProbeAck(seq=message.seq))
                return
            if isinstance(message, Noop):
                return
            if isinstance(message, Reset):
                opened_job = message.job
                # Here, not where it is computed: its first frames are right behind.
                self._digests.begin(message.job, message.levers.attestation)
            if getattr(message, "job", None) == opened_job:
                self._on_frame(received, read_ns)
            else:
                self._drop(link, received)

        return on_message

    def _reader_of_control(self, link: Link) -> Callable[[Received, int], None]:
        def on_message(received: Received, read_ns: int) -> None:
            order = received.message
            if isinstance(order, Challenge):  # in turn with jobs, on the thread that computes them
                self._on_frame(received, read_ns)
                return
            assert isinstance(order, ProbeOrder), "the role's table allows nothing else"
            try:
                plan = ProbePlan(order.count, order.payload_bytes, order.idle_ms)
            except ConfigError:  # no coordinator of this release asks for such
                self._drop(link, received)
                return
            try:
                probe = self._prober.measure(self.get(self.onward_role), plan)
            except LinkClosedError as error:
                self._on_lost(str(error))
                return
            link.send(
                ProbeReport(
                    rtt_ns=probe.rtt_ns,
                    payload_rtt_ns=probe.payload_rtt_ns,
                    idle_payload_rtt_ns=probe.idle_payload_rtt_ns,
                )
            )

        return on_message

    def _on_probe_ack(self, received: Received, read_ns: int) -> None:
        assert isinstance(received.message, ProbeAck), "the role's table allows nothing else"
        self._prober.on_ack(received.message.seq, read_ns)
