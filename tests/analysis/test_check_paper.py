"""Committed products against what their receipts make, byte by byte and both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import check_paper, readme


@pytest.fixture
def paper(two_committed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose paper is as its receipts make it."""
    monkeypatch.setattr(readme, "main", lambda words: 0)
    check_paper.make_all(two_committed / "paper")
    return two_committed / "paper"


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_what_the_receipts_make_holds(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_paper.main([]) == 0
    assert told(capsys) == ["paper/ holds"]


def test_every_kind_of_difference_is_named(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches an edited figure, a table nobody makes, a number that was left out."""
    table = paper / "tables" / "decode.md"
    table.write_text(table.read_text().replace("|", "!", 1))
    (paper / "figures" / "frames" / "by_hand.svg").write_text("<svg/>")
    (paper / "numbers" / "frames.json").unlink()
    assert check_paper.main([]) == 1
    assert told(capsys) == [
        "figures/frames/by_hand.svg: is committed and not made",
        "numbers/frames.json: is made and not committed",
        "tables/decode.md: differs from what its receipts make",
        "3 differences between paper/ and its receipts",
    ]


def test_a_readme_that_says_something_else_is_named(
    paper: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readme, "main", lambda words: 1)
    assert check_paper.main([]) == 1
    assert told(capsys)[0].startswith("README.md: ")


def test_receipts_that_do_not_hold_are_an_error(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a comparison with nothing, which holds."""
    plan = paper.parent / "receipts" / "frames" / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b"frames", b"Frames", 1))
    assert check_paper.main([]) == 2
    assert "plan.json" in capsys.readouterr().err
