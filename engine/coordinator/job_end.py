"""What is done when a job's last reply has come: ask for statements, hold them, write the result.

Guarantees: an attested job is asked about exactly the frames whose replies it applied, and fails if
an answer does not hold. Must never know links.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from engine.coordinator.attested import Pinned, account_of, applied_frames, check_statements
from engine.coordinator.drafting import Drafting
from engine.coordinator.job import JobRequest, JobResult
from engine.coordinator.rounds import RoundMachine
from engine.errors import JobError
from engine.transport.message import ResetAck, Statement
from engine.trust.frame_digests import FrameDigests


def frames_to_attest(
    request: JobRequest, result: JobResult, machine: RoundMachine
) -> tuple[tuple[int, int], ...]:
    """What stages are asked to attest: empty if nothing, or the job is lost already."""
    if not request.levers.attestation or result.failure is not None:
        return ()
    return tuple((epoch, start) for epoch, start, _ in applied_frames(machine.records()))


def hold_statements(
    request: JobRequest,
    result: JobResult,
    machine: RoundMachine,
    statements: Mapping[int, Statement],
    digests: FrameDigests,
    pinned: Pinned | None,
) -> None:
    """Verify an attested job that has not failed; leaves the coordinator's account in the result.

    Raises:
        JobError: the first fault, and whose it is.
    """
    if not request.levers.attestation or result.failure is not None:
        return
    assert pinned is not None, "the session refuses such a job"
    result.account = account_of(machine.records(), digests)
    signed = [statements[idx].signed for idx in sorted(statements)]
    prompt_len = len(request.prompt_ids)
    check_statements(signed, result.account, pinned, request.nonce, prompt_len, machine.output_ids)


def complete(
    result: JobResult,
    machine: RoundMachine,
    drafting: Drafting,
    acks: Mapping[int, ResetAck],
    statements: Mapping[int, Statement],
    start_ns: int,
) -> None:
    """Write down what the machine, the drafter and the stages have to say at the end."""
    result.output_ids = machine.output_ids
    result.finish_reason = machine.finish_reason
    result.frames = [record.since(start_ns) for record in machine.records()]
    result.draft_ns, result.prepare_ns = drafting.draft_ns, drafting.prepare_ns
    result.degraded = drafting.degraded
    result.acks = [acks[idx] for idx in sorted(acks)]
    result.statements = [statements[idx] for idx in sorted(statements)]
    result.stale_replies = machine.flight.stale_replies
    result.end_ns = time.monotonic_ns() - start_ns
    num_pending = sum(statement.pending_frames for statement in result.statements)
    if num_pending and result.failure is None:
        result.failure = JobError("pending_frames", f"{num_pending} frames are still queued")
