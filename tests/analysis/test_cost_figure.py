"""What trust costs: shares out of statements, ratios to the twin without it, times of a record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from matplotlib.axes import Axes

from analysis.attest_tables import MAX_SHARE_PERCENT
from analysis.cost_figure import draw_cost, ratio_points, time_points
from analysis.effects import ALL_CELLS, null_band
from analysis.figure_file import arm_look, house_style, save
from analysis.load import Experiment, jobs_frame
from analysis.ratio_rows import METRIC
from analysis.study_records import StudyRecord
from bench.schema import Study
from engine.errors import ReceiptError
from tests.analysis.altered import changed, load_invented, not_used, slowed, without_arms
from tests.analysis.conftest import Invented
from tests.analysis.plan_builder import Recipe, make_plan
from tests.analysis.test_attest_tables import signing
from tests.analysis.test_hero_figure import mean_ratio

CELLS = ("verbatim-copy", "chat")
# suite -> µs of five repetitions of sealing alone; an exchange takes 100 µs more
TIMES_US = {
    "plain": (1, 2, 3, 4, 50),
    "chacha20-poly1305": (160, 150, 140, 170, 900),
    "aes-256-gcm": (40, 42, 41, 43, 44),
}


@pytest.fixture
def attest(attest_invented: Invented) -> Experiment:
    """Stage i spends (i + 1) ns in 1000 on digests; chain-attest takes 1.25 times as long."""
    bare = load_invented(attest_invented)
    slower = changed(bare, "chain-attest", slowed(1.25))
    return signing(slower, attest_invented.identity, lambda stage_idx: stage_idx + 1)


@pytest.fixture
def seal(seal_invented: Invented) -> Experiment:
    """seal-aes takes a fifth longer."""
    return load_invented(seal_invented)


@pytest.fixture
def record() -> StudyRecord:
    rows = [
        {
            "suite": suite,
            "rep": rep,
            "seal_and_open_ns": time_us * 1000,
            "exchange_ns": (time_us + 100) * 1000,
        }
        for suite, times in TIMES_US.items()
        for rep, time_us in enumerate(times)
    ]
    study = Study(
        study="seal-cost",
        created="2026-01-01T00:00:00Z",
        build=make_plan(Recipe()).build,
        host={},
        settings={"payload_bytes": 405_000, "reps": 5},
        rows=rows,
    )
    return StudyRecord(study, "abc123")


def without_suite(found: StudyRecord, suite: str) -> StudyRecord:
    rows = [row for row in found.record.rows if row["suite"] != suite]
    return replace(found, record=msgspec.structs.replace(found.record, rows=rows))


def panels_of(
    attest: Experiment | None, seal: Experiment | None, record: StudyRecord | None
) -> dict[str, Axes]:
    """Panels of the figure by title."""
    given = {"attest": attest, "seal": seal}
    with house_style():
        drawing = draw_cost({name: each for name, each in given.items() if each}, record)
    return {
        axes.get_title("left"): axes for axes in drawing.figure.get_axes() if axes.get_visible()
    }


def test_ratios_are_to_the_twin_without_it(attest: Experiment, seal: Experiment) -> None:
    """Catches both attested arms against one base, and the band of another arm."""
    for name, experiment, pairs in (
        ("attest", attest, {"ar-attest": "ar", "chain-attest": "chain-k8"}),
        ("seal", seal, {"seal-chacha": "seal-none", "seal-aes": "seal-none"}),
    ):
        points = ratio_points(experiment, name)
        assert len(points) == len(pairs) * (len(CELLS) + 1)
        for arm, base in pairs.items():
            own = points[points["arm"] == arm].set_index("cell")
            assert set(own["base"]) == {base}
            assert own.loc[ALL_CELLS, "ratio"] == pytest.approx(
                mean_ratio(experiment, CELLS, arm, base)
            )
            band = null_band(jobs_frame(experiment), experiment.plan, METRIC, base)
            assert own["band_low"].iloc[0] == band.low < 1 < own["band_high"].iloc[0] == band.high
    slow = ratio_points(attest, "attest").set_index(["arm", "cell"])["ratio"]
    assert slow["chain-attest", ALL_CELLS] == pytest.approx(0.8, rel=0.02)
    assert slow["ar-attest", ALL_CELLS] == pytest.approx(1.0, rel=0.02)


def test_shares_by_stage_stand_under_what_was_promised(attest: Experiment) -> None:
    axes = panels_of(attest, None, None)["Attesting: time on digests"]
    with house_style():
        looks = {arm: arm_look(arm, [arm]) for arm in ("ar-attest", "chain-attest")}
    for arm, look in looks.items():
        line = next(line for line in axes.get_lines() if line.get_label() == arm)
        assert (line.get_color(), line.get_marker()) == (look["color"], look["marker"])
        assert [round(x) for x in line.get_xdata()] == [0, 1, 2, 3]
        assert line.get_ydata().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    level = [line for line in axes.get_lines() if set(line.get_ydata()) == {MAX_SHARE_PERCENT}]
    assert len(level) == 1 and "at most 0.4 %" in axes.texts[0].get_text()
    assert axes.get_ylabel() == "% of time in layers"


def test_times_are_quartiles_of_the_records_rows(record: StudyRecord) -> None:
    """Catches a mean, which one slow repetition moves, and nanoseconds that pass for µs."""
    table = time_points(record).set_index(["suite", "time"])
    for suite, times in TIMES_US.items():
        ordered = sorted(times)
        for time, more in (("seal_and_open_ns", 0), ("exchange_ns", 100)):
            row = table.loc[suite, time]
            assert row["n"] == 5 and row["middle"] == ordered[2] + more
            assert (row["low"], row["high"]) == (ordered[1] + more, ordered[3] + more)
    axes = panels_of(None, None, record)["Sealing: between two processes"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("alone: plain", "alone: chacha20", "alone: aes"),
        *("exchange: plain", "exchange: chacha20", "exchange: aes"),
    ]
    assert [text.get_text() for text in axes.texts] == ["3.0", "160", "42", "103", "260", "142"]
    assert set(time_points(without_suite(record, "aes-256-gcm"))["suite"]) == {*TIMES_US} - {
        "aes-256-gcm"
    }


def test_the_figure_has_a_panel_for_what_there_is(
    attest: Experiment, seal: Experiment, record: StudyRecord
) -> None:
    assert list(panels_of(attest, seal, record)) == [
        *("Attesting: time on digests", "Attesting: end to end"),
        *("Sealing: end to end", "Sealing: between two processes"),
    ]
    assert list(panels_of(None, seal, None)) == ["Sealing: end to end"]
    assert len(panels_of(attest, seal, None)) == 3, "the fourth place is empty"
    with house_style():
        drawing = draw_cost({"attest": attest, "seal": seal}, record)
    assert drawing.receipt_ids[-1] == "abc123"
    assert len(drawing.receipt_ids) == len(attest.measured()) + len(seal.measured()) + 1
    assert set(drawing.points["panel"]) == {"digests", "attest", "seal", "times"}
    words = " ".join(drawing.figure.get_supxlabel().split())
    assert "reps: attest 4, seal 4" in words and "405,000 bytes" in words and "n = 5." in words


def test_an_arm_that_is_missing_has_no_row(attest_invented: Invented, seal: Experiment) -> None:
    axes = panels_of(None, not_used(seal, "seal-chacha"), None)["Sealing: end to end"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["seal-aes\n/ seal-none"]
    with house_style():
        look = arm_look("seal-aes", ["seal-aes"])
    markers = [line for line in axes.get_lines() if line.get_marker() == look["marker"]]
    assert [line.get_color() for line in markers] == [look["color"]], "it keeps its own slot"
    bare = load_invented(attest_invented)  # nobody has signed anything
    assert list(panels_of(bare, None, None)) == ["Attesting: end to end"]


def test_without_a_null_arm_there_is_no_grey(attest: Experiment) -> None:
    axes = panels_of(without_arms(attest, "null-ar"), None, None)["Attesting: end to end"]
    assert [round(bar.get_y() + bar.get_height() / 2) for bar in axes.patches] == [1]


def test_nothing_is_drawn_of_nothing(attest_invented: Invented) -> None:
    bare = load_invented(attest_invented)
    for arm in ("ar-attest", "chain-attest"):
        bare = not_used(bare, arm)
    for given in ({}, {"attest": bare}):
        with pytest.raises(ReceiptError, match="no record of study 'seal-cost': nothing to draw"):
            draw_cost(given, None)


def test_same_receipts_same_bytes(
    attest: Experiment, seal: Experiment, record: StudyRecord, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        with house_style():
            drawing = draw_cost({"attest": attest, "seal": seal}, record)
            save(drawing, "trust_cost", "invented", tmp_path / name)
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert {path.suffix for path in first} == {".csv", ".txt", ".pdf", ".svg"}
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
