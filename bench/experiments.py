"""Experiments by name: which arms, on which cells, how often, and what was expected beforehand.

Guarantees: everything that a plan pre-registers is here, in words, before any job runs. Adding an
experiment is one entry. Must never know how a job runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bench.arms import (
    BASE_ARM,
    DECODE_ARMS,
    FP8_ARMS,
    FRAME_ARMS,
    INT4_ARMS,
    NULL_PAIRS,
    SEAL_ARMS,
)
from bench.cells import Cell, load_cells, quick_cells
from engine import defaults
from engine.errors import unknown_name


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of an experiment is run."""

    cells: Literal["all", "quick"] | tuple[str, ...]
    max_new_tokens: int | None  # None: each cell's own budget
    reps: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """A registry entry.

    Attributes:
        base_arm: what the null arm repeats; None: nothing is timed, so no null is needed, and
            whoever reads the receipts must compare no speed.
    """

    name: str
    arms: tuple[str, ...]
    base_arm: str | None
    null_pairs: Mapping[str, str]
    profile: str
    scales: Mapping[str, Scale]
    hypotheses: tuple[str, ...]
    alpha: str
    exclusions: tuple[str, ...]


_FAILED_JOBS = "Failed jobs and jobs of a block whose reference failed; each is listed."
_REFERENCES = "Reference jobs enter no speed."
_COUNTING = Scale(cells=("chat",), max_new_tokens=16, reps=1)

EXPERIMENTS: Mapping[str, Experiment] = {
    "decode": Experiment(
        name="decode",
        arms=tuple(DECODE_ARMS),
        base_arm=BASE_ARM,
        null_pairs=dict(NULL_PAIRS),
        profile=defaults.PROFILE,
        scales={
            "quick": Scale(cells="quick", max_new_tokens=32, reps=1),
            "full": Scale(cells="all", max_new_tokens=None, reps=4),
        },
        hypotheses=(
            "Primary metric: decode_tok_per_s, as paired log-ratios within a block.",
            "H1: chain-k8 decodes the verbatim cells at least 5 times as fast as ar.",
            "H2: no arm is slower than ar on any cell beyond the null band (null-ar against ar).",
            "H3: two-state is faster than chain-k8 on verbatim-long beyond the null band.",
            "H4: every job is lossless.",
        ),
        alpha="0.05",
        exclusions=(_FAILED_JOBS, _REFERENCES),
    ),
    "seal": Experiment(
        name="seal",
        arms=SEAL_ARMS,
        base_arm="seal-none",
        null_pairs=dict(NULL_PAIRS),
        profile="wan-275",
        scales={
            "quick": Scale(cells="quick", max_new_tokens=32, reps=1),
            "full": Scale(cells="quick", max_new_tokens=None, reps=6),
        },
        hypotheses=(
            "Primary metric: decode_tok_per_s, as paired log-ratios within a block to seal-none; "
            "the null band is that of null-seal.",
            "H1: over all cells, seal-chacha decodes at 0.98 or more of the speed of seal-none.",
            "H2: over all cells, seal-aes decodes at 0.98 or more of the speed of seal-none.",
            "H3: every job is lossless.",
        ),
        alpha="0.05",
        exclusions=(_FAILED_JOBS, _REFERENCES),
    ),
    "fp8": Experiment(
        name="fp8",
        arms=FP8_ARMS,
        base_arm=BASE_ARM,
        null_pairs=dict(NULL_PAIRS),
        profile="wan-275",
        scales={
            "quick": Scale(cells="quick", max_new_tokens=32, reps=1),
            "full": Scale(cells="all", max_new_tokens=None, reps=4),
        },
        hypotheses=(
            "Primary metric: output ids; decode_tok_per_s, as paired log-ratios, is reported.",
            "H1: chain-fp8 gives the ids of ar-fp8, one by one, on every cell.",
            "H2: ar-fp8 differs from ar on at least one cell; no fp8 job is judged against f32.",
            "H3: over all jobs, the hidden-state frames of chain-fp8 (what every stage but the "
            "last sends, headers and tags included) have for each position sent at most 0.27 of "
            "the bytes that those of chain-k8 have.",
        ),
        alpha="0.05",
        exclusions=(_FAILED_JOBS, _REFERENCES),
    ),
    "int4": Experiment(
        name="int4",
        arms=INT4_ARMS,
        base_arm=BASE_ARM,
        null_pairs=dict(NULL_PAIRS),
        profile="loopback",
        scales={
            "quick": Scale(cells="quick", max_new_tokens=32, reps=1),
            "full": Scale(cells="quick", max_new_tokens=None, reps=4),
        },
        hypotheses=(
            "Primary metric: decode_tok_per_s, as paired log-ratios within a block; output ids "
            "are compared within a numeric configuration only and may differ between f32 and int4.",
            "H1: chain-int4 gives the ids of ar-int4, one by one, on every cell.",
            "H2: ar-int4 is faster than ar beyond the null band (null-ar against ar) on every "
            "cell.",
            "H3: every job is lossless within its numeric configuration.",
        ),
        alpha="0.05",
        exclusions=(_FAILED_JOBS, _REFERENCES),
    ),
    "frames": Experiment(
        name="frames",
        arms=FRAME_ARMS,
        base_arm=None,
        null_pairs={},
        profile="loopback",
        scales={"quick": _COUNTING, "full": _COUNTING},
        hypotheses=(
            "Primary metric: counters.hops. Nothing is timed, so there is no null arm.",
            "H1: N stages write exactly N + 1 frames a traversal, for N = 1, 2, 3, 4, with ids "
            "and with logits.",
            "H2: every job is lossless.",
        ),
        alpha="0.05",
        exclusions=(_FAILED_JOBS,),
    ),
}


def get_experiment(name: str) -> Experiment:
    """Look an experiment up.

    Raises:
        ConfigError: unknown name; the valid ones are listed.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def get_scale(experiment: Experiment, name: str) -> Scale:
    """Look up how much to run.

    Raises:
        ConfigError: unknown name; the valid ones are listed.
    """
    if name not in experiment.scales:
        raise unknown_name(f"scale of {experiment.name}", name, experiment.scales)
    return experiment.scales[name]


def choose_cells(scale: Scale, names: tuple[str, ...] | None) -> list[Cell]:
    """The cells by name, or the scale's.

    Raises:
        ConfigError: unknown or repeated name.
    """
    if names is None and scale.cells == "quick":
        return list(quick_cells().values())
    if names is None and scale.cells != "all":
        names = scale.cells
    return list(load_cells(names).values())
