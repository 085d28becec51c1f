"""What a stage does with the messages of a job. Sans-IO but for the executor's compute.

Guarantees: every verify frame of the current job and epoch that is computed leads to exactly one
outgoing frame; frames of an older epoch are counted and dropped, frames of another job dropped; a
failed job drops its later frames but still closes properly. Must never know sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine.errors import JobError
from engine.stage.executor import Executor
from engine.transport.message import (
    Attest,
    JobErrorReport,
    Levers,
    Message,
    Reply,
    Reset,
    ResetAck,
    StageSpan,
    Statement,
    Verify,
)

SUPPORTED_NUMERIC_CONFIGS = ("f32",)


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """What a stage says of itself."""

    stage_idx: int
    source_digest: str
    num_threads: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Send this to the next stage, or to the coordinator if this is the last one."""

    message: Message
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Report:
    """Send this to the coordinator on the control link."""

    message: Message


Outgoing = Forward | Report


class StageJob:
    """The stage's side of the current job."""

    def __init__(self, executor: Executor, identity: StageIdentity) -> None:
        self._executor = executor
        self._identity = identity
        self._job = 0
        self._epoch = 0
        self._failed = False
        self._frames_sent = 0
        self._stale_dropped = 0
        self._stale_computed = 0
        self._levers: Levers | None = None

    @property
    def number(self) -> int:
        """The current job; 0 before the first."""
        return self._job

    def on_reset(self, reset: Reset) -> list[Outgoing]:
        """Open a job: clear, apply, acknowledge, pass on."""
        self._executor.reset()
        self._job, self._epoch, self._failed = reset.job, 0, False
        self._frames_sent = self._stale_dropped = self._stale_computed = 0
        self._levers = reset.levers
        ack = ResetAck(
            job=reset.job,
            stage_idx=self._identity.stage_idx,
            layer_start=self._executor.layer_start,
            layer_end=self._executor.layer_end,
            levers=self._levers,
            model_digest=self._executor.model_digest,
            source_digest=self._identity.source_digest,
            kernel=self._executor.kernel,
            num_threads=self._identity.num_threads,
        )
        outgoing: list[Outgoing] = [Report(ack)]
        if not self._executor.is_last:
            outgoing.append(Forward(reset, {}))
        if reset.levers.numeric_config not in SUPPORTED_NUMERIC_CONFIGS:
            supported = ", ".join(SUPPORTED_NUMERIC_CONFIGS)
            detail = f"{reset.levers.numeric_config!r} is not supported; valid: {supported}"
            outgoing.append(self._fail(JobError("numeric_config", detail)))
        return outgoing

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
        if verify.job != self._job or self._failed:
            return []
        if verify.epoch < self._epoch or superseded(verify):
            self._stale_dropped += 1
            return []
        self._epoch = verify.epoch
        started_ns = time.monotonic_ns()
        try:
            hidden, ids = self._compute(verify, tensors)
        except JobError as error:
            return [self._fail(error)]
        self._stale_computed += superseded(verify)
        self._frames_sent += 1
        ended_ns = time.monotonic_ns()
        span = StageSpan(
            queue_ns=started_ns - read_ns,
            compute_ns=ended_ns - started_ns,
            span_ns=ended_ns - read_ns,
        )
        return [self._next_frame(verify, hidden, ids, span)]

    def on_attest(self, attest: Attest, num_dropped: int, num_pending: int) -> list[Outgoing]:
        """Close the job: pass on, then state what was done.

        Args:
            num_dropped: frames of the job that the queue dropped.
            num_pending: frames of the job still queued here.
        """
        statement = Statement(
            job=attest.job,
            stage_idx=self._identity.stage_idx,
            frames_sent=self._frames_sent if attest.job == self._job else 0,
            stale_dropped=self._stale_dropped + num_dropped,
            stale_computed=self._stale_computed,
            pending_frames=num_pending,
        )
        passed_on: list[Outgoing] = [] if self._executor.is_last else [Forward(attest, {})]
        return [*passed_on, Report(statement)]

    def _compute(
        self, verify: Verify, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, list[int]]:
        hidden = self._input_of(verify, tensors)
        hidden = self._executor.forward(hidden, verify.start)
        answered = max(0, verify.start + verify.positions_len - verify.answer_from)
        if not self._executor.is_last or not answered:
            return hidden, []
        return hidden, self._executor.answer(hidden[-answered:])

    def _input_of(self, verify: Verify, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self._executor.is_first:
            if verify.ids is None or len(verify.ids) != verify.positions_len:
                raise JobError("bad_frame", "the first stage needs one id a position")
            return self._executor.embed(verify.ids)
        hidden = tensors.get("hidden")
        if hidden is None or hidden.dim() != 2 or hidden.shape[0] != verify.positions_len:
            raise JobError("bad_frame", "a later stage needs hidden states, one row a position")
        return hidden

    def _next_frame(
        self, verify: Verify, hidden: torch.Tensor, ids: list[int], span: StageSpan
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
            return Forward(reply, {})
        onward = Verify(
            job=verify.job,
            epoch=verify.epoch,
            start=verify.start,
            positions_len=verify.positions_len,
            answer_from=verify.answer_from,
            spans=spans,
        )
        return Forward(onward, {"hidden": hidden})

    def _fail(self, error: JobError) -> Report:
        self._failed = True
        report = JobErrorReport(
            job=self._job,
            stage_idx=self._identity.stage_idx,
            code=error.code,
            detail=error.detail,
        )
        return Report(report)
