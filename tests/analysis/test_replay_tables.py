"""Tables of replays: only of records that are the experiment's own, the grid's best by cell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from analysis.load import Experiment, load_experiment
from analysis.replay_tables import error_table, find_replay, grid_table
from analysis.study_records import StudyRecord
from bench.receipt import receipt_id, write_signed
from bench.schema import Study
from engine.errors import ReceiptError
from engine.trust.identity import Identity
from tests.analysis.conftest import Invented

SPEEDS = {  # tok/s by arm, of every cell
    "planner": 30.0,
    "clairvoyant": 40.0,
    "fixed-k4-d2": 20.0,
    "fixed-k32-d4": 25.0,
    "fixed-k64-d8": 24.0,
}


@pytest.fixture(scope="module")
def planner(planner_invented: Invented) -> Experiment:
    return load_experiment(planner_invented.folder, planner_invented.key_folders)


def record_of(experiment: Experiment, created: str = "2026-01-01T00:00:00Z") -> Study:
    """A replay of 101 tokens a job on every cell."""
    return Study(
        study="replay",
        created=created,
        build=experiment.plan.build,
        host={},
        settings={"experiment": "x", "profile": "lan", "num_stages": 4, "overlap": "0.5"},
        rows=[
            {
                "cell": cell.name,
                "arm": arm,
                "receipt": experiment.receipt_ids[0],
                "output_tokens": 101,
                "decode_ns": round(100 / speed * 1e9),
                "rounds": 7,
                "stale_dropped": 0,
                "stale_computed": 0,
            }
            for cell in experiment.plan.cells
            for arm, speed in SPEEDS.items()
        ],
    )


def written(folder: Path, record: Study, identity: Identity) -> str:
    """Sign a record into the folder of studies; returns its id."""
    path = folder / "replay" / f"{record.created[:4]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_signed(path, record, identity)
    return receipt_id(path.read_bytes())


def test_the_best_fixed_setting_is_of_the_grid(planner: Experiment) -> None:
    """Catches an arm outside the grid that counts as fixed, and a ratio upside down."""
    rows = grid_table(planner, StudyRecord(record_of(planner), "id")).rows
    assert list(rows["cell"]) == [cell.name for cell in planner.plan.cells]
    for _, row in rows.iterrows():
        assert row["best"] == "k 32, depth 4" and row["best_tok_per_s"] == pytest.approx(25.0)
        assert row["of_best"] == pytest.approx(1.2) and row["of_bound"] == pytest.approx(0.75)


def test_a_replay_without_grid_has_no_best(planner: Experiment) -> None:
    """Catches a table that fails where only arms were replayed."""
    record = record_of(planner)
    rows = [row for row in record.rows if not str(row["arm"]).startswith("fixed")]
    table = grid_table(planner, StudyRecord(msgspec.structs.replace(record, rows=rows), "id"))
    assert table.rows["of_best"].isna().all() and table.rows["of_bound"].notna().all()


def test_the_error_is_of_arms_that_ran(planner: Experiment) -> None:
    """Catches settings of the grid that are held against nothing, and means in place of medians."""
    rows = error_table(planner, StudyRecord(record_of(planner), "id")).rows
    assert set(rows["arm"]) == {"planner", "clairvoyant"}
    for _, row in rows.iterrows():
        jobs = [
            (len(receipt.output_ids) - 1)
            / (receipt.timing.last_commit_ns - receipt.timing.first_commit_ns)
            * 1e9
            for receipt, _ in planner.measured()
            if (receipt.position.cell, receipt.requested.arm) == (row["cell"], row["arm"])
        ]
        middle = sum(sorted(jobs)[1:3]) / 2  # of four
        assert row["measured"] == pytest.approx(middle)
        assert row["ratio"] == pytest.approx(SPEEDS[row["arm"]] / middle)


def test_only_an_experiments_own_records_count_and_the_newest_of_them(
    planner: Experiment,
    planner_invented: Invented,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches another experiment's replay printed as this one's, and a forged one."""
    monkeypatch.setenv("LONGHAUL_HOME", str(planner_invented.home))
    identity = planner_invented.identity
    assert find_replay(planner, tmp_path) is None
    foreign = record_of(planner, "2029-01-01T00:00:00Z")
    foreign.rows[0]["receipt"] = "0" * 16
    written(tmp_path, foreign, identity)
    assert find_replay(planner, tmp_path) is None
    written(tmp_path, record_of(planner, "2026-01-01T00:00:00Z"), identity)
    newest = written(tmp_path, record_of(planner, "2027-01-01T00:00:00Z"), identity)
    found = find_replay(planner, tmp_path)
    assert found is not None and found.record_id == newest
    stranger = Identity.load_or_create(tmp_path / "stranger" / "x.key")
    written(tmp_path, record_of(planner, "2028-01-01T00:00:00Z"), stranger)
    with pytest.raises(ReceiptError):
        find_replay(planner, tmp_path)
