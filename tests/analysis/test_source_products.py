"""Acceptance and drafting by source: what counts as tested at a depth, and what does not."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.figure_file import house_style
from analysis.load import Experiment
from analysis.source_products import acceptance_by_depth, draw_acceptance_by_source, source_table
from tests.analysis.altered import load_invented
from tests.analysis.conftest import Invented


def test_a_depth_is_tested_where_all_before_it_was_right() -> None:
    """Catches a refusal that counts at every depth behind it, and a full draft that is refused."""
    lengths = [(0, 1), (2, 3), (3, 3), (3, 4), (4, 5), (1, 2)]
    rounds = pd.DataFrame(lengths, columns=["accepted_len", "tested_len"])
    curve = acceptance_by_depth(rounds)
    assert list(curve["depth"]) == [1, 2, 3]
    assert list(curve["tested"]) == [6, 5, 4]
    assert list(curve["accepted"]) == [5, 4, 3]
    assert ((curve["low"] < curve["rate"]) & (curve["rate"] < curve["high"])).all()


@pytest.fixture
def experiment(invented: Invented) -> Experiment:
    return load_invented(invented)


def test_the_table_counts_every_round_once(experiment: Experiment) -> None:
    table = source_table(experiment)
    shares = table.rows.groupby(["kind", "arm"])["share"].sum()
    assert all(abs(share - 100.0) < 1e-9 for share in shares)
    assert not set(table.rows["arm"]) & set(experiment.plan.null_pairs)
    alone = table.rows[table.rows["arm"] == "ar"]
    assert set(alone["source"]) == {"none"} and (alone["tokens"] == 1.0).all()


def test_the_figure_has_a_panel_a_kind(experiment: Experiment) -> None:
    with house_style():
        drawing = draw_acceptance_by_source(experiment)
    titles = [axes.get_title("left").partition(",")[0] for axes in drawing.figure.axes]
    assert titles == ["draftable cells", "novel cells"]
    assert set(drawing.points["source"]) == {"ngram"}
