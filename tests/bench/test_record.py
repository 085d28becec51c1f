"""What a job's result becomes in its receipt: counted, copied, never guessed."""

from __future__ import annotations

import msgspec

from bench.plan import arm_levers
from bench.record import JobFacts, Surroundings, make_receipt
from bench.schema import PlannedJobRow, Receipt
from bench.schema_versions import version_defects
from engine.coordinator.job import JobResult
from engine.coordinator.records import FrameRecord
from engine.errors import JobError
from engine.transport.connection import WireUse
from engine.transport.message import Statement
from tests.bench.receipt_builder import RING, make_plan, measured_links


def statement(stage_idx: int, frames_sent: int, bytes_sent: int) -> Statement:
    return Statement(
        job=1,
        stage_idx=stage_idx,
        frames_sent=frames_sent,
        bytes_sent=bytes_sent,
        stale_dropped=1,
        stale_computed=2,
        pending_frames=0,
        uncorrelated=stage_idx + 3,
        codec_ns=stage_idx + 20,
        seal_ns=stage_idx + 30,
        noops_sent=stage_idx + 40,
    )


def frame(sent_bytes: int) -> FrameRecord:
    return FrameRecord(
        epoch=0, start=0, positions_len=1, sent_len=0, draft_len=0, accepted_len=0, tested_len=0,
        committed_len=1, outcome="prefill", source="prefill", match_len=0, in_flight=1, frontier=0,
        sent_ns=1, received_ns=2, sent_bytes=sent_bytes, received_bytes=5,
    )  # fmt: skip


def receipt_of(result: JobResult, arm: str = "ar") -> Receipt:
    plan = make_plan()
    planned = PlannedJobRow(
        job_idx=0, rep=0, cell="chat", block_idx=0, order_idx=0, arm=arm, role="reference",
        max_new_tokens=9,
    )  # fmt: skip
    facts = JobFacts(
        planned=planned,
        levers=arm_levers(arm, 9),
        nonce="00",
        wall_start="2026-01-01T00:00:00Z",
        prompt_digest="0" * 64,
        prompt_ids=(1, 2),
        ring=RING,
        links=tuple(measured_links(RING)),
    )
    around = Surroundings("small", "0" * 64, plan.seed, plan.build, plan.model, {"x": 1})
    return make_receipt(around, facts, result, None)


def test_frames_and_bytes_of_every_process_are_counted() -> None:
    """Catches a process that is left out, or counted twice."""
    statements = [statement(0, 3, 700), statement(1, 2, 90)]
    made = receipt_of(JobResult(frames=[frame(40), frame(41)], statements=statements))
    hops = [(hop.sender, hop.frames, hop.bytes) for hop in made.counters.hops]
    assert hops == [("coordinator", 2, 81), ("stage-0", 3, 700), ("stage-1", 2, 90)]
    assert made.counters.frames_on_wire == 7
    assert made.counters.bytes_on_wire == 871
    assert made.counters.stages_uncorrelated == 3 + 4
    assert (made.counters.stale_dropped, made.counters.stale_computed) == (2, 4)


def test_what_every_process_spent_and_sent_beside_frames_is_its_own() -> None:
    """Catches one sender's times or noops in another's row, or in another field."""
    statements = [statement(0, 1, 9), statement(1, 1, 9)]
    result = JobResult(frames=[frame(40)], statements=statements, wire_use=WireUse(1, 2, 3))
    hops = receipt_of(result).counters.hops
    spent = [(hop.codec_ns, hop.seal_ns, hop.noops) for hop in hops]
    assert spent == [(1, 2, 3), (20, 30, 40), (21, 31, 41)]


def test_a_stage_that_stated_nothing_has_no_row() -> None:
    """Catches a failed job whose lost stage is said to have sent nothing."""
    result = JobResult(
        frames=[frame(40)],
        statements=[statement(1, 1, 50)],
        failure=JobError("link_lost", "stage 0 is gone"),
    )
    made = receipt_of(result)
    assert [hop.sender for hop in made.counters.hops] == ["coordinator", "stage-1"]
    assert made.counters.bytes_on_wire == 90


def test_a_receipt_holds_every_field_of_its_version() -> None:
    """Catches a lever, a link fact or a counter that the harness forgets to write."""
    made = receipt_of(JobResult(frames=[frame(40)]), "logits-s2")
    assert made.schema == "longhaul-receipt/7"
    assert list(version_defects(made)) == []
    assert made.requested.reply == "logits"
    assert msgspec.to_builtins(made.requested.sampling) == {
        "temperature": "0", "top_k": 0, "top_p": "1", "seed": "0" * 16,
    }  # fmt: skip
    assert made.ring == RING and len(made.links) == RING.num_stages + 1
