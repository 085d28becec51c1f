"""`python -m analysis.iid`: what it prints, and what it says of impossible rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.iid import TESTS, main
from analysis.iid_file import checked_requests, read_requests
from engine.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def printed(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main([*flags, str(path)]) == 0
    outcomes: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outcomes


def written(folder: Path, requests: object) -> Path:
    path = folder / "rounds.json"
    path.write_text(json.dumps(requests))
    return path


def test_as_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a changed form: statistic, p, p_exact where exact, method; fractions as text."""
    path = written(tmp_path, [[[3, 3], [3, 0], [3, 1]], [[2, 2], [2, 2]]])
    outcomes = printed(path, capsys, "--as-given")
    assert tuple(outcomes) == TESTS
    assert outcomes["between_requests"] == {
        "statistic": "20/3",
        "p": pytest.approx(7 / 15),
        "p_exact": "7/15",
        "method": "exact integers",
    }
    assert outcomes["stream_runs"]["statistic"] == 5
    assert outcomes["full_excess"] == {
        "not_applicable": "draft lengths vary; this test needs one K"
    }
    assert outcomes["context_e"].keys() == {"statistic", "p", "method"}


def test_data_rule_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a flag that reaches nothing, and a cut last round that is tested."""
    path = written(tmp_path, [[[8, 8], [8, 3], [8, 8], [2, 2]], [[8, 0], [8, 8], [5, 1]]])
    ruled, given = printed(path, capsys), printed(path, capsys, "--as-given")
    assert ruled["depth_rise"]["statistic"] == 36 + 6
    assert given["depth_rise"]["statistic"] == 3 * 36 + 6 + 3 + 0 + 1
    assert ruled["context_e"] == given["context_e"]


def test_adaptive_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a p-value for a test that needs one K."""
    path = written(tmp_path, [[[8, 8], [16, 16], [16, 3], [8, 8], [8, 2], [8, 1]]])
    outcomes = printed(path, capsys)
    refused = {name for name, outcome in outcomes.items() if "not_applicable" in outcome}
    assert refused == {"depth_rise", "serial_product", "full_excess"}


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([[[8, 8]], [[8, 3], [8, 9]]], "request 2, round 2: a = 9 > k = 8"),
        ([[[8, -1]]], "request 1, round 1: a = -1 is negative"),
        ([[[-8, -9]]], "request 1, round 1: k = -8 is negative"),
        ([[[8, 1.0]]], "request 1, round 1: a = 1.0 is not an integer"),
        ([[[8, 1], ["8", 1]]], 'request 1, round 2: k = "8" is not an integer'),
        ([[[True, 1]]], "request 1, round 1: k = true is not an integer"),
        ([[[8, None]]], "request 1, round 1: a = null is not an integer"),
        ([[[8, 1, 2]]], r"request 1, round 1: \[8, 1, 2\] is not a pair"),
        ([[8, 1]], "request 1, round 1: 8 is not a pair"),
        ([[{"k": 8}]], "request 1, round 1: .* is not a pair"),
        ([8, 1], "request 1: 8 is not a list of rounds"),
        ([[[8, 1]], []], "request 2: empty"),
        ([], "empty"),
        ({"rounds": []}, "needed: "),
        ("x" * 100, r"holds \"x+…; needed"),
    ],
)
def test_impossible_rows_are_named(requests: object, message: str) -> None:
    """Catches an error that does not say which row is impossible, or why."""
    with pytest.raises(ConfigError, match=message):
        checked_requests(requests)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[[[8, 1]", "not JSON"),
        (b"", "not JSON"),
        (b"[[[8, NaN]]]", "not an integer"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "nested|not JSON"),
        (b"[[[" + b"9" * 5_000 + b", 1]]]", "not JSON"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, body: bytes, message: str) -> None:
    """Catches a traceback in place of a message."""
    path = tmp_path / "rounds.json"
    path.write_bytes(body)
    with pytest.raises(ConfigError, match=message):
        read_requests(path)


def test_errors_leave_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a result printed beside an error, and a message without the file's name."""
    path = written(tmp_path, [[[8, 9]]])
    for wrong in (path, tmp_path / "missing.json", tmp_path):
        assert main([str(wrong)]) == 2
        streams = capsys.readouterr()
        assert not streams.out
        assert streams.err.startswith(f"error: {wrong}: ")


def test_only_rounds_without_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a crash where nothing is left to test."""
    outcomes = printed(written(tmp_path, [[[0, 0], [0, 0]]]), capsys)
    assert all("not_applicable" in outcome for outcome in outcomes.values())


def test_as_a_command(tmp_path: Path) -> None:
    """Catches a module that cannot be run."""
    path = written(tmp_path, [[[4, 2]]])
    command = [sys.executable, "-m", "analysis.iid", "--as-given", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["stream_runs"]["p_exact"] == "2/3"
