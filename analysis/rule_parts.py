"""What rules of hypotheses share: their outcomes, their gate and the words for what was measured.

Guarantees: one set of outcomes; a rule about speeds abstains where nothing is timed or repetitions
are too few. Must never know a hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps

import pandas as pd

from analysis.effects import MIN_REPS
from analysis.load import Experiment
from analysis.table_spec import rounded

NOT_EVALUATED = "not evaluated"
NOTHING_MEASURED = "–"
HOLDS, FAILS = "holds", "does not hold"
UNDECIDED = "undecided (interval holds the claim)"
UNRESOLVED = "undecided (interval reaches the null band)"
Outcome = tuple[str, str]  # what was measured, the outcome
_WORST_FIRST = (FAILS, NOT_EVALUATED, UNDECIDED, UNRESOLVED)
UNJUDGED: Outcome = (NOTHING_MEASURED, NOT_EVALUATED)
Rule = Callable[[Experiment], Outcome]


def timed(rule: Rule) -> Rule:
    """What is timed needs the repetitions of a null band; what is counted does not.

    The band itself is asked for where the ratios are.
    """

    @wraps(rule)
    def judge(experiment: Experiment) -> Outcome:
        if not experiment.is_timed or experiment.plan.reps < MIN_REPS:
            return UNJUDGED
        return rule(experiment)

    return judge


def for_each(
    judged: pd.DataFrame, wanted: Sequence[tuple[str, str]], refutes: pd.Series, measured: str
) -> Outcome:
    """Judge a claim on every (arm, cell) of `wanted`.

    One that refutes it decides; one without a verdict leaves it open, whatever the others say.
    """
    if judged.empty:
        return UNJUDGED
    if refutes.any():
        return measured, FAILS
    known = set(zip(judged["arm"], judged["cell"], strict=True))
    unknown = [f"{arm} on {cell}" for arm, cell in wanted if (arm, cell) not in known]
    if unknown:
        return f"{measured}; no verdict: {', '.join(unknown)}", NOT_EVALUATED
    return measured, HOLDS


def against(low: float, high: float, claim: float) -> str:
    """Judge an interval against a claim of at least so much."""
    if low >= claim:
        return HOLDS
    return FAILS if high < claim else UNDECIDED


def every(rules: Mapping[str, Rule]) -> Rule:
    """All of them, each named in what was measured; the worst of their outcomes decides."""

    def judge(experiment: Experiment) -> Outcome:
        found = {name: rule(experiment) for name, rule in rules.items()}
        outcomes = [outcome for _, outcome in found.values()]
        measured = "; ".join(f"{name}: {shown}" for name, (shown, _) in found.items())
        if set(outcomes) == {NOT_EVALUATED}:
            return UNJUDGED
        return measured, next((it for it in _WORST_FIRST if it in outcomes), HOLDS)

    return judge


def interval_words(row: pd.Series, decimals: int = 3) -> str:
    """A ratio and its interval."""
    ratio, low, high = (rounded(float(row[end]), decimals) for end in ("ratio", "low", "high"))
    return f"{ratio} [{low}–{high}]"


def by_cell(rows: pd.DataFrame, decimals: int = 3) -> str:
    """Each row's cell, ratio and interval."""
    return "; ".join(f"{row['cell']} {interval_words(row, decimals)}" for row in as_rows(rows))


def as_rows(frame: pd.DataFrame) -> list[pd.Series]:
    """The rows one by one."""
    return [row for _, row in frame.iterrows()]
