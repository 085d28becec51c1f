"""From a number back to its receipts, by the digest of their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import folders, trace
from bench.receipt import receipt_id

NAME = "all.planner.over.ar.ratio"


def test_every_receipt_of_a_number_is_found_by_its_bytes() -> None:
    """Catches a path that is guessed from the order of jobs."""
    found = trace.trace(f"planner:{NAME}")
    assert found.paths and trace.MISSING not in found.paths.values()
    for each, path in found.paths.items():
        assert receipt_id((folders.REPOSITORY / path).read_bytes()) == each


def test_the_experiment_may_be_left_out_where_one_alone_has_the_number() -> None:
    assert trace.trace(NAME).experiment == "planner"
    with pytest.raises(trace.ConfigError, match=r"say which: decode:jobs\.planned, acceptance:"):
        trace.trace("jobs.planned")


@pytest.mark.parametrize("asked", ["planner:all.planer.over.ar.ratio", "all.planer.over.ar.ratio"])
def test_a_misspelt_number_is_told_its_neighbours(asked: str) -> None:
    with pytest.raises(trace.ConfigError, match=rf"near it: .*planner:{NAME}.*experiments: decode"):
        trace.trace(asked)


def test_a_receipt_that_is_gone_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a number that seems to rest on what is not there."""
    monkeypatch.setattr(folders, "COMMITTED", tmp_path)
    assert set(trace.trace(f"planner:{NAME}").paths.values()) == {trace.MISSING}
    assert trace.main([f"planner:{NAME}"]) == 0
    shown = capsys.readouterr().out
    assert trace.MISSING in shown and "--experiment planner" in shown
    assert trace.main(["nonsense"]) == 2


def test_a_number_over_experiments_finds_all_of_its_receipts() -> None:
    """Catches a search in one experiment's folder for receipts of several."""
    paths = trace._paths("report", ["41c6468f8533bc75", "0" * 16])
    assert paths["41c6468f8533bc75"].startswith("receipts/planner/receipts/")
    assert paths["0" * 16] == trace.MISSING


def test_what_measures_again_is_named_for_jobs_and_records() -> None:
    number = trace.trace(f"planner:{NAME}").number
    paths = {
        "a": "receipts/planner/receipts/0001.json",
        "b": "receipts/seal/receipts/0002.json",
        "c": "receipts/studies/peers/x.json",
    }
    commands = trace.rerun_commands(trace.Traced("report", NAME, number, paths))
    assert commands == [
        "python -m bench run --experiment planner --scale full",
        "python -m bench run --experiment seal --scale full",
        "make study-peers",
    ]
    public = trace.rerun_commands(trace.Traced(trace.PUBLIC, NAME, number, {"x": trace.MISSING}))
    assert "public.audit" in public[0]
