"""Hypotheses about noops on silent links: over all cells, against the band, and under bbr."""

from __future__ import annotations

import pytest

from analysis.effects import ALL_CELLS, ratio_table
from analysis.load import Experiment, jobs_frame
from analysis.rule_parts import FAILS, HOLDS, NOT_EVALUATED, NOTHING_MEASURED, UNRESOLVED
from bench.experiments import EXPERIMENTS
from tests.analysis.altered import (
    changed,
    load_invented,
    measured_of,
    not_used,
    outcome_of,
    slowed,
    with_plan,
    without_arms,
)
from tests.analysis.conftest import Invented


@pytest.fixture
def keepwarm(keepwarm_invented: Invented) -> Experiment:
    return load_invented(keepwarm_invented, *EXPERIMENTS["keepwarm"].hypotheses)


def overall_ratio(experiment: Experiment) -> tuple[float, float]:
    """chain-warm / chain-k8 over all cells, and the high end of the null band."""
    table, band = ratio_table(jobs_frame(experiment), experiment.plan, "chain-k8", ["chain-warm"])
    return float(table.set_index("cell").loc[ALL_CELLS, "ratio"]), band.high


def test_a_gain_beyond_the_band_holds(keepwarm: Experiment) -> None:
    found = outcome_of(keepwarm)
    assert {name: found[name] for name in ("H1", "H2", "H3")} == dict.fromkeys(
        ("H1", "H2", "H3"), HOLDS
    )
    ratio, _ = overall_ratio(keepwarm)
    assert measured_of(keepwarm)["H1"].startswith(f"{ratio:.3f} [")


def test_no_gain_fails_and_one_at_the_edge_is_undecided(keepwarm: Experiment) -> None:
    """Catches noise that counts as a gain, and as a refutation."""
    ratio, high = overall_ratio(keepwarm)
    assert outcome_of(changed(keepwarm, "chain-warm", slowed(ratio)))["H1"] == FAILS
    at_the_edge = changed(keepwarm, "chain-warm", slowed(ratio / (high * 1.0005)))
    assert outcome_of(at_the_edge)["H1"] == UNRESOLVED


def test_under_bbr_a_gain_refutes(keepwarm: Experiment) -> None:
    """Catches one rule for two claims."""
    bbr = with_plan(
        keepwarm,
        experiment="keepwarm-bbr",
        hypotheses=list(EXPERIMENTS["keepwarm-bbr"].hypotheses),
    )
    assert outcome_of(bbr)["H1"] == FAILS
    ratio, _ = overall_ratio(bbr)
    assert outcome_of(changed(bbr, "chain-warm", slowed(ratio)))["H1"] == HOLDS


def test_noops_that_cost_ar_its_speed_are_seen(keepwarm: Experiment) -> None:
    assert outcome_of(changed(keepwarm, "ar-warm", slowed(1.1)))["H2"] == FAILS


def test_what_was_not_measured_is_not_judged(keepwarm: Experiment) -> None:
    unjudged = (NOTHING_MEASURED, NOT_EVALUATED)
    for missing in (
        without_arms(keepwarm, "chain-warm"),
        without_arms(keepwarm, "null"),
        not_used(keepwarm, "chain-warm"),
        not_used(keepwarm, "chain-warm", "summary"),
        with_plan(keepwarm, reps=3),
    ):
        assert (measured_of(missing)["H1"], outcome_of(missing)["H1"]) == unjudged
