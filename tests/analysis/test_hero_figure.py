"""The hero figure: ratios within one experiment, means over whole groups, rows that stay put."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.effects import ALL_CELLS, null_band
from analysis.figure_file import arm_look, house_style, save
from analysis.hero_figure import (
    HERO_EXPERIMENTS,
    MODES,
    draw_hero,
    groups_of,
    hero_points,
    hero_source,
)
from analysis.load import Experiment, jobs_frame
from analysis.ratio_rows import METRIC
from bench.experiments import EXPERIMENTS
from engine.errors import ReceiptError
from tests.analysis.altered import changed, load_invented, not_used, only_cells, slowed, with_plan
from tests.analysis.conftest import Invented

NOVEL = ("summary", "reasoning", "chat")


@pytest.fixture
def two_state(two_state_invented: Invented) -> Experiment:
    """One draftable cell, three novel ones; of the modes ar and chain-k8."""
    return load_invented(two_state_invented)


@pytest.fixture
def planner(planner_invented: Invented) -> Experiment:
    """A cell of each group; of the modes ar, chain-k8 and planner."""
    return load_invented(planner_invented)


def speeds_of(experiment: Experiment, cell: str, arm: str) -> dict[int, float]:
    """tok/s by repetition, from the receipts themselves."""
    return {
        receipt.position.rep: (len(receipt.output_ids) - 1)
        * 1e9
        / (receipt.timing.last_commit_ns - receipt.timing.first_commit_ns)
        for receipt, _ in experiment.measured()
        if (receipt.position.cell, receipt.requested.arm) == (cell, arm)
    }


def mean_ratio(experiment: Experiment, cells: Iterable[str], arm: str, base: str) -> float:
    """Geometric mean over cells of each cell's geometric mean over blocks."""
    cell_means = []
    for cell in cells:
        over, under = (speeds_of(experiment, cell, name) for name in (arm, base))
        logs = [math.log(over[rep] / under[rep]) for rep in over]
        cell_means.append(sum(logs) / len(logs))
    return math.exp(sum(cell_means) / len(cell_means))


def row_of(points: pd.DataFrame, **place: str) -> pd.Series:
    for column, value in place.items():
        points = points[points[column] == value]
    assert len(points) == 1, place
    return points.iloc[0]


def test_a_group_is_the_mean_of_its_cells_paired_within_blocks(two_state: Experiment) -> None:
    """Catches a ratio of medians, blocks that are mixed, and a band of the group's blocks alone."""
    points = hero_points({"one": two_state})
    novel = row_of(points, group="novel", arm="chain-k8", cell=ALL_CELLS)
    assert novel["ratio"] == pytest.approx(mean_ratio(two_state, NOVEL, "chain-k8", "ar"))
    assert novel["low"] < novel["ratio"] < novel["high"] and novel["blocks"] == 12
    for cell in NOVEL:
        one = row_of(points, group="novel", arm="chain-k8", cell=cell)
        assert one["ratio"] == pytest.approx(mean_ratio(two_state, [cell], "chain-k8", "ar"))
    band = null_band(jobs_frame(two_state), two_state.plan, METRIC, "ar")
    assert set(points["band_low"]) == {band.low} and set(points["band_high"]) == {band.high}
    base = row_of(points, group="novel", arm="ar", cell=ALL_CELLS)
    all_speeds = [each for cell in NOVEL for each in speeds_of(two_state, cell, "ar").values()]
    assert base["ratio"] == 1.0 and base["tok_per_s"] == pytest.approx(
        pd.Series(all_speeds).median()
    )
    assert "two-state" not in set(points["arm"]), "not one of the ways that are set side by side"


def test_the_mixed_cell_is_a_group_of_its_own(planner: Experiment) -> None:
    found = {name: [cell.name for cell in cells] for name, cells in groups_of(planner.plan).items()}
    assert found == {"draftable": ["verbatim-long"], "mixed": ["mixed"], "novel": ["chat"]}
    novel = only_cells(planner, "chat")
    assert list(groups_of(novel.plan)) == ["novel"]


def test_experiments_do_not_touch_each_other(two_state: Experiment, planner: Experiment) -> None:
    """Catches a ratio to another run's ar: absolute times drift."""
    slow = planner
    for arm in planner.measured_arms():
        slow = changed(slow, arm, slowed(3.0))
    both = hero_points({"one": two_state, "two": slow})
    own = hero_points({"one": two_state})
    assert both[both["experiment"] == "one"].reset_index(drop=True).equals(own)
    unslowed = hero_points({"two": planner}).set_index(["group", "cell", "arm"])
    after = both[both["experiment"] == "two"].set_index(["group", "cell", "arm"])
    assert after["ratio"].tolist() == pytest.approx(unslowed["ratio"].tolist(), rel=1e-6)
    base = ("draftable", ALL_CELLS, "ar")
    assert after.loc[base, "tok_per_s"] == pytest.approx(unslowed.loc[base, "tok_per_s"] / 3)


def titles_of(figure: Figure) -> list[str]:
    return [axes.get_title("left") for axes in figure.get_axes()]


def test_a_row_an_experiment_a_column_a_group(two_state: Experiment, planner: Experiment) -> None:
    with house_style():
        drawing = draw_hero({"planner": planner, "two-state": two_state})
    assert titles_of(drawing.figure) == [
        *("Copies: 1 cell", "Mixed: 1 cell", "New text: 1 cell"),
        *("Copies: 1 cell", "Mixed: not run", "New text: 3 cells"),
    ]
    rows = [axes.get_yticklabels() for axes in drawing.figure.get_axes()[::3]]
    labels = [[label.get_text() for label in row] for row in rows]
    assert [[each.rpartition("(")[2].rstrip(")") for each in row] for row in labels] == [
        ["ar", "chain-k8", "planner"],
        ["ar", "chain-k8"],
    ]
    words = " ".join(drawing.figure.get_supxlabel().split())
    assert "Experiments planner (3 cells, n = 4 reps" in words and "two-state (4 cells" in words
    used = {"planner": {"ar", "null-ar", "chain-k8", "planner"}}
    used["two-state"] = used["planner"] - {"planner"}
    wanted = [
        name
        for experiment in (planner, two_state)
        for receipt, name in experiment.measured()
        if receipt.requested.arm in used[experiment.plan.experiment.removesuffix("-eu")]
    ]
    assert sorted(drawing.receipt_ids) == sorted(wanted)


def test_an_arm_looks_as_everywhere(planner: Experiment) -> None:
    """Catches colours by order of drawing: without chain-k8 planner must not take its slot."""
    with house_style():
        drawing = draw_hero({"planner": not_used(planner, "chain-k8")})
        look = arm_look("planner", ["planner"])
    axes = drawing.figure.get_axes()[0]
    markers = [line for line in axes.get_lines() if line.get_marker() == look["marker"]]
    assert [line.get_color() for line in markers] == [look["color"]]
    shown = [text.get_text() for text in axes.texts]
    mean = mean_ratio(planner, ["verbatim-long"], "planner", "ar")
    speed = pd.Series(speeds_of(planner, "verbatim-long", "ar")).median()
    assert shown == [f"1 = {speed:.2f} tok/s", f"{mean:.1f}"]


def test_a_mean_over_the_cells_that_are_left_is_not_drawn(two_state: Experiment) -> None:
    bare = not_used(two_state, "chain-k8", "chat")
    points = hero_points({"one": bare})
    novel = points[(points["group"] == "novel") & (points["arm"] == "chain-k8")].set_index("cell")
    assert math.isnan(novel.loc[ALL_CELLS, "ratio"]) and math.isnan(novel.loc["chat", "ratio"])
    assert novel.loc["summary", "ratio"] > 0
    with house_style():
        axes = draw_hero({"one": bare}).figure.get_axes()[1]
    assert [text.get_text()[:4] for text in axes.texts] == ["1 = "], "no number for chain-k8"
    ticks = [line for line in axes.get_lines() if line.get_marker() == "|"]
    assert [len(line.get_xdata()) for line in ticks] == [2], "its other cells are shown"


def test_nothing_is_drawn_without_a_pair(two_state: Experiment) -> None:
    for lacking in ("ar", "chain-k8"):
        with pytest.raises(ReceiptError, match=r"no used job of ar .* in one: nothing to draw"):
            draw_hero({"one": not_used(two_state, lacking)})
    with pytest.raises(ReceiptError, match="in nothing: nothing to draw"):
        draw_hero({})
    with pytest.raises(ReceiptError, match="times nothing"):
        draw_hero({"one": with_plan(two_state, base_arm="")})


def test_same_receipts_same_bytes(planner: Experiment, tmp_path: Path) -> None:
    shown = {"planner": planner}
    for name in ("one", "two"):
        with house_style():
            save(draw_hero(shown), "hero", hero_source(shown), tmp_path / name)
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert [path.suffix for path in first] == [".csv", ".txt", ".pdf", ".svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert planner.receipt_set_digest in (tmp_path / "one" / "hero.svg").read_text()


def test_the_reports_modes_exist() -> None:
    """Catches an experiment or an arm that was renamed."""
    arms = {str(arm) for name in HERO_EXPERIMENTS for arm in EXPERIMENTS[name].arms}
    assert set(MODES) <= arms
