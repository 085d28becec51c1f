"""What a stage does with the messages of a job. Sans-IO but for the executor's compute.

Guarantees: every verify frame of the current job and epoch that is computed leads to exactly one
outgoing frame; frames of an older epoch are counted and dropped, frames of another job dropped; a
failed job drops its later frames but still closes properly. Must never know sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from engine.errors import JobError
from engine.model.sampling import sample_ids
from engine.model.tree import answered_positions
from engine.stage.account import JobAccount, StageFacts
from engine.stage.evidence import answer_challenge
from engine.stage.executor import Executor
from engine.stage.frame_input import take_frame
from engine.stage.job_levers import AppliedLevers, apply_levers
from engine.transport.connection import WireUse
from engine.transport.hidden_wire import pack_states
from engine.transport.keep_warm import OFF
from engine.transport.message import (
    AnyMessage,
    Attest,
    Challenge,
    JobErrorReport,
    Reply,
    Reset,
    ResetAck,
    StageSpan,
    Statement,
    Verify,
)
from engine.transport.taps import pack_taps
from engine.trust.job_digests import JobDigests

_LOGITS_DTYPE = torch.float16


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """What a stage says of itself."""

    stage_idx: int
    source_digest: str
    num_threads: int
    num_stages: int = 1


@dataclass(frozen=True, slots=True)
class Forward:
    """Send this to the next stage, or to the coordinator if this is the last one."""

    message: AnyMessage
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Report:
    """Send this to the coordinator on the control link."""

    message: AnyMessage
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outside:
    """What a stage's queue and links have to tell when a job closes."""

    num_dropped: int  # frames of the job that the queue dropped
    num_pending: int  # frames of the job still queued
    num_stray: int  # messages dropped on the links since the last job
    wire_use: WireUse  # on the ring's links in the job


Outgoing = Forward | Report


class StageJob:
    """The stage's side of the current job."""

    def __init__(
        self, executor: Executor, identity: StageIdentity, account: JobAccount | None = None
    ) -> None:
        self._executor = executor
        self._identity = identity
        self._account = account or JobAccount(None, JobDigests())
        self._job = 0
        self._epoch = 0
        self._failed = False
        self._frames_sent = self._bytes_sent = 0
        self._stale_dropped = self._stale_computed = self._uncorrelated = 0
        self._applied: AppliedLevers | None = None  # of the current job

    @property
    def number(self) -> int:
        """The current job; 0 before the first."""
        return self._job

    @property
    def keepwarm_ms(self) -> int:
        """The current job's; off if it failed at once."""
        return self._applied.keepwarm_ms if self._applied else OFF

    def on_reset(self, reset: Reset) -> list[Outgoing]:
        """Open a job: clear, apply, acknowledge, pass on."""
        self._job, self._epoch, self._failed = reset.job, 0, False
        self._applied = None
        self._frames_sent = self._bytes_sent = 0
        self._stale_dropped = self._stale_computed = self._uncorrelated = 0
        ack = ResetAck(
            job=reset.job,
            stage_idx=self._identity.stage_idx,
            layer_start=self._executor.layer_start,
            layer_end=self._executor.layer_end,
            levers=reset.levers,
            model_digest=self._executor.model_digest,
            source_digest=self._identity.source_digest,
            kernel=self._executor.kernel,
            num_threads=self._identity.num_threads,
            max_kv_size=self._executor.max_kv_size,
        )
        outgoing: list[Outgoing] = [Report(ack)]
        if not self._executor.is_last:
            outgoing.append(Forward(reset, {}))
        try:
            self._executor.reset()
            self._account.begin(reset)
            self._applied = apply_levers(
                reset.levers,
                self._executor.weights,
                self._executor.layer_end if self._executor.is_last else None,
            )
        except JobError as error:
            outgoing.append(self._fail(error))
        return outgoing

    def note_sent(self, message: AnyMessage, num_bytes: int) -> None:
        """Count what went out on the ring."""
        if isinstance(message, Verify | Reply) and message.job == self._job:
            self._frames_sent += 1
            self._bytes_sent += num_bytes

    def on_verify(
        self,
        verify: Verify,
        tensors: Mapping[str, torch.Tensor],
        read_ns: int,
        superseded: Callable[[Verify], bool],
    ) -> list[Outgoing]:
        """Compute one frame.

        Args:
            read_ns: when it was read off its socket (monotonic).
            superseded: has a newer (job, epoch) arrived? Asked before and after computing.
        """
        if verify.job != self._job:  # the last stage answers nothing it cannot correlate
            self._uncorrelated += 1
            return []
        if self._failed:
            return []
        if verify.epoch < self._epoch or superseded(verify):
            self._stale_dropped += 1
            return []
        self._epoch = verify.epoch
        started_ns = time.monotonic_ns()
        try:
            answer, onward = self._compute(verify, tensors)
        except JobError as error:
            return [self._fail(error)]
        self._stale_computed += superseded(verify)
        ended_ns = time.monotonic_ns()
        span = StageSpan(
            queue_ns=started_ns - read_ns,
            compute_ns=ended_ns - started_ns,
            span_ns=ended_ns - read_ns,
        )
        self._account.note(verify, answer, span.compute_ns)
        return [self._next_frame(verify, answer, onward, span)]

    def on_attest(self, attest: Attest, outside: Outside) -> list[Outgoing]:
        """Close the job: pass on, then state what was done."""
        known = attest.job == self._job
        failed: list[Outgoing] = []
        signed = ""
        if known and not self._failed:
            try:
                signed = self._account.signed(attest.frames, self._facts())
            except JobError as error:
                failed = [self._fail(error)]
        statement = Statement(
            job=attest.job,
            stage_idx=self._identity.stage_idx,
            frames_sent=self._frames_sent if known else 0,
            bytes_sent=self._bytes_sent if known else 0,
            stale_dropped=self._stale_dropped + outside.num_dropped,
            stale_computed=self._stale_computed,
            pending_frames=outside.num_pending,
            uncorrelated=self._uncorrelated + outside.num_stray,
            codec_ns=outside.wire_use.codec_ns,
            seal_ns=outside.wire_use.seal_ns,
            noops_sent=outside.wire_use.noops_sent,
            signed=signed,
        )
        passed_on: list[Outgoing] = [] if self._executor.is_last else [Forward(attest, {})]
        return [*passed_on, *failed, Report(statement)]

    def on_challenge(self, challenge: Challenge) -> list[Outgoing]:
        """Show what the last job was computed from."""
        wire = self._applied.wire if self._applied else ""
        attested = self._account.attested
        return [Report(*answer_challenge(challenge, self._job, attested, self._facts(), wire))]

    def _facts(self) -> StageFacts:
        return StageFacts(
            stage_idx=self._identity.stage_idx,
            num_stages=self._identity.num_stages,
            layer_start=self._executor.layer_start,
            layer_end=self._executor.layer_end,
            is_last=self._executor.is_last,
            model_digest=self._executor.model_digest,
        )

    def _compute(
        self, verify: Verify, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[list[int], dict[str, torch.Tensor]]:
        """Run the layers; returns the chosen ids (last stage) and the tensors that go on."""
        applied = self._applied
        assert applied is not None, "a job that runs has applied its levers"
        taken = take_frame(verify, tensors, self._executor, applied)
        passed = self._executor.run(taken.states, verify.start, verify.parents, applied.tap_layers)
        taps = {**taken.taps, **pack_taps(passed.taps, applied.tap_wire)}
        if not self._executor.is_last:
            return [], {**pack_states({"hidden": passed.hidden}, applied.wire), **taps}
        positions = answered_positions(
            verify.parents, verify.start, verify.positions_len, verify.answer_from
        )
        if not positions:
            return [], taps
        logits = self._executor.logits(passed.hidden[-len(positions) :])
        ids = sample_ids(logits, positions, applied.sampling)
        return ids, {"logits": logits.to(_LOGITS_DTYPE), **taps} if applied.replies_logits else taps

    def _next_frame(
        self,
        verify: Verify,
        ids: list[int],
        tensors: Mapping[str, torch.Tensor],
        span: StageSpan,
    ) -> Forward:
        spans = (*verify.spans, span)
        if self._executor.is_last:
            reply = Reply(
                job=verify.job,
                epoch=verify.epoch,
                start=verify.start,
                ids=tuple(ids),
                spans=spans,
            )
            return Forward(reply, tensors)
        onward = Verify(
            job=verify.job,
            epoch=verify.epoch,
            start=verify.start,
            positions_len=verify.positions_len,
            answer_from=verify.answer_from,
            spans=spans,
            parents=verify.parents,
        )
        return Forward(onward, tensors)

    def _fail(self, error: JobError) -> Report:
        self._failed = True
        report = JobErrorReport(
            job=self._job,
            stage_idx=self._identity.stage_idx,
            code=error.code,
            detail=error.detail,
        )
        return Report(report)
