"""Rules of hypotheses about one arm divided by another that has no null arm of its own.

Guarantees: ratios are paired within blocks; what noise is says the null band of an arm that the
plan repeats, and without that band, or with too few blocks on a cell, nothing is judged. Must never
know files or axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.effects import (
    ALL_CELLS,
    FASTER,
    MIN_REPS,
    RATIO_COLUMNS,
    SLOWER,
    NullBand,
    geometric_mean_ratio,
    null_band,
    paired_log_ratios,
    ratio_table,
    verdict,
)
from analysis.load import Experiment, jobs_frame
from analysis.rule_parts import (
    HOLDS,
    NOT_EVALUATED,
    UNDECIDED,
    UNJUDGED,
    Outcome,
    Rule,
    against,
    by_cell,
    for_each,
    interval_words,
    timed,
)

METRIC = "decode_tok_per_s"


@dataclass(frozen=True, slots=True)
class Pair:
    """An arm, what it is divided by, and the arm whose null arm shows what noise is."""

    arm: str
    base: str
    null_of: str

    def judged(self, experiment: Experiment) -> tuple[pd.DataFrame, NullBand | None]:
        """Ratios by cell, `effects.RATIO_COLUMNS`: of cells with enough blocks, beside the band.

        No row, and no band, where it is not established.
        """
        jobs, plan = jobs_frame(experiment), experiment.plan
        nothing = pd.DataFrame(columns=list(RATIO_COLUMNS)), None
        if jobs.empty:
            return nothing
        band = null_band(jobs, plan, METRIC, self.null_of)
        if not band.is_established:
            return nothing
        ratios = ratio_table(jobs, plan, self.base, [self.arm], METRIC)[0]
        ratios = ratios[(ratios["cell"] != ALL_CELLS) & (ratios["blocks"] >= MIN_REPS)]
        ends = zip(ratios["ratio"], ratios["low"], ratios["high"], strict=True)
        return ratios.assign(verdict=[verdict(*numbers, band) for numbers in ends]), band


def at_least(pair: Pair, claim: float, *cells: str) -> Rule:
    """On each of these cells (none named: on all of the plan) the pair's interval reaches a claim.

    One interval wholly below refutes it; one that holds the claim leaves it undecided.
    """

    @timed
    def judge(experiment: Experiment) -> Outcome:
        rows, _ = _chosen(pair, experiment, cells)
        wanted = _wanted(pair, experiment, cells)
        measured, outcome = for_each(rows, wanted, rows["high"] < claim, by_cell(rows))
        is_open = outcome == HOLDS and bool((rows["low"] < claim).any())
        return measured, UNDECIDED if is_open else outcome

    return judge


def mean_at_least(pair: Pair, claim: float, *cells: str) -> Rule:
    """The geometric mean of the pair's ratios over these cells, all of them, reaches a claim."""

    @timed
    def judge(experiment: Experiment) -> Outcome:
        rows, _ = _chosen(pair, experiment, cells)
        never = pd.Series(False, index=rows.index)
        shown, outcome = for_each(rows, _wanted(pair, experiment, cells), never, by_cell(rows))
        if outcome == NOT_EVALUATED:  # a mean over the cells that happen to be left is no mean
            return shown, outcome
        pairs = paired_log_ratios(jobs_frame(experiment), METRIC, pair.arm, pair.base)
        chosen = pairs[pairs["cell"].isin(cells)]
        seed_text = f"{METRIC} {pair.arm} {pair.base} {' '.join(cells)}"
        ratio, low, high = geometric_mean_ratio(chosen, seed_text)
        mean = interval_words(pd.Series({"ratio": ratio, "low": low, "high": high}))
        return f"{mean}: {shown}", against(low, high, claim)

    return judge


def over_all_cells(pair: Pair, claim: float) -> Rule:
    """`mean_at_least` over the cells of the plan, whichever they are."""

    def judge(experiment: Experiment) -> Outcome:
        cells = [cell.name for cell in experiment.plan.cells]
        return mean_at_least(pair, claim, *cells)(experiment)

    return judge


def never_slower_than(pair: Pair, *cells: str) -> Rule:
    """On no cell the pair's whole interval lies below the null band."""
    return _never(pair, (SLOWER,), cells)


def no_difference(pair: Pair, *cells: str) -> Rule:
    """On no cell the pair's whole interval lies on either side of the null band."""
    return _never(pair, (FASTER, SLOWER), cells)


def _never(pair: Pair, verdicts: Sequence[str], cells: Sequence[str]) -> Rule:
    @timed
    def judge(experiment: Experiment) -> Outcome:
        rows, band = _chosen(pair, experiment, cells)
        if band is None:
            return UNJUDGED
        refutes = rows["verdict"].isin(verdicts)
        measured = f"{by_cell(rows)}; null band {band.low:.3f} … {band.high:.3f}"
        return for_each(rows, _wanted(pair, experiment, cells), refutes, measured)

    return judge


def _chosen(
    pair: Pair, experiment: Experiment, cells: Sequence[str]
) -> tuple[pd.DataFrame, NullBand | None]:
    rows, band = pair.judged(experiment)
    return (rows[rows["cell"].isin(cells)] if cells else rows), band


def _wanted(pair: Pair, experiment: Experiment, cells: Sequence[str]) -> list[tuple[str, str]]:
    """A cell that is named and not in the plan is wanted too: its claim stays open."""
    names = cells or [cell.name for cell in experiment.plan.cells]
    return [(pair.arm, name) for name in names]
