"""Turns one job's result into its receipt.

Guarantees: copies and counts, computes no statistic; what was not observed is said to be missing,
never guessed. Must never know how the result came about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bench.plan import job_config
from bench.schema import (
    LINK_MISMATCH,
    AttestedRow,
    Build,
    Counters,
    Failure,
    FrameRow,
    HopRow,
    JobConfig,
    LinkRow,
    LinkTest,
    Lossless,
    ModelFacts,
    PlannedJobRow,
    PlanPosition,
    Receipt,
    RingConfig,
    StageObserved,
    StageSpan,
    Timing,
)
from engine.coordinator.job import JobResult
from engine.coordinator.records import FrameRecord
from engine.errors import JobError
from engine.transport.message import Levers, ResetAck


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all receipts of one run share."""

    experiment: str
    plan_digest: str
    seed: str
    build: Build
    model: ModelFacts
    host: dict[str, str | int | None]
    link_test: LinkTest | None = None  # None: no relay


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of one job before it runs."""

    planned: PlannedJobRow
    levers: Levers
    nonce: str
    wall_start: str
    prompt_digest: str
    prompt_ids: tuple[int, ...]
    ring: RingConfig
    links: tuple[LinkRow, ...]  # of that ring, measured before its first job
    link_fault: str | None = None  # what of them is not as the profile says


@dataclass(frozen=True, slots=True)
class Reference:
    """The block's reference job."""

    receipt_id: str
    output_ids: tuple[int, ...]


def judge(
    planned: PlannedJobRow, output_ids: Sequence[int], reference: Reference | None
) -> Lossless:
    """Compare a job's ids with its block's reference, id by id."""
    if planned.role == "reference":
        return Lossless(verdict="reference", reference_id=None, first_difference=None)
    if reference is None:
        return Lossless(verdict="not_compared", reference_id=None, first_difference=None)
    ours, theirs = tuple(output_ids), reference.output_ids
    if ours == theirs:
        return Lossless(
            verdict="identical", reference_id=reference.receipt_id, first_difference=None
        )
    shorter = min(len(ours), len(theirs))
    first = next((idx for idx in range(shorter) if ours[idx] != theirs[idx]), shorter)
    return Lossless(verdict="different", reference_id=reference.receipt_id, first_difference=first)


def make_receipt(
    around: Surroundings, facts: JobFacts, result: JobResult, reference: Reference | None
) -> Receipt:
    """Write one job down.

    A job whose ids differ from the reference's is a failed job (`not_lossless`), and so is one on
    links that are not the profile's (`link_mismatch`): its ids are compared, its speed is not used.
    """
    completed = result.failure is None
    lossless = judge(facts.planned, result.output_ids, reference if completed else None)
    failure = result.failure or _found_afterwards(lossless, facts.link_fault)
    return Receipt(
        status="ok" if failure is None else "failed",
        failure=None
        if failure is None
        else Failure(code=failure.code, detail=failure.detail, stage_idx=failure.stage_idx),
        position=_position(around, facts.planned),
        job_nonce=facts.nonce,
        seed=around.seed,
        build=around.build,
        model=around.model,
        requested=job_config(facts.planned.arm, facts.levers),
        observed=_observed(facts, result),
        stages=[_stage_observed(ack) for ack in result.acks],
        ring=facts.ring,
        links=list(facts.links),
        link_test=around.link_test,
        host=around.host,
        timing=Timing(
            wall_start=facts.wall_start,
            prefill_sent_ns=result.prefill_sent_ns,
            first_commit_ns=result.first_commit_ns,
            last_commit_ns=result.last_commit_ns,
            end_ns=result.end_ns,
            draft_ns=result.draft_ns,
            prepare_ns=result.prepare_ns,
        ),
        prompt_digest=facts.prompt_digest,
        prompt_ids=list(facts.prompt_ids),
        output_ids=list(result.output_ids),
        finish_reason=result.finish_reason,
        lossless=lossless,
        counters=_counters(result),
        frames=[_frame_row(record) for record in result.frames],
        attestations=[statement.signed for statement in result.statements if statement.signed],
        attested=_attested(result),
        degraded=result.degraded,
    )


def _attested(result: JobResult) -> AttestedRow | None:
    """The coordinator's first frames are what it sent, its last ones what it received."""
    if result.account is None:
        return None
    roots = result.account.roots
    return AttestedRow(segment=0, first_root=roots.out_root, last_root=roots.in_root)


def _found_afterwards(lossless: Lossless, link_fault: str | None) -> JobError | None:
    """What is wrong with a job that decoded to its end."""
    if lossless.verdict == "different":
        return JobError(
            "not_lossless", f"ids differ from the reference at {lossless.first_difference}"
        )
    return None if link_fault is None else JobError(LINK_MISMATCH, link_fault)


def _position(around: Surroundings, planned: PlannedJobRow) -> PlanPosition:
    return PlanPosition(
        experiment=around.experiment,
        plan_digest=around.plan_digest,
        job_idx=planned.job_idx,
        rep=planned.rep,
        cell=planned.cell,
        block_idx=planned.block_idx,
        order_idx=planned.order_idx,
        role=planned.role,
    )


def _observed(facts: JobFacts, result: JobResult) -> JobConfig | None:
    """The levers that the ring echoed; the stages' echoes were compared before the first commit."""
    if not result.acks:
        return None
    return job_config(facts.planned.arm, result.acks[0].levers)


def _stage_observed(ack: ResetAck) -> StageObserved:
    return StageObserved(
        stage_idx=ack.stage_idx,
        layer_start=ack.layer_start,
        layer_end=ack.layer_end,
        levers_digest=levers_digest(ack.levers),
        model_digest=ack.model_digest,
        source_digest=ack.source_digest,
        kernel=ack.kernel,
        num_threads=ack.num_threads,
        max_kv_size=ack.max_kv_size,
    )


def levers_digest(levers: Levers) -> str:
    """SHA-256 over the levers, sorted by name."""
    return hashlib.sha256(msgspec.json.encode(levers, order="sorted")).hexdigest()


def _counters(result: JobResult) -> Counters:
    discarded = sum(record.sent_len for record in result.frames if record.outcome == "stale")
    hops = _hops(result)
    return Counters(
        stale_replies=result.stale_replies,
        stale_dropped=sum(statement.stale_dropped for statement in result.statements),
        stale_computed=sum(statement.stale_computed for statement in result.statements),
        uncorrelated=result.uncorrelated,
        discarded_len=discarded,
        frames_on_wire=sum(hop.frames for hop in hops),
        bytes_on_wire=sum(hop.bytes for hop in hops),
        hops=hops,
        stages_uncorrelated=sum(statement.uncorrelated for statement in result.statements),
    )


def _hops(result: JobResult) -> list[HopRow]:
    """What each process wrote; a stage that did not state it (a failed job) has no row."""
    sent_bytes = sum(record.sent_bytes for record in result.frames)
    ours = HopRow(
        sender="coordinator",
        frames=len(result.frames),
        bytes=sent_bytes,
        codec_ns=result.wire_use.codec_ns,
        seal_ns=result.wire_use.seal_ns,
        noops=result.wire_use.noops_sent,
    )
    stages = [
        HopRow(
            sender=f"stage-{statement.stage_idx}",
            frames=statement.frames_sent,
            bytes=statement.bytes_sent,
            codec_ns=statement.codec_ns,
            seal_ns=statement.seal_ns,
            noops=statement.noops_sent,
        )
        for statement in result.statements
    ]
    return [ours, *stages]


def _frame_row(record: FrameRecord) -> FrameRow:
    return FrameRow(
        epoch=record.epoch,
        start=record.start,
        positions_len=record.positions_len,
        sent_len=record.sent_len,
        draft_len=record.draft_len,
        accepted_len=record.accepted_len,
        tested_len=record.tested_len,
        committed_len=record.committed_len,
        outcome=record.outcome,
        source=record.source,
        match_len=record.match_len,
        in_flight=record.in_flight,
        sent_ns=record.sent_ns,
        received_ns=record.received_ns,
        sent_bytes=record.sent_bytes,
        received_bytes=record.received_bytes,
        frontier=record.frontier,
        draft_ns=record.draft_ns,
        parents=list(record.parents),
        node_ids=list(record.node_ids),
        spans=[
            StageSpan(queue_ns=span.queue_ns, compute_ns=span.compute_ns, span_ns=span.span_ns)
            for span in record.spans
        ],
    )
