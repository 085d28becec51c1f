"""Which arms an experiment sets against which, each with its own null band.

Guarantees: tables, figures and hypotheses of one experiment compare the same pairs; an arm is set
against one that differs from it in the experiment's lever alone. A new experiment of this kind is
one entry. Must never know files or axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.effects import NullBand, ratio_table
from analysis.load import Experiment, jobs_frame


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms and what they are divided by."""

    base: str
    arms: tuple[str, ...]


COMPARISONS: Mapping[str, tuple[Comparison, ...]] = {
    "seal": (Comparison("seal-none", ("seal-chacha", "seal-aes")),),
    "fp8": (Comparison("ar", ("ar-fp8",)), Comparison("chain-k8", ("chain-fp8",))),
}


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """What came of one comparison."""

    base: str
    arms: tuple[str, ...]  # the null arm first, then those that are compared
    ratios: pd.DataFrame  # of `effects.RATIO_COLUMNS`
    band: NullBand


def compare(experiment: Experiment) -> list[Compared]:
    """Every comparison of the experiment of which anything was measured."""
    jobs, plan = jobs_frame(experiment), experiment.plan
    measured = experiment.measured_arms()
    found = []
    for comparison in COMPARISONS[plan.experiment]:
        if jobs.empty or comparison.base not in measured:
            continue
        nulls = [null for null, repeated in plan.null_pairs.items() if repeated == comparison.base]
        arms = tuple(arm for arm in (*nulls, *comparison.arms) if arm in measured)
        ratios, band = ratio_table(jobs, plan, comparison.base, list(arms))
        found.append(Compared(comparison.base, arms, ratios, band))
    return found
