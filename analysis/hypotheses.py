"""What the plan said before the first job, and what came of it.

Guarantees: the rules are those of the experiment's hypotheses, word for word in its signed plan; a
rule is applied to the same ratios and bands that the tables print. An experiment without rules here
gets its hypotheses printed as not evaluated. Must never know files or axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from analysis.effects import ALL_CELLS, FASTER, MIN_REPS, SLOWER, ratio_table
from analysis.load import Experiment, jobs_frame

NOT_EVALUATED = "not evaluated"
HOLDS, FAILS = "holds", "does not hold"
Outcome = tuple[str, str]  # what was measured, the outcome


def outcomes(experiment: Experiment) -> pd.DataFrame:
    """Columns hypothesis, measured, outcome; one row per hypothesis of the plan."""
    rules = RULES.get(experiment.plan.experiment, {})
    rows = []
    for hypothesis in experiment.plan.hypotheses:
        rule = rules.get(hypothesis.partition(":")[0])
        enough = experiment.plan.reps >= MIN_REPS
        measured, outcome = rule(experiment) if rule and enough else ("–", NOT_EVALUATED)
        rows.append((hypothesis, measured, outcome))
    return pd.DataFrame(rows, columns=["hypothesis", "measured", "outcome"])


def _ratios(experiment: Experiment, base: str) -> pd.DataFrame:
    arms = experiment.measured_arms()
    return ratio_table(jobs_frame(experiment), experiment.plan, base, arms)[0]


def _verbatim_gain(experiment: Experiment) -> Outcome:
    """H1: the interval's low end is the claim's witness, in every verbatim cell."""
    ratios = _ratios(experiment, "ar")
    chosen = ratios[(ratios["arm"] == "chain-k8") & ratios["cell"].str.startswith("verbatim")]
    shown = [f"{row.cell} {row.ratio:.2f} [{row.low:.2f}–{row.high:.2f}]" for row in _rows(chosen)]
    return "; ".join(shown), HOLDS if len(chosen) and bool((chosen["low"] >= 5).all()) else FAILS


def _never_slower(experiment: Experiment) -> Outcome:
    """H2: no arm's whole interval lies below the band of `null-ar` / `ar`, on any cell."""
    ratios = _ratios(experiment, "ar")
    slower = ratios[(ratios["verdict"] == SLOWER) & (ratios["cell"] != ALL_CELLS)]
    shown = [f"{row.arm} on {row.cell} {row.ratio:.3f}" for row in _rows(slower)]
    return "; ".join(shown) or "none slower", FAILS if shown else HOLDS


def _two_state_gain(experiment: Experiment) -> Outcome:
    """H3: the verdict of the table against chain-k8."""
    ratios = _ratios(experiment, "chain-k8")
    chosen = ratios[(ratios["arm"] == "two-state") & (ratios["cell"] == "verbatim-long")]
    shown = [f"{row.ratio:.3f} [{row.low:.3f}–{row.high:.3f}]" for row in _rows(chosen)]
    return "; ".join(shown), HOLDS if list(chosen["verdict"]) == [FASTER] else FAILS


def _lossless(experiment: Experiment) -> Outcome:
    """H4: every planned job, measured or reference, ended without a differing id."""
    good = [
        receipt
        for receipt in experiment.receipts
        if receipt.status == "ok" and receipt.lossless.verdict in ("identical", "reference")
    ]
    num_planned = len(experiment.plan.jobs)
    return f"{len(good)} of {num_planned} jobs", HOLDS if len(good) == num_planned else FAILS


def _rows(frame: pd.DataFrame) -> list[pd.Series]:
    return [row for _, row in frame.iterrows()]


RULES: Mapping[str, Mapping[str, Callable[[Experiment], Outcome]]] = {
    "decode": {
        "H1": _verbatim_gain,
        "H2": _never_slower,
        "H3": _two_state_gain,
        "H4": _lossless,
    }
}
