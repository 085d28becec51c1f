"""Rules of the acceptance study's hypotheses, and words for what its tests found.

Guarantees: a rule takes its results from `analysis.study`; "not rejected" never stands without the
smallest effect that the test had power to find. Must never know files or axes.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analysis.iid import IidResult, NotApplicable
from analysis.iid_power import EFFECTS
from analysis.load import Experiment
from analysis.power import STUDY_ARM
from analysis.rule_parts import FAILS, HOLDS, NOT_EVALUATED, UNJUDGED, Outcome
from analysis.study import (
    LEAST_POWER,
    StudyResult,
    greatest_power,
    smallest_detectable,
    study_result,
)

MEANINGS: Mapping[str, str] = {  # of a rejection
    "depth_rise": "drafts deep in a round are accepted more often, as when rounds differ",
    "serial_product": "long rounds follow long rounds",
    "stream_runs": "acceptances, and refusals, clump",
    "full_excess": "more full rounds than one α a request gives",
    "between_requests": "prompts differ in α",
    "context_e": "one α does not fit: depth, last round or prompt shifts it",
}
UNITS: Mapping[str, str] = {  # of an effect, by family
    "within rounds": "{:g} logit a draft",
    "between rounds": "± {:g} logit",
    "between prompts": "ρ = {:g}",
}


def independence_rejected(experiment: Experiment) -> Outcome:
    """acceptance H1: Holm's procedure rejects at least one applicable test."""
    if STUDY_ARM not in experiment.measured_arms() or not experiment.measured():
        return UNJUDGED
    result = study_result(experiment, STUDY_ARM)
    if not result.holm:
        return UNJUDGED
    shown = ", ".join(f"{test} {p_words(result.results[test])}" for test in result.holm)
    count = f"{len(result.rejected)} of {len(result.holm)} tests reject: p {shown}"
    if result.rejected:
        return count, HOLDS
    # A test that could not have found anything says nothing against the hypothesis.
    able = [test for test in result.holm if _is_able(result, test)]
    return count, FAILS if able else NOT_EVALUATED


def _is_able(result: StudyResult, test: str) -> bool:
    """Whether some pre-registered effect would have been found with power 0.8."""
    if result.power is None:
        return False
    return any(smallest_detectable(result.power, test, family) is not None for family in EFFECTS)


def match_predicts(experiment: Experiment) -> Outcome:
    """acceptance H2: match_e rejects at the plan's level with fillers and without."""
    if STUDY_ARM not in experiment.measured_arms() or not experiment.measured():
        return UNJUDGED
    result = study_result(experiment, STUDY_ARM)
    found = {name: row for name, row in result.match.items() if isinstance(row, IidResult)}
    if len(found) < len(result.match):
        return UNJUDGED
    shown = ", ".join(f"p {p_words(row)} {name}" for name, row in found.items())
    holds = all(row.p <= result.level for row in found.values())
    return shown, HOLDS if holds else FAILS


def p_words(found: IidResult | NotApplicable) -> str:
    """A p-value in two digits; below what its method resolves, as a bound."""
    if isinstance(found, NotApplicable):
        return "–"
    printed = found.as_json()["p"]
    if isinstance(printed, str):
        return printed
    return f"{found.p:.2g}" if found.p >= 1e-99 else "< 1e-99"


def evidence_words(evidence: float) -> str:
    """An e-value in three digits; the largest that a float holds stands for anything above."""
    return "> 1e307" if evidence > 1e307 else f"{evidence:.3g}"


def detectable_words(power: pd.DataFrame | None, test: str, family: str) -> str:
    """The smallest effect of a family that a test finds with power 0.8, in its unit."""
    if power is None:
        return "–"
    effect = smallest_detectable(power, test, family)
    return "none" if effect is None else UNITS[family].format(effect)


def verdict_in_words(result: StudyResult, test: str) -> str:
    """What a test says, in words that its power allows."""
    found = result.results[test]
    if isinstance(found, NotApplicable):
        return f"not applicable: {found.reason}"
    if result.holm[test].rejected:
        return f"rejected: {MEANINGS[test]}"
    if result.power is None:
        return "no verdict: its power was not simulated for these requests"
    greatest = greatest_power(result.power, test)
    if greatest < LEAST_POWER:
        return "uninformative: power below 0.5 at every pre-registered effect"
    known = [
        f"{UNITS[family].format(effect)} {family}"
        for family in EFFECTS
        if (effect := smallest_detectable(result.power, test, family)) is not None
    ]
    if not known:
        return f"no verdict: power {greatest:.2f} at best, below 0.8 at every effect"
    return f"not rejected; would have found {' or '.join(known)}"
