"""Test only: a valid, signed, invented experiment in a folder.

Guarantees: same arguments, same bytes but for the signing key; every document passes
`analysis.load`. Must never be used outside tests: nothing here was measured.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from bench.receipt import receipt_id, write_signed
from bench.schema import (
    Build,
    CellRow,
    Counters,
    FrameRow,
    JobConfig,
    Lossless,
    ModelFacts,
    Plan,
    PlannedJobRow,
    PlanPosition,
    Receipt,
    RingConfig,
    Timing,
)
from engine.trust.identity import Identity
from tests.analysis.ring_simulation import PretendedRing

PROMPT_LEN = 40
PREFILL_NS = 900_000_000
# arm -> (k, k after a fully accepted frame, depth)
ARM_LEVERS = {
    "ar": (0, 0, 1),
    "null-ar": (0, 0, 1),
    "chain-k8": (8, 8, 4),
    "null": (8, 8, 4),
    "chain-k16": (16, 16, 4),
    "two-state": (8, 16, 4),
}
CELLS = {  # name -> (kind, invented acceptance)
    "verbatim-copy": ("draftable", 0.985),
    "code-edit": ("draftable", 0.95),
    "quote": ("draftable", 0.9),
    "json-extract": ("draftable", 0.82),
    "tool-call": ("draftable", 0.75),
    "summary": ("novel", 0.5),
    "reasoning": ("novel", 0.42),
    "chat": ("novel", 0.3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to invent."""

    cells: tuple[str, ...] = ("verbatim-copy", "chat")
    arms: tuple[str, ...] = tuple(ARM_LEVERS)
    reps: int = 4
    output_len: int = 40
    spread: float = 0.01  # of the invented slowness
    experiment: str = "invented"


def digest_of(text: str) -> str:
    """A stand-in digest."""
    return hashlib.sha256(text.encode()).hexdigest()


RING = RingConfig(
    num_stages=4,
    layer_plan=[(0, 7), (7, 15), (15, 23), (23, 30)],
    threads_per_stage=1,
    profile="wan-275",
    profile_digest=digest_of("profile"),
    suite="plain",
    kernel="invented",
)
BUILD = Build(
    commit=None,
    dirty=None,
    source_digest=digest_of("source"),
    engine_digest=digest_of("engine"),
    environment_digest=digest_of("environment"),
)
MODEL = ModelFacts(
    name="invented",
    model_digest=digest_of("model"),
    tokenizer_digest=digest_of("tokenizer"),
    drafter_digest=None,
    num_layers=30,
)


def job_config(arm: str, max_new_tokens: int) -> JobConfig:
    """The levers of one arm."""
    base, high, depth = ARM_LEVERS[arm]
    return JobConfig(
        arm=arm,
        policy="two-state" if high != base else "fixed-k",
        policy_params={},
        draft_len=base,
        depth=depth,
        drafter="ngram" if base else "none",
        min_match_len=3,
        prefill_chunk=256,
        max_new_tokens=max_new_tokens,
        numeric_config="f32",
        attestation=False,
        keepwarm_ms=0,
    )


def planned_rows(recipe: Recipe) -> list[PlannedJobRow]:
    """Each block a reference job, then every arm; the order reversed on alternate blocks."""
    rows: list[PlannedJobRow] = []
    for rep in range(recipe.reps):
        for cell_idx, cell in enumerate(recipe.cells):
            block_idx = rep * len(recipe.cells) + cell_idx
            arms = recipe.arms if block_idx % 2 == 0 else recipe.arms[::-1]
            for order_idx, arm in enumerate(("ar", *arms)):
                rows.append(
                    PlannedJobRow(
                        job_idx=len(rows),
                        rep=rep,
                        cell=cell,
                        block_idx=block_idx,
                        order_idx=order_idx,
                        arm=arm,
                        role="measured" if order_idx else "reference",
                        max_new_tokens=recipe.output_len,
                    )
                )
    return rows


def make_plan(recipe: Recipe) -> Plan:
    """The plan of an invented experiment on an invented ring."""
    return Plan(
        experiment=recipe.experiment,
        created="2026-01-01T00:00:00Z",
        seed="00",
        base_arm="chain-k8",
        null_pairs={"null-ar": "ar", "null": "chain-k8"},
        arms={arm: job_config(arm, recipe.output_len) for arm in recipe.arms},
        cells=[
            CellRow(
                name=cell,
                kind=CELLS[cell][0],
                max_new_tokens=recipe.output_len,
                prompt_digest=digest_of(cell),
            )
            for cell in recipe.cells
        ],
        reps=recipe.reps,
        ring=RING,
        build=BUILD,
        model=MODEL,
        hypotheses=["none: invented"],
        alpha="0.05",
        exclusions=[],
        jobs=planned_rows(recipe),
    )


def prefill_frame() -> FrameRow:
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
        received_bytes=100,
        spans=[],
    )


def make_receipt(
    plan: Plan, plan_digest: str, row: PlannedJobRow, reference_id: str | None, spread: float
) -> Receipt:
    """One finished job; drafts are right or wrong by position, the same in every arm and rep."""
    text = random.Random(f"text {row.cell}")
    output_ids = [text.randrange(1000) for _ in range(row.max_new_tokens)]
    right = [text.random() < CELLS[row.cell][1] for _ in output_ids]
    base, high, depth = ARM_LEVERS[row.arm]
    slowness = random.Random(f"slowness {row.job_idx}").gauss(1.0, spread)
    ring = PretendedRing(PROMPT_LEN, right, (base, high), depth, slowness)
    frames, last_ns = ring.play(PREFILL_NS)
    config = job_config(row.arm, row.max_new_tokens)
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
        stages=[],
        ring=plan.ring,
        links=[],
        host={"invented": 1},
        timing=timing_until(last_ns),
        prompt_digest=digest_of(row.cell),
        prompt_ids=list(range(PROMPT_LEN)),
        output_ids=output_ids,
        finish_reason="length",
        lossless=lossless,
        counters=counters_of(frames),
        frames=[prefill_frame(), *frames],
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


def timing_until(last_ns: int) -> Timing:
    """The times of a job whose last token was committed at `last_ns`."""
    return Timing(
        wall_start="2026-01-01T00:00:00Z",
        prefill_sent_ns=1_000_000,
        first_commit_ns=PREFILL_NS,
        last_commit_ns=last_ns,
        end_ns=last_ns + 1_000_000,
        draft_ns=0,
    )


def counters_of(frames: list[FrameRow]) -> Counters:
    """Counters that agree with the frames."""
    stale = [frame for frame in frames if frame.outcome == "stale"]
    return Counters(
        stale_replies=0,
        stale_dropped=0,
        stale_computed=len(stale),
        uncorrelated=0,
        discarded_len=sum(frame.sent_len for frame in stale),
        frames_on_wire=5 * (len(frames) + 1),
    )


def build_experiment(folder: Path, identity: Identity, recipe: Recipe | None = None) -> Path:
    """Write plan and receipts; returns the folder."""
    recipe = recipe or Recipe()
    (folder / "receipts").mkdir(parents=True)
    plan = make_plan(recipe)
    plan_digest = write_signed(folder / "plan.json", plan, identity)
    (folder / "log.jsonl").write_text("")
    reference_id = None
    for row in plan.jobs:
        is_reference = row.role == "reference"
        previous = None if is_reference else reference_id
        receipt = make_receipt(plan, plan_digest, row, previous, recipe.spread)
        path = receipt_path(folder, row.job_idx)
        write_signed(path, receipt, identity)
        if is_reference:
            reference_id = receipt_id(path.read_bytes())
    return folder


def receipt_path(folder: Path, job_idx: int) -> Path:
    """Where a job's receipt lies."""
    return folder / "receipts" / f"{job_idx:04d}.json"


def make_identity(home: Path) -> Identity:
    """A throw-away key whose public half lies in `home/keys`."""
    return Identity.load_or_create(home / "keys" / "harness.key")
