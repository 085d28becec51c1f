"""Hypotheses about speeds, of decode and int4: no rows, no band or too few blocks, no verdict."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from analysis.effects import ratio_table
from analysis.hypotheses import outcomes
from analysis.load import Experiment, jobs_frame
from analysis.rule_parts import FAILS, HOLDS, NOT_EVALUATED, NOTHING_MEASURED, UNRESOLVED
from bench.schema import Receipt
from tests.analysis.altered import (
    as_failed,
    changed,
    load_invented,
    measured_of,
    not_used,
    only_cells,
    outcome_of,
    slowed,
    with_plan,
    without_arms,
)
from tests.analysis.conftest import Invented

DECODE_TEXTS = ("H1: verbatim.", "H2: none slower.", "H3: two-state.", "H4: lossless.")
INT4_TEXTS = ("H1: own ids.", "H2: faster.", "H3: lossless.")


@pytest.fixture
def decode(decode_invented: Invented) -> Experiment:
    return load_invented(decode_invented, *DECODE_TEXTS)


@pytest.fixture
def int4(int4_invented: Invented) -> Experiment:
    return load_invented(int4_invented, *INT4_TEXTS)


def test_decode_hypotheses_hold_where_they_hold(decode: Experiment) -> None:
    faster = changed(decode, "two-state", slowed(0.5))
    assert outcome_of(faster) == dict.fromkeys(("H1", "H2", "H3", "H4"), HOLDS)
    assert measured_of(faster)["H2"] == "none slower"


def test_no_arm_is_slower_needs_the_null_of_ar(decode: Experiment) -> None:
    """Catches a claim that no measurement could have refuted: without null-ar nothing is judged."""
    slow = changed(decode, "chain-k8", slowed(25))
    assert outcome_of(slow)["H2"] == FAILS
    assert "chain-k8 on chat" in measured_of(slow)["H2"]
    few = without_arms(slow, "null-ar", "chain-k16", "two-state")
    assert few.measured_arms() == ["ar", "chain-k8", "null"]
    assert (measured_of(few)["H2"], outcome_of(few)["H2"]) == (NOTHING_MEASURED, NOT_EVALUATED)
    alone = without_arms(decode, "chain-k8", "null", "chain-k16", "two-state")
    assert outcome_of(alone)["H2"] == NOT_EVALUATED, "the null arm judges itself"


def test_a_pair_without_a_verdict_is_not_called_no_slower(decode: Experiment) -> None:
    """Catches an arm that failed on a cell and counts there as no slower than ar."""
    lost = not_used(decode, "two-state", "chat", reps=1)
    assert outcome_of(lost)["H2"] == NOT_EVALUATED
    assert measured_of(lost)["H2"] == "none slower; no verdict: two-state on chat"
    slow = changed(lost, "chain-k8", slowed(25))
    assert outcome_of(slow)["H2"] == FAILS, "one slower arm refutes it, whatever else was lost"


def test_two_state_is_judged_only_where_it_ran(decode: Experiment) -> None:
    assert outcome_of(changed(decode, "two-state", slowed(2)))["H3"] == FAILS
    unjudged = (NOTHING_MEASURED, NOT_EVALUATED)
    for missing in (
        without_arms(decode, "two-state"),
        not_used(decode, "two-state"),
        without_arms(decode, "null"),
        not_used(decode, "two-state", "verbatim-long", reps=1),
    ):
        assert (measured_of(missing)["H3"], outcome_of(missing)["H3"]) == unjudged


def test_a_gain_that_reaches_the_band_is_undecided(decode: Experiment) -> None:
    """Catches noise printed as a refutation."""
    table, band = ratio_table(jobs_frame(decode), decode.plan, "chain-k8", ["two-state"])
    ratio = table.set_index("cell").loc["verbatim-long", "ratio"]
    at_the_edge = changed(decode, "two-state", slowed(ratio / (band.high * 1.001)))
    assert outcome_of(at_the_edge)["H3"] == UNRESOLVED
    inside = changed(decode, "two-state", slowed(ratio))
    assert outcome_of(inside)["H3"] == FAILS


def test_the_verbatim_gain_is_judged_only_where_it_was_measured(decode: Experiment) -> None:
    gain = float(measured_of(decode)["H1"].split()[1])
    for gain_wanted, outcome in ((5.2, HOLDS), (4.8, FAILS), (5.0, FAILS)):
        slower = changed(decode, "chain-k8", slowed(gain / gain_wanted))
        assert outcome_of(slower)["H1"] == outcome, "the interval's low end is the witness"
    unjudged = (NOTHING_MEASURED, NOT_EVALUATED)
    for missing in (
        without_arms(decode, "chain-k8", "null"),
        not_used(decode, "chain-k8"),
        not_used(decode, "ar"),
        not_used(decode, "chain-k8", "verbatim-long", reps=1),
        without_arms(decode, "null-ar"),
        only_cells(decode, "chat"),
        with_plan(decode, reps=3),
    ):
        assert (measured_of(missing)["H1"], outcome_of(missing)["H1"]) == unjudged


def test_without_a_used_job_nothing_is_judged(decode: Experiment) -> None:
    empty = replace(decode, receipts=(), receipt_ids=())
    assert set(outcomes(empty)["measured"]) == {NOTHING_MEASURED}
    assert set(outcome_of(empty).values()) == {NOT_EVALUATED}
    untimed = with_plan(decode, base_arm="")
    assert [outcome_of(untimed)[name] for name in ("H1", "H2", "H3")] == [NOT_EVALUATED] * 3


def test_int4_hypotheses(int4: Experiment) -> None:
    assert outcome_of(int4) == dict.fromkeys(("H1", "H2", "H3"), HOLDS)
    found = measured_of(int4)
    assert found["H1"] == "8 of 8 jobs" and found["H3"] == f"{8 * 8} of {8 * 8} jobs"
    ratios, _ = ratio_table(jobs_frame(int4), int4.plan, "ar", ["ar-int4"])
    row = ratios.set_index("cell").loc["chat"]
    assert f"chat {row['ratio']:.3f} [{row['low']:.3f}–{row['high']:.3f}]" in found["H2"]
    assert "verbatim-copy" in found["H2"] and "all cells" not in found["H2"]

    def other_ids(receipt: Receipt) -> Receipt:
        return msgspec.structs.replace(receipt, output_ids=receipt.output_ids[::-1])

    assert outcome_of(changed(int4, "chain-int4", other_ids))["H1"] == FAILS
    assert outcome_of(changed(int4, "ar", other_ids))["H1"] == HOLDS, "f32 is another model"
    assert outcome_of(changed(int4, "ar-int4", as_failed))["H3"] == FAILS
    assert outcome_of(without_arms(int4, "chain-int4"))["H1"] == NOT_EVALUATED


def test_int4_must_be_faster_on_every_cell(int4: Experiment) -> None:
    """Catches a gain on one cell, or over all cells, that stands in for the others."""

    def slower_on_chat(receipt: Receipt) -> Receipt:
        return slowed(1.25)(receipt) if receipt.position.cell == "chat" else receipt

    assert outcome_of(changed(int4, "ar-int4", slower_on_chat))["H2"] == FAILS
    lost = not_used(int4, "ar-int4", "chat")
    assert outcome_of(lost)["H2"] == NOT_EVALUATED, "a planned cell was not measured"
    assert measured_of(lost)["H2"].endswith("; no verdict: ar-int4 on chat")
    refuted = not_used(changed(int4, "ar-int4", slowed(1.25)), "ar-int4", "chat")
    assert outcome_of(refuted)["H2"] == FAILS, "one cell refutes it, whatever else was lost"
    unjudged = (NOTHING_MEASURED, NOT_EVALUATED)
    for missing in (
        without_arms(int4, "null-ar"),
        without_arms(int4, "ar-int4"),
        not_used(int4, "ar-int4"),
    ):
        assert (measured_of(missing)["H2"], outcome_of(missing)["H2"]) == unjudged
