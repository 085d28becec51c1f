"""Rules of hypotheses about speeds against a base arm that has a null arm of its own.

Guarantees: ratios, bands and verdicts are those that the tables print; what the null band cannot
judge is not judged. Must never know files or axes.
"""

from __future__ import annotations

import pandas as pd

from analysis.comparisons import Compared, compare
from analysis.effects import (
    ALL_CELLS,
    FASTER,
    NO_VERDICT,
    NULL_ARM,
    RATIO_COLUMNS,
    REACHES,
    SLOWER,
    ratio_table,
)
from analysis.load import Experiment, jobs_frame
from analysis.rule_parts import (
    FAILS,
    HOLDS,
    UNJUDGED,
    UNRESOLVED,
    Outcome,
    Rule,
    against,
    as_rows,
    by_cell,
    for_each,
    interval_words,
    timed,
)
from analysis.table_spec import rounded

MIN_VERBATIM_GAIN = 5
MIN_SEAL_RATIO = 0.98


def _ratios(experiment: Experiment, base: str) -> pd.DataFrame:
    """Every arm against `base` by cell; what has no ratio has no row."""
    jobs = jobs_frame(experiment)
    if jobs.empty:
        return pd.DataFrame(columns=list(RATIO_COLUMNS))
    ratios = ratio_table(jobs, experiment.plan, base, experiment.measured_arms())[0]
    return ratios[ratios["ratio"].notna() & (ratios["cell"] != ALL_CELLS)]


def _judged(ratios: pd.DataFrame) -> pd.DataFrame:
    """The rows that the null band judges: none of them without a band, nor the null arm's own."""
    return ratios[~ratios["verdict"].isin([NO_VERDICT, NULL_ARM])]


@timed
def verbatim_gain(experiment: Experiment) -> Outcome:
    """decode H1: the interval's low end is the claim's witness, in every verbatim cell."""
    arm = "chain-k8"
    cells = [cell.name for cell in experiment.plan.cells if cell.name.startswith("verbatim")]
    judged = _judged(_ratios(experiment, "ar"))
    chosen = judged[(judged["arm"] == arm) & judged["cell"].isin(cells)]
    refutes = chosen["low"] < MIN_VERBATIM_GAIN
    return for_each(chosen, [(arm, cell) for cell in cells], refutes, by_cell(chosen, 2))


@timed
def never_slower(experiment: Experiment) -> Outcome:
    """decode H2: no arm's whole interval lies below the band of `null-ar` / `ar`, on any cell."""
    judged = _judged(_ratios(experiment, "ar"))
    is_slower = judged["verdict"] == SLOWER
    shown = [
        f"{row['arm']} on {row['cell']} {rounded(float(row['ratio']), 3)}"
        for row in as_rows(judged[is_slower])
    ]
    nulls = {null for null, arm in experiment.plan.null_pairs.items() if arm == "ar"}
    wanted = [
        (arm, cell.name)
        for arm in experiment.measured_arms()
        for cell in experiment.plan.cells
        if arm not in {"ar", *nulls}
    ]
    return for_each(judged, wanted, is_slower, "; ".join(shown) or "none slower")


def verdict_on(arm: str, base: str, claimed: str, cell: str = ALL_CELLS) -> Rule:
    """The verdict of the table against `base`, on one cell or over all of them, is the claimed."""

    @timed
    def judge(experiment: Experiment) -> Outcome:
        jobs = jobs_frame(experiment)
        if jobs.empty:
            return UNJUDGED
        ratios, _ = ratio_table(jobs, experiment.plan, base, experiment.measured_arms())
        judged = _judged(ratios[ratios["ratio"].notna()])
        chosen = judged[(judged["arm"] == arm) & (judged["cell"] == cell)]
        if chosen.empty:
            return UNJUDGED
        row = chosen.iloc[0]
        outcomes = {claimed: HOLDS, REACHES: UNRESOLVED}
        return interval_words(row), outcomes.get(row["verdict"], FAILS)

    return judge


def faster_everywhere(arm: str, base: str) -> Rule:
    """int4 H2: the arm's verdict against `base` is "faster" on every planned cell."""

    @timed
    def judge(experiment: Experiment) -> Outcome:
        judged = _judged(_ratios(experiment, base))
        chosen = judged[judged["arm"] == arm]
        wanted = [(arm, cell.name) for cell in experiment.plan.cells]
        return for_each(chosen, wanted, chosen["verdict"] != FASTER, by_cell(chosen))

    return judge


def seal_speed(arm: str) -> Rule:
    """seal H1, H2: the interval over all cells lies at or above the claim, or below it."""

    @timed
    def judge(experiment: Experiment) -> Outcome:
        for compared in compare(experiment):
            overall = compared.ratios[compared.ratios["cell"] == ALL_CELLS]
            if arm not in set(_judged(overall)["arm"]):
                continue
            by_arm = overall.set_index("arm")
            shown = [
                f"{name} {interval_words(by_arm.loc[name])}" for name in (arm, *_nulls(compared))
            ]
            band = f"null band {compared.band.low:.3f} … {compared.band.high:.3f}"
            row = by_arm.loc[arm]
            return "; ".join([*shown, band]), against(row["low"], row["high"], MIN_SEAL_RATIO)
        return UNJUDGED

    return judge


def _nulls(compared: Compared) -> list[str]:
    return [] if compared.band.null_arm is None else [compared.band.null_arm]
