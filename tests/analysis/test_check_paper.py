"""Committed products against what their receipts make, byte by byte and both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import check_paper, readme
from analysis.product_kind import Kind, make_products
from analysis.public import audit

DIFFERENCES = readme.differences


@pytest.fixture
def paper(
    two_committed: Path, separate_kinds: dict[str, Kind], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A repository whose paper is as its receipts make it."""
    monkeypatch.setattr(readme, "differences", list)
    monkeypatch.setattr(audit, "committed_faults", lambda paper: [])
    list(make_products(separate_kinds.values(), two_committed / "paper"))
    return two_committed / "paper"


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def bind(paper: Path) -> list[Path]:
    """A report that is one letter for each table."""
    report = paper / "report.pdf"
    report.write_text("t" * len(list((paper / "tables").rglob("*.md"))))
    return [report]


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
    text = f"before {readme.BEGIN} old {readme.END} behind"
    (paper.parent / "README.md").write_text(text)
    monkeypatch.setattr(readme, "README", paper.parent / "README.md")
    monkeypatch.setattr(readme, "committed_block", lambda: f"{readme.BEGIN} new {readme.END}")
    monkeypatch.setattr(readme, "differences", DIFFERENCES)
    assert readme.main(["--check"]) == 1
    assert check_paper.main([]) == 1
    assert told(capsys)[0].startswith("README.md: ")
    assert readme.main([]) == 0
    assert (paper.parent / "README.md").read_text() == text.replace("old", "new")
    assert readme.main(["--check"]) == check_paper.main([]) == 0


def test_receipts_that_do_not_hold_are_an_error(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a comparison with nothing, which holds."""
    plan = paper.parent / "receipts" / "frames" / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b"frames", b"Frames", 1))
    assert check_paper.main([]) == 2
    assert "plan.json" in capsys.readouterr().err


def test_products_of_others_receipts_are_left_alone(
    paper: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a check that asks for receipts that are not in the repository."""
    (paper / "tables" / "public").mkdir()
    (paper / "tables" / "public" / "decode.md").write_text("theirs")
    (paper / "numbers" / "public.json").write_text("{}")
    assert check_paper.main([]) == 0
    (paper / "tables" / "public.md").write_text("ours")
    assert check_paper.main([]) == 1
    assert "tables/public.md: is committed and not made" in told(capsys)
    monkeypatch.setattr(audit, "committed_faults", lambda paper: [f"{paper.name}: theirs"])
    assert check_paper.main([]) == 1
    assert "paper: theirs" in told(capsys), "what is wrong with them the audit says"


def test_a_kind_is_compared_where_it_is_registered(
    paper: Path,
    separate_kinds: dict[str, Kind],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches places that are compared but not made, or made of less than the committed one."""
    public = paper / "tables" / "public" / "decode.md"
    public.parent.mkdir()
    public.write_text("made apart, and printed in the report")
    kinds = {**separate_kinds, "report": Kind(places=("report.pdf",), of_products=bind)}
    monkeypatch.setattr(check_paper, "KINDS", kinds)
    assert check_paper.main([]) == 1
    assert told(capsys)[0] == "report.pdf: is made and not committed"
    bind(paper)
    assert check_paper.main([]) == 0
    (paper / "report.pdf").write_text("t")
    assert check_paper.main([]) == 1
    assert told(capsys)[-2] == "report.pdf: differs from what its receipts make"
