"""What sealing costs, from a run or from its record: the same words. No speed is asserted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.receipt import load_signed, signature_path
from bench.schema import Study
from bench.studies import seal_cost
from bench.study_record import COMMITTED_KEYS, make_study, write_study
from engine.trust.identity import load_public_keys

(COMMITTED,) = (COMMITTED_KEYS.parent / "studies" / "seal-cost").glob(f"{'[0-9a-f]' * 16}.json")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def last_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert seal_cost.main(words) == 0
    return capsys.readouterr().out.splitlines()[-1]


def test_a_record_prints_what_its_run_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a record whose medians are made otherwise than a run's, or that lacks a row."""
    out = tmp_path / "studies"
    assert seal_cost.main(["--payload-bytes", "64", "--reps", "3", "--record", str(out)]) == 0
    written, fresh = capsys.readouterr().out.splitlines()
    assert Path(written).parent == out / "seal-cost"
    assert seal_cost.main(["--from", written]) == 0
    assert capsys.readouterr().out == fresh + "\n"


def test_the_committed_record_prints_its_medians(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a committed record that this command cannot show."""
    shown = json.loads(last_line(capsys, "--from", str(COMMITTED)))
    study, _ = load_signed(COMMITTED, Study, load_public_keys(COMMITTED_KEYS))
    times_ns = sorted(int(row["exchange_ns"]) for row in study.rows if row["suite"] == "plain")
    middle = len(times_ns) // 2
    median_us = (times_ns[middle - 1 + len(times_ns) % 2] + times_ns[middle]) / 2000
    assert shown["plain"]["exchange_us"] == round(median_us, 3)
    assert set(shown) == {str(row["suite"]) for row in study.rows}


def test_nothing_is_written_unasked(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a default folder, or a key made for a signature that nobody wants."""
    monkeypatch.setattr(seal_cost, "write_study", None)
    last_line(capsys, "--payload-bytes", "64", "--reps", "1")
    assert not home.exists() and list(tmp_path.iterdir()) == []


def altered(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"rep":0', b'"rep":1'))


def unsigned(path: Path) -> None:
    signature_path(path).unlink()


@pytest.mark.parametrize("change", [altered, unsigned])
def test_a_record_is_not_taken_on_trust(
    change: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (COMMITTED, signature_path(COMMITTED)):
        shutil.copy(path, tmp_path)
    copied = tmp_path / COMMITTED.name
    assert last_line(capsys, "--from", str(copied))
    change(copied)
    assert seal_cost.main(["--from", str(copied)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(f"error: {copied}")


ROW = {"rep": 0, "suite": "plain", "exchange_ns": 2, "seal_and_open_ns": 1}


@pytest.mark.parametrize(
    ("study", "rows", "message"),
    [
        ("transport-fuzz", [ROW], "'transport-fuzz', not of 'seal-cost'"),
        ("seal-cost", [{"rep": 0, "suite": "plain"}], "exchange_ns, seal_and_open_ns"),
        ("seal-cost", [], "lacks a row"),
        ("seal-cost", [{**ROW, "suite": "aes-256-gcm"}], "lacks the suite 'plain'"),
    ],
)
def test_a_record_of_something_else_is_named(
    study: str, rows: list, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(make_study(study, {}, rows), tmp_path / "studies")
    assert seal_cost.main(["--from", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_reading_goes_with_no_other_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches an option that a reader gives in vain."""
    for words in (["--record", str(tmp_path)], ["--reps", "3"], ["--payload-bytes", "64"]):
        with pytest.raises(SystemExit) as caught:
            seal_cost.main(["--from", str(COMMITTED), *words])
        assert caught.value.code == 2 and "no other option" in capsys.readouterr().err


def test_a_measurement_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--reps", "0"], ["--payload-bytes", "0"]):
        assert seal_cost.main(words) == 2
        assert "1 or more each" in capsys.readouterr().err
