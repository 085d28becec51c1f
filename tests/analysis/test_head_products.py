"""Tables and figure of the head's training and trial, from records alone."""

from __future__ import annotations

from analysis.figure_file import house_style
from analysis.head_products import curve, draw_training, training_table, trial_table, trials
from analysis.study_records import StudyRecord
from bench.schema import Study
from tests.analysis.plan_builder import Recipe, make_plan

SETTINGS: dict[str, str | int] = {
    "head_digest": "ab" * 32,
    "distinct_tokens": 1000,
    "chain_len": 6,
    "tree_nodes": 16,
    "tree_children": 3,
    "tree_depth": 6,
    "parts_per": 1_000_000,
}


def record(study: str, rows: list[dict[str, str | int]]) -> StudyRecord:
    build = make_plan(Recipe()).build
    created = "2026-01-01T00:00:00Z"
    made = Study(study=study, created=created, build=build, host={}, settings=SETTINGS, rows=rows)
    return StudyRecord(made, "00ff")


TRIAL = record(
    "head-evaluation",
    [
        {"group": "chat", "shape": shape, "prompts": 21, "rounds": 200, "right_first": 90,
         "accepted": accepted}
        for shape, accepted in (("chain", 150), ("tree", 260))
    ],
)  # fmt: skip
LOG = record(
    "head-training",
    [
        {"step": step, "tokens": 1000 * step, "token_steps": 2000 * step, "loss": 4_000_000 // step,
         "spent_ms": step, **{f"held_out_{idx}": 100_000 * step - idx for idx in (1, 2)}}
        for step in (1, 2, 4)
    ],
)  # fmt: skip


def test_rates_are_of_counts() -> None:
    """Catches tokens a traversal without the one that every reply brings."""
    rows = trials(TRIAL)
    assert list(rows["first"]) == [0.45, 0.45]
    assert list(rows["tokens"]) == [1.75, 2.3]
    assert (rows["first_low"] < 0.45).all() and (rows["first_high"] > 0.45).all()
    printed = trial_table(TRIAL).to_markdown()
    assert "| chat | tree | 21 | 200 | 0.450 [0.380–0.522] | 2.30 |" in printed


def test_the_curve_has_a_point_for_each_row_and_token() -> None:
    points = curve(LOG)
    assert len(points) == 6
    assert list(points[points["drafted"] == 2]["rate"]) == [0.099998, 0.199998, 0.399998]
    assert list(points[points["drafted"] == 1]["loss"]) == [4.0, 2.0, 1.0]
    assert "| 4 | 4000 | 8000 | 1.000 | 0.400 | 0.400 |" in training_table(LOG).to_markdown()


def test_the_figure_shows_every_point() -> None:
    with house_style():
        drawing = draw_training(LOG)
    left, right = drawing.figure.axes
    assert [len(line.get_xdata()) for line in left.lines] == [3, 3]
    assert list(right.lines[0].get_ydata()) == [4.0, 2.0, 1.0]
    assert drawing.receipt_ids == ["00ff"]
