"""What rules of hypotheses share."""

from __future__ import annotations

import pytest

from analysis.hypotheses import RULES
from analysis.load import Experiment
from analysis.rule_parts import (
    FAILS,
    HOLDS,
    NOT_EVALUATED,
    UNDECIDED,
    UNJUDGED,
    Outcome,
    Rule,
    every,
)
from bench.experiments import EXPERIMENTS


def always(outcome: Outcome) -> Rule:
    return lambda experiment: outcome


@pytest.mark.parametrize(
    ("outcomes", "whole"),
    [
        ((HOLDS, HOLDS), HOLDS),
        ((HOLDS, UNDECIDED), UNDECIDED),
        ((UNDECIDED, NOT_EVALUATED), NOT_EVALUATED),
        ((HOLDS, NOT_EVALUATED, FAILS), FAILS),
    ],
)
def test_the_worst_decides(outcomes: tuple[str, ...], whole: str) -> None:
    """Catches a claim on all that holds because one of them does."""
    rules = {str(idx): always((f"seen {idx}", it)) for idx, it in enumerate(outcomes)}
    experiment: Experiment = object()  # type: ignore[assignment]
    measured, outcome = every(rules)(experiment)
    assert outcome == whole
    assert measured.startswith("0: seen 0; 1: seen 1")


def test_nothing_to_judge_is_said_once() -> None:
    experiment: Experiment = object()  # type: ignore[assignment]
    assert every({"a": always(UNJUDGED), "b": always(UNJUDGED)})(experiment) == UNJUDGED


@pytest.mark.parametrize("name", ["hybrid", "hybrid-eu"])
def test_every_claim_of_the_hybrid_has_a_rule(name: str) -> None:
    claims = {text.partition(":")[0] for text in EXPERIMENTS[name].hypotheses}
    assert {claim for claim in claims if claim.startswith("H")} == set(RULES[name])
