"""Speed against a lever: values from the plan, the null apart, another method left out."""

from __future__ import annotations

import pytest

from analysis.figure_file import house_style
from analysis.figures import figures_of
from analysis.load import Experiment, jobs_frame, load_experiment
from analysis.sweep_figure import draw_sweep, sweep_points
from engine.errors import ReceiptError
from tests.analysis.altered import not_used
from tests.analysis.conftest import Invented

VALUES = {"chain-k8": 4, "null": 4, "chain-d1": 1, "chain-d2": 2, "chain-d8": 8}


@pytest.fixture
def depth(depth_invented: Invented) -> Experiment:
    return load_experiment(depth_invented.folder, depth_invented.key_folders)


def test_values_are_the_plans_and_speeds_the_jobs(depth: Experiment) -> None:
    """Catches a value parsed from a name, ar among the points, and jobs of other cells."""
    points = sweep_points(depth)
    assert set(points["arm"]) == set(VALUES)
    jobs = jobs_frame(depth)
    for _, row in points.iterrows():
        chosen = jobs[(jobs["cell"] == row["cell"]) & (jobs["arm"] == row["arm"])]
        assert row["value"] == VALUES[row["arm"]] and row["n"] == len(chosen)
        assert row["middle"] == chosen["decode_tok_per_s"].median()
        assert row["is_null"] == (row["arm"] == "null")


def test_a_panel_a_cell(depth: Experiment) -> None:
    with house_style():
        drawing = draw_sweep(depth)
    assert [axes.get_title("left") for axes in drawing.figure.get_axes()] == [
        "verbatim-copy",
        "chat",
    ]
    assert "sweep" in figures_of(depth)
    arms = {receipt.requested.arm for receipt, name in depth.measured()}
    assert len(drawing.receipt_ids) == 2 * 4 * len(arms - {"ar", "null-ar"})


def test_without_a_job_nothing_is_drawn(depth: Experiment) -> None:
    bare = depth
    for arm in VALUES:
        bare = not_used(bare, arm)
    with pytest.raises(ReceiptError, match="nothing to draw"):
        draw_sweep(bare)
