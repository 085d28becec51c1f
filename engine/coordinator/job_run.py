"""Drives one job: the round machine's actions out over the links, the ring's messages in.

Guarantees: nothing is committed before every stage has acknowledged the levers it was asked for;
a message counts only from the peer entitled to send it; when `execute` returns and the ring is
usable, nothing of the job is pending anywhere. Must never know how tokens are chosen or compared:
that is the round machine's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import torch

from engine import defaults
from engine.coordinator.acknowledgements import check_acks
from engine.coordinator.attested import Pinned
from engine.coordinator.committed_logits import committed_rows
from engine.coordinator.drafting import Drafting
from engine.coordinator.job import DraftMeans, JobRequest, JobResult, OnCommit
from engine.coordinator.job_end import complete, frames_to_attest, hold_statements
from engine.coordinator.records import (
    Action,
    Arrival,
    CommitTokens,
    RoundLimits,
    SendFrame,
    Span,
)
from engine.coordinator.ring_links import Event, RingLinks
from engine.coordinator.rounds import RoundMachine
from engine.errors import (
    JobError,
    LinkClosedError,
    RemoteProtocolError,
    UnmatchedReplyError,
)
from engine.transport.message import (
    Attest,
    JobErrorReport,
    Reply,
    Reset,
    ResetAck,
    Statement,
    Verify,
)

NO_TENSORS: Mapping[str, torch.Tensor] = {}


class JobRun:
    """One job on a warm ring.

    Args:
        job: its number, another one than the last job's.
        means: what the drafter and the policy may ask; kept over jobs.
        on_commit: called with newly committed ids, after the frames they allow were sent, and with
            what counts where the job stands.
        pinned: whom an attested job must be signed by.
    """

    def __init__(
        self,
        links: RingLinks,
        job: int,
        request: JobRequest,
        means: DraftMeans,
        on_commit: OnCommit,
        pinned: Pinned | None = None,
    ) -> None:
        self._links = links
        self._job = job
        self._request = request
        self._on_commit = on_commit
        self._pinned = pinned
        self._result = JobResult()
        levers = request.levers
        self._drafting = Drafting(request, means)
        policy = request.make_policy(levers, means.cost)
        limits = RoundLimits(
            max_new_tokens=levers.max_new_tokens,
            eos_ids=request.eos_ids,
            depth=levers.depth,
            prefill_chunk=levers.prefill_chunk,
            prefill_depth=defaults.DEPTH_MAX,
            reply_timeout_ns=int(defaults.REPLY_TIMEOUT_S * 1e9),
            prefill_timeout_ns=int(defaults.PREFILL_TIMEOUT_S * 1e9),
            wants_taps=self._drafting.wants_taps,
        )
        # Whatever the policy: what one job learns of the ring's cost, the next one starts with.
        self._machine = RoundMachine(
            request.prompt_ids,
            limits,
            policy,
            request.should_stop,
            means.cost.measure,
            self._drafting.observe,
        )
        self._acks: dict[int, ResetAck] = {}
        self._statements: dict[int, Statement] = {}
        self._held: list[Event] = []  # replies that came before the last acknowledgement
        self._replies_len = 0
        self._start_ns = 0

    def execute(self) -> JobResult:
        """Run the job to its end and drain the ring.

        A failed job is a result too: `failure` says why.
        """
        self._start_ns = time.monotonic_ns()
        self._links.take_wire_use()  # what was before is not the job's
        result = self._result
        try:
            self._decode()
        except JobError as error:
            self._note_failure(error)
        except (LinkClosedError, RemoteProtocolError) as error:
            self._fail_ring("link_lost", str(error))
        self._machine.abandon()
        if result.ring_usable:
            self._drain()
        self._hold_statements()
        result.wire_use = self._links.take_wire_use()
        complete(
            result, self._machine, self._drafting, self._acks, self._statements, self._start_ns
        )
        return result

    # -- decode ----------------------------------------------------------------------------------

    def _decode(self) -> None:
        request = self._request
        self._links.open_job(self._job, request.levers)
        self._links.send(Reset(job=self._job, nonce=request.nonce, levers=request.levers))
        self._drafting.begin(request.prompt_ids)
        now_ns = time.monotonic_ns()
        self._result.prefill_sent_ns = now_ns - self._start_ns
        self._perform(self._machine.start(now_ns))
        while not self._machine.finished:
            event = self._links.next_event(0) or self._await_event()
            if event is not None:
                self._on_event(event)
            self._machine.on_timer(time.monotonic_ns())  # also after noise, which must not delay it

    def _await_event(self) -> Event | None:
        """Nothing has come: make the next draft ready, then wait."""
        self._drafting.prepare(self._machine.speculative)
        return self._links.next_event(self._machine.next_deadline_ns())

    def _perform(
        self, actions: Sequence[Action], tensors: Mapping[str, torch.Tensor] = NO_TENSORS
    ) -> None:
        """Execute actions; frames first reach the wire, then the caller hears of tokens.

        Args:
            tensors: of the reply that they follow from.
        """
        pending = deque(actions)
        committed: list[int] = []
        self._drafting.begin_event()
        while pending:
            action = pending.popleft()
            if isinstance(action, SendFrame):
                self._send_frame(action)
            elif isinstance(action, CommitTokens):
                self._note_commit(action)
                committed += action.ids
            else:  # Finish concerns nobody here: the loop asks the machine
                pending.extend(self._drafting.carry_out(action, tensors, self._machine))
        if committed:
            self._on_commit(committed, self._machine.flight.standing)

    def _send_frame(self, action: SendFrame) -> None:
        sent_ns = time.monotonic_ns()
        num_bytes = self._links.send(
            Verify(
                job=self._job,
                epoch=action.epoch,
                start=action.start,
                positions_len=len(action.ids),
                answer_from=action.answer_from,
                ids=action.ids,
                parents=action.parents,
            )
        )
        self._machine.flight.note_sent(
            action.epoch, action.start, sent_ns, num_bytes, self._drafting.take_frame_ns()
        )

    def _note_commit(self, action: CommitTokens) -> None:
        since_start_ns = time.monotonic_ns() - self._start_ns
        if self._result.first_commit_ns is None:
            self._result.first_commit_ns = since_start_ns
        self._result.last_commit_ns = since_start_ns
        self._drafting.commit(action.ids)

    # -- messages --------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        message = event.message
        if getattr(message, "job", None) != self._job:
            self._result.uncorrelated += 1
        elif isinstance(message, Reply) and event.source == "return":
            self._on_reply(event, message)
        elif event.source == "control" and getattr(message, "stage_idx", None) == event.stage_idx:
            self._on_control(message)
        else:
            self._result.uncorrelated += 1

    def _on_control(self, message: object) -> None:
        if isinstance(message, ResetAck):
            self._acks[message.stage_idx] = message
            if len(self._acks) == self._links.num_stages:
                check_acks(self._acks, self._request.levers)
                held, self._held = self._held, []
                for event in held:
                    self._on_event(event)
        elif isinstance(message, Statement):
            self._statements[message.stage_idx] = message
        elif isinstance(message, JobErrorReport) and self._result.failure is None:
            raise JobError(message.code, message.detail, message.stage_idx)

    def _on_reply(self, event: Event, reply: Reply) -> None:
        if len(self._acks) < self._links.num_stages:
            self._held.append(event)
            return
        self._replies_len += 1  # also one that answers nothing: the stage has counted it
        spans = tuple(Span(span.queue_ns, span.compute_ns, span.span_ns) for span in reply.spans)
        frontier = self._machine.frontier
        arrival = Arrival(event.read_ns, event.received.num_bytes, spans)
        try:
            actions = self._machine.on_reply(reply.epoch, reply.start, reply.ids, arrival)
        except UnmatchedReplyError:
            self._result.uncorrelated += 1
            return
        tensors, on_logits = event.received.tensors, self._request.on_logits
        for action in actions:
            if isinstance(action, CommitTokens) and on_logits and "logits" in tensors:
                on_logits(frontier, committed_rows(action, tensors["logits"], len(reply.ids)))
        self._perform(actions, tensors)

    # -- end -------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Close the job behind its last frame and wait until nothing of it is pending."""
        deadline_ns = time.monotonic_ns() + int(defaults.REPLY_TIMEOUT_S * 1e9)
        self._links.close_job()
        try:
            frames = frames_to_attest(self._request, self._result, self._machine)
            self._links.send(Attest(job=self._job, epoch=self._machine.epoch + 1, frames=frames))
            while self._result.ring_usable and not self._drained():
                event = self._links.next_event(deadline_ns)
                if event is None:
                    self._fail_ring("drain_timeout", "the ring did not drain after the job")
                    return
                self._on_draining_event(event)
        except (LinkClosedError, RemoteProtocolError) as error:
            self._fail_ring("link_lost", str(error))

    def _hold_statements(self) -> None:
        try:
            hold_statements(
                self._request,
                self._result,
                self._machine,
                self._statements,
                self._links.digests.frames,
                self._pinned,
            )
        except JobError as error:
            self._note_failure(error)

    def _on_draining_event(self, event: Event) -> None:
        try:
            self._on_event(event)
        except JobError as error:  # a stage failed on a frame that no longer mattered
            self._note_failure(error)

    def _drained(self) -> bool:
        last_idx = self._links.num_stages - 1
        if len(self._statements) < self._links.num_stages:
            return False
        return self._replies_len + len(self._held) >= self._statements[last_idx].frames_sent

    def _note_failure(self, error: JobError) -> None:
        self._result.failure = self._result.failure or error
        if error.code in ("link_lost", "stage_bug"):  # frames may be lost, no drain can tell
            self._result.ring_usable = False

    def _fail_ring(self, code: str, detail: str) -> None:
        self._result.ring_usable = False
        self._note_failure(JobError(code, detail))
