"""Test only: plans of invented experiments, one recipe for each kind.

Guarantees: whole blocks, references first, null arms beside their bases; the same recipe gives the
same plan. Must never be used outside tests: nothing here will run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.schema import (
    Build,
    CellRow,
    JobConfig,
    ModelFacts,
    Plan,
    PlannedJobRow,
)
from bench.schema_levers import SamplingRow
from tests.analysis.wire_builder import (
    FRAME_ARMS,
    NUM_LAYERS,
    RING,
    config_of,
    digest_of,
    ring_of,
)

# arm -> (k, k after a fully accepted frame, depth)
ARM_LEVERS = {
    "ar": (0, 0, 1),
    "null-ar": (0, 0, 1),
    "chain-k8": (8, 8, 4),
    "null": (8, 8, 4),
    "chain-k16": (16, 16, 4),
    "two-state": (8, 16, 4),
    "chain-m3": (8, 8, 4),
    "chain-d1": (8, 8, 1),
    "chain-d2": (8, 8, 2),
    "chain-d8": (8, 8, 8),
    "ar-attest": (0, 0, 1),
    "chain-attest": (8, 8, 4),
    "ar-warm": (0, 0, 1),
    "chain-warm": (8, 8, 4),
    "chain-k32": (32, 32, 4),
    "chain-k64": (64, 64, 4),
    **dict.fromkeys(("planner", "clairvoyant", "oracle"), (16, 16, 8)),
    "accept-k8": (8, 8, 1),
    **dict.fromkeys(("seal-none", "null-seal", "seal-chacha", "seal-aes"), (8, 8, 4)),
    **dict.fromkeys(("ar-fp8", "ar-int4"), (0, 0, 1)),
    **dict.fromkeys(("chain-fp8", "chain-int4"), (8, 8, 4)),
    **dict.fromkeys(FRAME_ARMS, (0, 0, 1)),
}
DECODE_ARMS = ("ar", "null-ar", "chain-k8", "null", "chain-k16", "two-state")
NULL_PAIRS = {"null-ar": "ar", "null": "chain-k8", "null-seal": "seal-none"}
REFERENCE_ARMS = {"f32": "ar", "fp8": "ar-fp8", "int4": "ar-int4"}
CELLS = {  # name -> (kind, invented acceptance)
    "verbatim-copy": ("draftable", 0.985),
    "verbatim-long": ("draftable", 0.985),
    "code-edit": ("draftable", 0.95),
    "quote": ("draftable", 0.9),
    "mixed": ("draftable", 0.8),
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
    arms: tuple[str, ...] = DECODE_ARMS
    reps: int = 4
    output_len: int = 40
    spread: float = 0.01  # of the invented slowness
    experiment: str = "invented"
    base_arm: str = "chain-k8"  # "": nothing is timed
    hypotheses: tuple[str, ...] = ("none: invented",)
    slowness: Mapping[str, float] = field(default_factory=dict)  # of some arms; others: 1

    @property
    def references(self) -> list[str]:
        """The reference arm of each numeric configuration."""
        return list(dict.fromkeys(REFERENCE_ARMS[config_of(arm)] for arm in self.arms))


PLANNER_CELLS = ("verbatim-long", "mixed", "chat")
RECIPES = {
    "decode": Recipe(experiment="decode", cells=("verbatim-long", "chat")),
    "planner-eu": Recipe(
        experiment="planner-eu",
        cells=PLANNER_CELLS,
        arms=("ar", "null-ar", "chain-k8", "null", "two-state", "planner", "clairvoyant"),
        slowness={"planner": 0.9, "clairvoyant": 0.9},
    ),
    "two-state": Recipe(
        experiment="two-state",
        cells=("verbatim-long", "summary", "reasoning", "chat"),
        arms=("ar", "null-ar", "chain-k8", "null", "two-state"),
    ),
    "acceptance": Recipe(
        experiment="acceptance", arms=("accept-k8",), base_arm="", reps=1, output_len=24
    ),
    "depth": Recipe(
        experiment="depth",
        cells=("verbatim-copy", "chat"),
        arms=("ar", "null-ar", "chain-k8", "null", "chain-d1", "chain-d2", "chain-d8"),
    ),
    "attest": Recipe(
        experiment="attest",
        arms=("ar", "null-ar", "ar-attest", "chain-k8", "null", "chain-attest"),
    ),
    "keepwarm": Recipe(
        experiment="keepwarm",
        cells=("verbatim-copy", "json-extract", "summary"),
        arms=("ar", "null-ar", "ar-warm", "chain-k8", "null", "chain-warm"),
        slowness={"chain-warm": 0.6},
    ),
    "seal": Recipe(
        experiment="seal",
        arms=("seal-none", "null-seal", "seal-chacha", "seal-aes"),
        base_arm="seal-none",
        slowness={"seal-aes": 1.2},
    ),
    "fp8": Recipe(
        experiment="fp8",
        arms=("ar", "null-ar", "ar-fp8", "chain-k8", "null", "chain-fp8"),
    ),
    "int4": Recipe(
        experiment="int4",
        arms=("ar", "null-ar", "ar-int4", "chain-k8", "null", "chain-int4"),
        slowness={"ar-int4": 0.8, "chain-int4": 0.8},
    ),
    "frames": Recipe(
        experiment="frames",
        arms=FRAME_ARMS,
        base_arm="",
        cells=("chat",),
        reps=1,
        output_len=16,
    ),
}


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
    num_layers=NUM_LAYERS,
)


def job_config(arm: str, max_new_tokens: int) -> JobConfig:
    """The levers of one arm."""
    base, high, depth = ARM_LEVERS[arm]
    return JobConfig(
        arm=arm,
        policy="two-state" if high != base else "fixed-k",
        policy_params={"high": high, "up": high} if high != base else {},
        draft_len=base,
        depth=depth,
        drafter="ngram" if base else "none",
        min_match_len=3,
        prefill_chunk=256,
        max_new_tokens=max_new_tokens,
        numeric_config=config_of(arm),
        attestation=False,
        keepwarm_ms=0,
        drafter_params={},
        tap_layers=[],
        tap_wire="fp8",
        reply="logits" if arm.startswith("logits") else "ids",
        sampling=SamplingRow(temperature="0", top_k=0, top_p="1", seed="00"),
    )


def planned_rows(recipe: Recipe) -> list[PlannedJobRow]:
    """Each block its reference jobs, then every arm; the order reversed on alternate blocks."""
    rows: list[PlannedJobRow] = []
    for rep in range(recipe.reps):
        for cell_idx, cell in enumerate(recipe.cells):
            block_idx = rep * len(recipe.cells) + cell_idx
            arms = recipe.arms if block_idx % 2 == 0 else recipe.arms[::-1]
            jobs = [("reference", arm) for arm in recipe.references]
            jobs += [("measured", arm) for arm in arms]
            for order_idx, (role, arm) in enumerate(jobs):
                rows.append(
                    PlannedJobRow(
                        job_idx=len(rows),
                        rep=rep,
                        cell=cell,
                        block_idx=block_idx,
                        order_idx=order_idx,
                        arm=arm,
                        role=role,
                        max_new_tokens=recipe.output_len,
                    )
                )
    return rows


def make_plan(recipe: Recipe) -> Plan:
    """The plan of an invented experiment on an invented ring."""
    nulls = {null: arm for null, arm in NULL_PAIRS.items() if null in recipe.arms}
    arms = dict.fromkeys((*recipe.arms, *recipe.references))
    rings = {arm: ring_of(arm) for arm in arms}
    return Plan(
        experiment=recipe.experiment,
        created="2026-01-01T00:00:00Z",
        seed="00",
        base_arm=recipe.base_arm,
        null_pairs=nulls,
        arms={arm: job_config(arm, recipe.output_len) for arm in arms},
        cells=[
            CellRow(
                name=cell,
                kind=CELLS[cell][0],
                max_new_tokens=recipe.output_len,
                prompt_digest=digest_of(cell),
                group=cell,
            )
            for cell in recipe.cells
        ],
        reps=recipe.reps,
        ring=RING,
        build=BUILD,
        model=MODEL,
        hypotheses=list(recipe.hypotheses),
        alpha="0.05",
        exclusions=[],
        jobs=planned_rows(recipe),
        arm_rings={arm: ring for arm, ring in rings.items() if ring != RING},
        stopping="All planned jobs.",
    )
