"""Predictions beside measurements: what the fit has seen, what it has not, every arm in both."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
import pytest

from analysis.figure_file import house_style
from analysis.law_figures import draw_crossover, draw_predicted
from analysis.law_products import (
    Cover,
    Law,
    crossover_numbers,
    error_rows,
    law_numbers,
    law_table,
    prediction_table,
)
from analysis.load import Experiment
from analysis.predictions import COLUMNS, all_predictions, ceilings, next_alpha, predictions
from engine.errors import ReceiptError
from tests.analysis.altered import load_invented
from tests.analysis.conftest import Invented


@pytest.fixture
def experiment(planner_invented: Invented) -> Experiment:
    return load_invented(planner_invented)


def test_every_used_job_is_predicted_once(experiment: Experiment) -> None:
    table, reasons = predictions(experiment)
    assert not reasons and tuple(table.columns) == COLUMNS
    assert sorted(table["receipt_id"]) == sorted(name for _, name in experiment.measured())
    assert (table["ring_model"] > 0).all()


def test_cells_that_the_fit_saw_are_no_check(experiment: Experiment) -> None:
    """Catches a fit that is judged by the cells it was made on."""
    table, _ = predictions(experiment)
    cells = [cell.name for cell in experiment.plan.cells]
    checked = set(table[table["is_checked"]]["cell"])
    assert checked == set(cells[1::2])


def test_only_fixed_lengths_have_a_closed_form(experiment: Experiment) -> None:
    table, _ = predictions(experiment)
    has_form = table.groupby("arm")["closed_form"].apply(lambda own: own.notna().all())
    for arm, levers in experiment.plan.arms.items():
        if arm in has_form.index:
            assert has_form[arm] == (levers.policy == "fixed-k" and levers.drafter != "oracle")


def test_a_round_without_a_draft_is_a_miss(experiment: Experiment) -> None:
    """Catches an alpha of the rounds that drafted, which no loop of the ring is spared by."""
    receipt = next(each for each, _ in experiment.measured() if each.requested.arm == "chain-k8")
    frames = []
    for accepted, tested, drafted in ((3, 4, 8), (0, 0, 0), (8, 8, 8), (0, 1, 8)):
        frames.append(
            msgspec.structs.replace(
                receipt.frames[-1], outcome="applied", source="ngram", accepted_len=accepted,
                tested_len=tested, draft_len=drafted, sent_len=drafted,
            )
        )  # fmt: skip
    assert next_alpha(msgspec.structs.replace(receipt, frames=frames)) == 11 / 14
    assert np.isnan(next_alpha(msgspec.structs.replace(receipt, frames=[])))


def test_an_experiment_that_cannot_be_fitted_says_why(experiment: Experiment) -> None:
    """Catches a ring that silently drops out of the table."""
    bare = [msgspec.structs.replace(each, links=[]) for each in experiment.receipts]
    unprobed = experiment.__class__(
        plan=experiment.plan,
        plan_digest=experiment.plan_digest,
        receipts=tuple(bare),
        receipt_ids=experiment.receipt_ids,
        receipt_set_digest=experiment.receipt_set_digest,
        exclusions=experiment.exclusions,
    )
    assert ceilings(unprobed) == {}
    table, reasons = predictions(unprobed)
    assert table.empty and len(reasons) == 1 and experiment.plan.experiment in reasons[0]
    with pytest.raises(ReceiptError, match=reasons[0].split(": ")[1][:20]):
        all_predictions([unprobed])


def test_the_ceiling_is_the_base_arm_s(experiment: Experiment) -> None:
    table, _ = predictions(experiment)
    base = table[table["arm"] == experiment.plan.base_arm].groupby("cell")[["alpha", "loop_s"]]
    for cell, row in base.median().iterrows():
        if row["alpha"] < 1:
            expected = 1 / ((1 - row["alpha"]) * row["loop_s"])
            assert ceilings(experiment)[str(cell)] == pytest.approx(expected)


def invented_law() -> Law:
    """Two cells of one arm, one checked: off by factors that are known."""
    rows = [
        ("e", "wan", 4, "chain-k8", "a", False, "r0", 10.0, 11.0, 5.0, 0.5, 0.3),
        ("e", "wan", 4, "chain-k8", "b", True, "r1", 10.0, 8.0, 20.0, 0.5, 0.3),
        ("e", "wan", 4, "planner", "b", True, "r2", 10.0, 12.5, float("nan"), 0.5, float("nan")),
    ]
    return Law(pd.DataFrame(rows, columns=list(COLUMNS)), ("f: no frame",), ("0" * 64,))


def test_errors_are_ratios_of_cells_apart() -> None:
    rows = error_rows(invented_law().cells).set_index("arm")
    assert rows.loc["chain-k8", "ring"] == pytest.approx(0.8)
    assert rows.loc["chain-k8", "seen"] == pytest.approx(1.1)
    assert rows.loc["chain-k8", "closed"] == pytest.approx(1.0)  # 0.5 and 2.0
    assert rows.loc["chain-k8", "closed_low"] == pytest.approx(0.5)
    assert np.isnan(rows.loc["planner", "closed"]) and np.isnan(rows.loc["planner", "seen"])


def test_the_table_prints_both_and_says_what_was_not_fitted() -> None:
    table = law_table(invented_law())
    printed = {row[3]: row for row in table.printed()}
    assert printed["chain-k8"][5] == "0.80 [0.80–0.80]" and printed["planner"][7] == "—"
    assert any("f: no frame" in note for note in table.notes)


def test_every_cell_is_predicted_beside_what_was_measured() -> None:
    table = prediction_table(invented_law())
    printed = {(row[3], row[4]): row[5:11] for row in table.printed()}
    assert printed["a", "chain-k8"] == ["fitted", "10.00", "11.00", "10", "5.00", "-50"]
    assert printed["b", "chain-k8"] == ["unseen", "10.00", "8.00", "-20", "20.00", "100"]
    assert printed["b", "planner"][4:] == ["—", "—"]


def test_numbers_carry_the_receipts_of_their_arm() -> None:
    numbers = law_numbers(invented_law())
    assert numbers["e.s4.chain-k8.ring"].value == "0.80"
    assert numbers["e.s4.chain-k8.ring"].receipt_ids == ["r0", "r1"]
    assert numbers["all.ring.cells"].value == "2" and numbers["all.closed.cells"].value == "1"
    assert numbers["all.ring.error.median"].value == "25"  # 0.8 and 1.25 are as far off
    assert "e.s4.planner.closed" not in numbers


def test_the_crossover_is_named_for_both_covers() -> None:
    numbers = crossover_numbers(Cover(1.1, ("r9",)))
    assert numbers["cover"].value == "1.10" and numbers["cover"].receipt_ids == ["r9"]
    assert float(numbers["crossover.published.cap4"].value) == pytest.approx(0.81, abs=0.011)
    assert float(numbers["crossover.measured.cap4"].value) != pytest.approx(0.81, abs=0.011)


def test_figures_show_what_the_table_says() -> None:
    with house_style():
        drawing = draw_predicted(invented_law())
        crossing = draw_crossover(Cover(1.5, ("r9",)))
    assert set(drawing.points["cell"]) == {"b"}
    assert drawing.receipt_ids == ["r1", "r2"]
    assert set(crossing.points["cover"]) == {"published", "measured"}
    assert crossing.points["alpha"].between(0, 1).all()
