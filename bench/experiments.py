"""Experiments by name: which arms, on which cells, how often, and what was expected beforehand.

Guarantees: everything that a plan pre-registers is here, in words, before any job runs. Adding an
experiment is one entry. Must never know how a job runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.arms import BASE_ARM, DECODE_ARMS, NULL_PAIRS
from bench.cells import Cell, load_cells, quick_cells
from engine import defaults
from engine.errors import unknown_name


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of an experiment is run."""

    quick_cells_only: bool
    max_new_tokens: int | None  # None: each cell's own budget
    reps: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """A registry entry."""

    name: str
    arms: tuple[str, ...]
    base_arm: str
    null_pairs: Mapping[str, str]
    profile: str
    scales: Mapping[str, Scale]
    hypotheses: tuple[str, ...]
    alpha: str
    exclusions: tuple[str, ...]


EXPERIMENTS: Mapping[str, Experiment] = {
    "decode": Experiment(
        name="decode",
        arms=tuple(DECODE_ARMS),
        base_arm=BASE_ARM,
        null_pairs=dict(NULL_PAIRS),
        profile=defaults.PROFILE,
        scales={
            "quick": Scale(quick_cells_only=True, max_new_tokens=32, reps=1),
            "full": Scale(quick_cells_only=False, max_new_tokens=None, reps=4),
        },
        hypotheses=(
            "Primary metric: decode_tok_per_s, as paired log-ratios within a block.",
            "H1: chain-k8 decodes the verbatim cells at least 5 times as fast as ar.",
            "H2: no arm is slower than ar on any cell beyond the null band (null-ar against ar).",
            "H3: two-state is faster than chain-k8 on verbatim-long beyond the null band.",
            "H4: every job is lossless.",
        ),
        alpha="0.05",
        exclusions=(
            "Failed jobs and jobs of a block whose reference failed; each is listed.",
            "Reference jobs enter no speed.",
        ),
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
    if names is None and scale.quick_cells_only:
        return list(quick_cells().values())
    return list(load_cells(names).values())
