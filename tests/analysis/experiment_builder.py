"""Test only: a valid, signed, invented experiment in a folder.

Guarantees: same arguments, same bytes but for the signing key; every document passes
`analysis.load`. Must never be used outside tests: nothing here was measured.
"""

from __future__ import annotations

import random
from pathlib import Path

from bench.receipt import receipt_id, write_signed
from bench.schema import (
    FrameRow,
    Lossless,
    Plan,
    PlannedJobRow,
    PlanPosition,
    Receipt,
    StageObserved,
    StageSpan,
    Timing,
)
from engine.trust.identity import Identity
from tests.analysis.plan_builder import ARM_LEVERS, CELLS, Recipe, job_config, make_plan
from tests.analysis.ring_simulation import PretendedRing
from tests.analysis.wire_builder import (
    BYTES_PER_ANSWER,
    FRAME_BYTES,
    config_of,
    counters_of,
    digest_of,
    link_rows,
)

PROMPT_LEN = 40
PREFILL_NS = 900_000_000
FIRST_DIFFERENCE = {"chat": 10}  # cell -> where the text of fp8 or int4 leaves the f32 one
LOADS = ("0.40", "0.50", "1.30", "0.60")  # of the host, job by job, over and over


def prefill_frame(num_stages: int = 4, reply_bytes: int = 100) -> FrameRow:
    """The prompt pass, whose reply commits the first output token."""
    return FrameRow(
        epoch=0,
        start=0,
        positions_len=PROMPT_LEN,
        sent_len=0,
        draft_len=0,
        accepted_len=0,
        tested_len=0,
        committed_len=1,
        outcome="prefill",
        source="prefill",
        match_len=0,
        in_flight=1,
        sent_ns=1_000_000,
        received_ns=PREFILL_NS,
        sent_bytes=900,
        received_bytes=reply_bytes,
        spans=[StageSpan(queue_ns=50_000, compute_ns=40_000_000, span_ns=40_060_000)] * num_stages,
        frontier=PROMPT_LEN,
        parents=[],
        node_ids=[],
        draft_ns=0,
    )


def text_of(cell: str, config: str, output_len: int) -> tuple[list[int], list[bool]]:
    """Output ids, and whether a draft of each would be accepted: by position, whatever the arm."""
    text = random.Random(f"text {cell}")
    output_ids = [text.randrange(1000) for _ in range(output_len)]
    right = [text.random() < CELLS[cell][1] for _ in output_ids]
    first = FIRST_DIFFERENCE.get(cell, output_len) if config != "f32" else output_len
    return output_ids[:first] + [1000 + token for token in output_ids[first:]], right


def make_receipt(
    plan: Plan,
    plan_digest: str,
    row: PlannedJobRow,
    reference_id: str | None,
    spread: float,
    factor: float = 1.0,
) -> Receipt:
    """One finished job; drafts are right or wrong by position, the same in every arm and rep."""
    config = job_config(row.arm, row.max_new_tokens)
    output_ids, right = text_of(row.cell, config.numeric_config, row.max_new_tokens)
    base, high, depth = ARM_LEVERS[row.arm]
    slowness = factor * random.Random(f"slowness {row.job_idx}").gauss(1.0, spread)
    ring = plan.ring_of(row.arm)
    ends = (ring.num_stages, FRAME_BYTES + BYTES_PER_ANSWER[config.reply])
    pretended = PretendedRing(PROMPT_LEN, right, (base, high), depth, slowness, *ends)
    decoded, last_ns = pretended.play(PREFILL_NS)
    frames = [prefill_frame(*ends), *decoded]
    lossless = Lossless(
        verdict="reference" if row.role == "reference" else "identical",
        reference_id=reference_id,
        first_difference=None,
    )
    return Receipt(
        status="ok",
        failure=None,
        position=position_of(plan, plan_digest, row),
        job_nonce=digest_of(f"nonce {plan_digest} {row.job_idx}")[:32],
        seed="00",
        build=plan.build,
        model=plan.model,
        requested=config,
        observed=config,
        stages=observed_stages(plan, row.arm),
        ring=ring,
        links=link_rows(ring.num_stages),
        link_test=None,
        attested=None,
        degraded=None,
        host={"num_cores": 2, "load_average": LOADS[row.job_idx % len(LOADS)]},
        timing=timing_until(last_ns, sum(frame.draft_ns for frame in frames)),
        prompt_digest=digest_of(row.cell),
        prompt_ids=list(range(PROMPT_LEN)),
        output_ids=output_ids,
        finish_reason="length",
        lossless=lossless,
        counters=counters_of(frames, config, ring.num_stages),
        frames=frames,
        attestations=[],
    )


def position_of(plan: Plan, plan_digest: str, row: PlannedJobRow) -> PlanPosition:
    """A job's place, copied from its row."""
    return PlanPosition(
        experiment=plan.experiment,
        plan_digest=plan_digest,
        job_idx=row.job_idx,
        rep=row.rep,
        cell=row.cell,
        block_idx=row.block_idx,
        order_idx=row.order_idx,
        role=row.role,
    )


def observed_stages(plan: Plan, arm: str) -> list[StageObserved]:
    """What the stages of an arm's ring said of themselves."""
    ring = plan.ring_of(arm)
    return [
        StageObserved(
            stage_idx=stage_idx,
            layer_start=start,
            layer_end=end,
            levers_digest=digest_of(arm),
            model_digest=plan.model.model_digest,
            source_digest=plan.build.engine_digest,
            kernel=ring.kernel,
            num_threads=ring.threads_per_stage,
            max_kv_size=ring.max_kv_size,
        )
        for stage_idx, (start, end) in enumerate(ring.layer_plan)
    ]


def timing_until(last_ns: int, draft_ns: int = 0) -> Timing:
    """The times of a job whose last token was committed at `last_ns`."""
    return Timing(
        wall_start="2026-01-01T00:00:00Z",
        prefill_sent_ns=1_000_000,
        first_commit_ns=PREFILL_NS,
        last_commit_ns=last_ns,
        end_ns=last_ns + 1_000_000,
        draft_ns=draft_ns,
        prepare_ns=0,
    )


def build_experiment(folder: Path, identity: Identity, recipe: Recipe | None = None) -> Path:
    """Write plan and receipts; returns the folder."""
    recipe = recipe or Recipe()
    (folder / "receipts").mkdir(parents=True)
    plan = make_plan(recipe)
    plan_digest = write_signed(folder / "plan.json", plan, identity)
    (folder / "log.jsonl").write_text("")
    reference_ids: dict[str, str] = {}
    for row in plan.jobs:
        is_reference = row.role == "reference"
        previous = None if is_reference else reference_ids[config_of(row.arm)]
        factor = recipe.slowness.get(row.arm, 1.0)
        receipt = make_receipt(plan, plan_digest, row, previous, recipe.spread, factor)
        path = receipt_path(folder, row.job_idx)
        write_signed(path, receipt, identity)
        if is_reference:
            reference_ids[config_of(row.arm)] = receipt_id(path.read_bytes())
    return folder


def receipt_path(folder: Path, job_idx: int) -> Path:
    """Where a job's receipt lies."""
    return folder / "receipts" / f"{job_idx:04d}.json"


def make_identity(home: Path) -> Identity:
    """A throw-away key whose public half lies in `home/keys`."""
    return Identity.load_or_create(home / "keys" / "harness.key")
