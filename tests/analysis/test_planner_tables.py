"""What speculation wastes and what not knowing costs: counted from receipts, paired by block."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.effects import paired_log_ratios
from analysis.load import Experiment, jobs_frame, load_experiment
from analysis.planner_tables import regret_table, stale_table
from analysis.tables import all_tables
from tests.analysis.conftest import Invented


@pytest.fixture(scope="module")
def planner(planner_invented: Invented) -> Experiment:
    return load_experiment(planner_invented.folder, planner_invented.key_folders)


@pytest.fixture(scope="module")
def plain(invented: Invented) -> Experiment:
    return load_experiment(invented.folder, invented.key_folders)


def test_regret_is_what_pairs_within_blocks_say(planner: Experiment) -> None:
    """Catches a ratio of medians, an upside-down ratio, and cells that are left out."""
    rows = regret_table(planner).rows.set_index("cell")
    pairs = paired_log_ratios(jobs_frame(planner), "decode_tok_per_s", "planner", "clairvoyant")
    assert set(rows.index) == {*(cell.name for cell in planner.plan.cells), "all cells"}
    for cell, logs in pairs.groupby("cell")["log_ratio"]:
        assert rows.loc[cell, "ratio"] == pytest.approx(math.exp(logs.mean()))
        assert rows.loc[cell, "regret"] == pytest.approx(100 * (1 - math.exp(logs.mean())))
    jobs = jobs_frame(planner)
    chat = jobs[(jobs["cell"] == "chat") & (jobs["arm"] == "planner")]["decode_tok_per_s"]
    assert rows.loc["chat", "planner"] == pytest.approx(chat.median())
    assert np.isnan(rows.loc["all cells", "planner"]), "no speed of unlike cells"


def test_without_a_bound_there_is_no_regret(plain: Experiment) -> None:
    """Catches a table that fails where the planner did not run."""
    assert regret_table(plain).rows.empty


def test_stale_frames_are_counted_once_each(planner: Experiment) -> None:
    """Catches prompt frames among those sent, arms that are mixed up, and jobs counted twice."""
    rows = stale_table(planner).rows.set_index(["cell", "arm"])
    for (cell, arm), row in rows.iterrows():
        receipts = [
            receipt
            for receipt, _ in planner.measured()
            if receipt.position.cell == cell and receipt.requested.arm == arm
        ]
        frames = [f for r in receipts for f in r.frames if f.outcome != "prefill"]
        stale = [frame for frame in frames if frame.outcome == "stale"]
        assert row["jobs"] == len(receipts) == planner.plan.reps
        assert row["frames"] == len(frames) and row["stale"] == len(stale) > 0
        assert row["stale_answered"] == sum(frame.received_ns is not None for frame in stale)
        assert row["stages_computed"] == sum(r.counters.stale_computed for r in receipts)
        assert 0 <= row["share"] < 100
    assert "ar" not in rows.index.get_level_values("arm")


def test_the_share_of_computing_is_of_answered_frames(planner: Experiment) -> None:
    """Catches a share of frames in place of time, and prompt passes in the total."""
    row = stale_table(planner).rows.iloc[0]
    receipts = [
        receipt
        for receipt, _ in planner.measured()
        if (receipt.position.cell, receipt.requested.arm) == (row["cell"], row["arm"])
    ]
    spent = {"stale": 0, "other": 0}
    for frame in (f for r in receipts for f in r.frames if f.outcome != "prefill"):
        kind = "stale" if frame.outcome == "stale" else "other"
        spent[kind] += sum(span.compute_ns for span in frame.spans)
    expected = 100 * spent["stale"] / (spent["stale"] + spent["other"])
    assert row["share"] == pytest.approx(expected)


def test_the_planners_runs_have_both_tables(planner: Experiment) -> None:
    """Catches a table that nothing prints."""
    names = [spec.name for spec in all_tables(planner)]
    assert {"regret", "stale"} <= set(names)
