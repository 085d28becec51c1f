"""The acceptance study of one arm: requests, data rule, tests, Holm, power.

Guarantees: every table, figure, number and rule about independence takes its results from here, so
that they cannot disagree; draws are seeded by the data. Must never know files of its own, axes or
words.

Source: DESIGN section 14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from analysis.iid import HolmRow, IidResult, NotApplicable, Study, holm, match_e, run_tests
from analysis.iid_evidence import MATCH_STARTS
from analysis.load import Experiment
from analysis.power import (
    POWER_NAME,
    STUDY_EXPERIMENT,
    power_folder,
    power_inputs,
    read_result,
)
from analysis.requests import Request, requests_of, study_of
from engine.errors import ConfigError

WANTED_POWER, LEAST_POWER = 0.8, 0.5  # to be named, to be informative


@dataclass(frozen=True, slots=True, eq=False)
class StudyResult:
    """What the tests of one arm found.

    Attributes:
        requests: those that decoded to their end; what an error ended enters `context_e` only.
        holm: of the applicable tests, at the plan's level.
        match: `match_e` over all rounds, and over those whose drafter matched something.
        power: rows of `analysis.power` made from exactly these requests; None: not simulated.
    """

    requests: list[Request]
    study: Study
    results: Mapping[str, IidResult | NotApplicable]
    holm: Mapping[str, HolmRow]
    match: Mapping[str, IidResult | NotApplicable]
    level: float
    power: pd.DataFrame | None

    @property
    def rejected(self) -> list[str]:
        """Tests that Holm's procedure rejects."""
        return [test for test, row in self.holm.items() if row.rejected]


@lru_cache(maxsize=8)
def study_result(experiment: Experiment, arm: str) -> StudyResult:
    """Run every test of an arm's pooled study.

    Raises:
        ConfigError: the plan measures no such arm.
        ReceiptError: a request has fewer bits than the data rule asks for.
    """
    requests = requests_of(experiment, arm)
    study = study_of(requests, experiment.plan.arms[arm])
    results = run_tests(study)
    p_values = {name: found.p for name, found in results.items() if isinstance(found, IidResult)}
    level = float(experiment.plan.alpha)
    return StudyResult(
        requests=[request for request in requests if request.is_whole],
        study=study,
        results=results,
        holm=holm(p_values, level),
        match=match_evidence([request for request in requests if request.is_whole]),
        level=level,
        power=_power(experiment, requests, study, level / max(1, len(p_values))),
    )


def match_evidence(requests: Sequence[Request]) -> dict[str, IidResult | NotApplicable]:
    """Does match length predict acceptance: with the rounds that matched nothing, and without."""
    matched = [[row for row in request.rounds if row[2]] for request in requests]  # 0: fillers
    return {
        "with fillers": match_e([request.rounds for request in requests]),
        "without fillers": match_e(matched),
    }


def group_results(
    experiment: Experiment, arm: str
) -> dict[str, Mapping[str, IidResult | NotApplicable]]:
    """Every test on each group of prompts alone: exploratory."""
    requests = requests_of(experiment, arm)
    groups = dict.fromkeys(request.group for request in requests)
    levers = experiment.plan.arms[arm]
    return {
        group: run_tests(study_of([r for r in requests if r.group == group], levers))
        for group in groups
    }


def match_context(match_len: int) -> str:
    """The context of `match_e` that a match length belongs to, in words."""
    idx = sum(match_len >= start for start in MATCH_STARTS) - 1
    start = MATCH_STARTS[idx]
    if idx + 1 == len(MATCH_STARTS):
        return f"≥ {start}"
    last = MATCH_STARTS[idx + 1] - 1
    return str(start) if last == start else f"{start}–{last}"


MATCH_CONTEXTS = tuple(match_context(start) for start in MATCH_STARTS)


def smallest_detectable(power: pd.DataFrame, test: str, family: str) -> float | None:
    """The smallest pre-registered effect from which on a test finds all with power ≥ 0.8."""
    rows = power[(power["test"] == test) & (power["family"] == family) & (power["effect"] > 0)]
    smallest = None
    for row in rows.sort_values("effect", ascending=False).itertuples():
        if row.power < WANTED_POWER:
            break
        smallest = float(row.effect)
    return smallest


def greatest_power(power: pd.DataFrame, test: str) -> float:
    """The greatest power of a test at any pre-registered effect."""
    return float(power[(power["test"] == test) & (power["effect"] > 0)]["power"].max())


def _power(
    experiment: Experiment, requests: Sequence[Request], study: Study, entry_level: float
) -> pd.DataFrame | None:
    """Simulations of exactly these requests; None if k varies, or others' were not simulated.

    Raises:
        ConfigError: the committed study's were made from something else.
    """
    is_ours = experiment.is_committed and experiment.plan.experiment == STUDY_EXPERIMENT
    try:
        inputs = power_inputs(requests, study, entry_level)
    except ConfigError:
        return None
    path = power_folder(is_ours) / POWER_NAME
    try:
        return read_result(path, inputs.digest())
    except ConfigError:
        if is_ours:
            raise
        return None
