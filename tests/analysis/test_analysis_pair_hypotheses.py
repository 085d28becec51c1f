"""Hypotheses about one arm over another, of planner and two-state; and those that await a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analysis.hypotheses import outcomes
from analysis.load import Experiment
from analysis.rule_parts import FAILS, HOLDS, NOT_EVALUATED, NOTHING_MEASURED, UNDECIDED
from bench.experiments import EXPERIMENTS
from bench.schema import Receipt
from tests.analysis.altered import (
    as_failed,
    changed,
    load_invented,
    not_used,
    only_cells,
    outcome_of,
    slowed,
    with_plan,
    without_arms,
)
from tests.analysis.conftest import Invented

UNJUDGED = (NOTHING_MEASURED, NOT_EVALUATED)
CELLS = ("verbatim-long", "mixed", "chat")


@pytest.fixture
def planner(planner_invented: Invented) -> Experiment:
    return load_invented(planner_invented, *EXPERIMENTS["planner-eu"].hypotheses)


@pytest.fixture
def two_state(two_state_invented: Invented) -> Experiment:
    return load_invented(two_state_invented, *EXPERIMENTS["two-state"].hypotheses)


def slowed_on(factor: float, *cells: str) -> Callable[[Receipt], Receipt]:
    def slow(receipt: Receipt) -> Receipt:
        return slowed(factor)(receipt) if receipt.position.cell in cells else receipt

    return slow


def found(experiment: Experiment, name: str) -> tuple[str, str]:
    """What was measured and the outcome, of one hypothesis alone: every rule takes its time."""
    alone = with_plan(experiment, hypotheses=[f"{name}: this one."])
    row = outcomes(alone).iloc[0]
    return row["measured"], row["outcome"]


def ratio_on(experiment: Experiment, name: str, cell: str) -> float:
    """The ratio that a hypothesis prints for a cell."""
    shown = found(experiment, name)[0].replace(":", ";").split("; ")
    return float(next(words.strip() for words in shown if cell in words).split()[1])


def test_only_claims_are_judged(planner: Experiment, acceptance_invented: Invented) -> None:
    """Catches a null, a list of tests or a report line that is printed as borne out."""
    assert list(outcome_of(planner)) == ["Primary metric", "H1", "H2", "H3", "H4", "H5"]
    assert outcome_of(planner)["Primary metric"] == NOT_EVALUATED
    acceptance = load_invented(acceptance_invented, *EXPERIMENTS["acceptance"].hypotheses)
    names = [text.partition(":")[0] for text in acceptance.plan.hypotheses]
    assert {"H0", "H1", "H2", "H3"} < set(names)
    judged = {"H1": HOLDS, "H2": FAILS, "H3": HOLDS}  # two cells unlike; all matches of one length
    assert outcome_of(acceptance) == dict.fromkeys(names, NOT_EVALUATED) | judged
    assert found(changed(acceptance, "accept-k8", as_failed), "H3")[1] == FAILS


def test_the_planner_reaches_its_bound_on_every_cell_or_not(planner: Experiment) -> None:
    assert found(planner, "H1")[1] == HOLDS
    assert [ratio_on(planner, "H1", cell) for cell in CELLS] == pytest.approx([1, 1, 1], abs=0.03)
    slow = changed(planner, "planner", slowed_on(1.5, "chat"))
    assert found(slow, "H1")[1] == FAILS, "one cell refutes it"
    factor = ratio_on(planner, "H1", "mixed") / 0.95
    on_the_line = changed(planner, "planner", slowed_on(factor, "mixed"))
    assert found(on_the_line, "H1")[1] == UNDECIDED
    lost = not_used(planner, "planner", "mixed", reps=1)
    assert found(lost, "H1")[1] == NOT_EVALUATED
    assert found(lost, "H1")[0].endswith("; no verdict: planner on mixed")
    refuted = not_used(slow, "planner", "mixed", reps=1)
    assert found(refuted, "H1")[1] == FAILS, "whatever else was lost"


@pytest.mark.parametrize("name", ["H1", "H2", "H3"])
def test_without_repetitions_band_or_arms_no_pair_is_judged(planner: Experiment, name: str) -> None:
    """Catches a verdict on speeds that no noise was measured beside."""
    for missing in (
        with_plan(planner, reps=3),
        with_plan(planner, base_arm=""),
        without_arms(planner, "null"),
        without_arms(planner, "planner"),
        not_used(planner, "planner"),
        not_used(planner, "null", reps=1),
    ):
        assert found(missing, name) == UNJUDGED
    assert found(without_arms(planner, "clairvoyant"), "H1") == UNJUDGED
    assert found(without_arms(planner, "two-state"), "H2") == UNJUDGED


def test_the_gain_over_two_state_is_a_mean_over_the_named_cells(planner: Experiment) -> None:
    gains = [ratio_on(planner, "H2", cell) for cell in CELLS[:2]]
    mean = float(found(planner, "H2")[0].split()[0])
    assert mean == pytest.approx((gains[0] * gains[1]) ** 0.5, abs=2e-3)
    assert "chat" not in found(planner, "H2")[0]
    for wanted, outcome in ((1.25, HOLDS), (1.0, FAILS), (1.10, UNDECIDED)):
        # Opposite changes of the two cells, so that neither alone decides.
        lower = changed(planner, "planner", slowed_on(2 * mean / wanted, "mixed"))
        both = changed(lower, "planner", slowed_on(mean / wanted / 2, "verbatim-long"))
        assert found(both, "H2")[1] == outcome, wanted
    lost = not_used(planner, "two-state", "mixed", reps=1)
    assert found(lost, "H2")[1] == NOT_EVALUATED, "no mean over the cells that are left"
    assert "no verdict: planner on mixed" in found(lost, "H2")[0]
    # The other plan names four cells, of which this run has two.
    fewer = with_plan(planner, experiment="planner")
    assert found(fewer, "H2")[1] == NOT_EVALUATED
    assert "json-extraction" in found(fewer, "H2")[0]


def test_nowhere_slower_than_two_state(planner: Experiment) -> None:
    gain = ratio_on(planner, "H3", "chat")
    even = changed(planner, "planner", slowed_on(gain, "chat"))
    assert found(even, "H3")[1] == HOLDS
    assert "null band" in found(even, "H3")[0]
    slower = changed(planner, "planner", slowed_on(1.5 * gain, "chat"))
    assert found(slower, "H3")[1] == FAILS
    assert found(not_used(even, "planner", "mixed", reps=1), "H3")[1] == NOT_EVALUATED


def test_the_long_verbatim_gain_has_the_band_of_ar(planner: Experiment) -> None:
    gain = ratio_on(planner, "H5", "verbatim-long")
    for wanted, outcome in ((13, HOLDS), (11, FAILS), (12, UNDECIDED)):
        slower = changed(planner, "planner", slowed(gain / wanted))
        assert found(slower, "H5")[1] == outcome
    for missing in (without_arms(planner, "null-ar"), only_cells(planner, "chat")):
        assert found(missing, "H5") == UNJUDGED
    assert found(planner, "H4")[1] == HOLDS
    assert found(changed(planner, "oracle", as_failed), "H4")[1] == HOLDS, "not in this run"
    assert found(changed(planner, "planner", as_failed), "H4")[1] == FAILS


def test_two_state_gains_where_it_should_and_nowhere_else(two_state: Experiment) -> None:
    novel = ("summary", "reasoning", "chat")
    quick = changed(two_state, "two-state", slowed_on(0.5, "verbatim-long"))
    assert found(quick, "H1")[1] == HOLDS and found(quick, "H3")[1] == HOLDS
    assert outcome_of(quick)["Reported"] == NOT_EVALUATED
    slow = changed(two_state, "two-state", slowed_on(2, "verbatim-long"))
    assert found(slow, "H1")[1] == FAILS
    even = two_state
    for cell in novel:
        even = changed(even, "two-state", slowed_on(ratio_on(two_state, "H2", cell), cell))
    assert found(even, "H2")[1] == HOLDS
    assert "verbatim-long" not in found(even, "H2")[0]
    for factor in (1.4, 0.7):
        moved = changed(even, "two-state", slowed_on(factor, "reasoning"))
        assert found(moved, "H2")[1] == FAILS, "faster refutes it as slower does"
    lost = not_used(even, "two-state", "chat", reps=1)
    assert found(lost, "H2")[1] == NOT_EVALUATED
    for missing in (without_arms(even, "null"), with_plan(even, reps=1)):
        assert found(missing, "H1") == found(missing, "H2") == UNJUDGED
    assert found(changed(even, "two-state", as_failed), "H3")[1] == FAILS
