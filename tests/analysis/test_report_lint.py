"""The report's linter: digits in results, unknown names, and that the committed report passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.report_lint import REPORT, bare_digits, faults, main, unknown_numbers

RESULTS = "= What we found <results-found>\n"
KNOWN = ["planner:all.planner.over.ar.ratio", "seal:all.seal-aes.over.seal-none.ratio"]


@pytest.mark.parametrize(
    "prose",
    [
        "It is 5 times as fast.",
        "It is five times as fast, not 4.8.",
        '#n("planner:all.planner.over.ar.ratio") and 3 more',
        "by 10 % $x = 2$",
        '#fig("a/b2")[3 repetitions] <fig-a>',
    ],
)
def test_a_bare_digit_in_results_is_named_by_line(prose: str) -> None:
    found = list(bare_digits(RESULTS + "\nfine\n" + prose))
    assert len(found) == 1 and found[0].startswith("line 4: ")


@pytest.mark.parametrize(
    "prose",
    [
        'It is #n("planner:all.chain-k8.over.ar.ratio") times as fast.',
        "`chain-k8` and `wan-275` are names.",
        "@fig-k8 shows it. // 3 of them",
        '#fig("planner/k8")[No digits.] <fig-k8>',
    ],
)
def test_names_labels_and_comments_are_no_prose(prose: str) -> None:
    assert not list(bare_digits(RESULTS + prose))


def test_other_sections_may_hold_digits() -> None:
    """Catches a linter that never leaves a section of results, or never enters one."""
    source = f"= Setting\n30 layers\n{RESULTS}a 7\n== Part\nan 8\n= Related work\nin 2023\n"
    assert [fault.split(":")[0] for fault in bare_digits(source)] == ["line 4", "line 6"]


def test_an_unknown_number_names_what_is_near() -> None:
    source = 'a #n("planner:all.planer.over.ar.ratio")\n#iv("zz:q")'
    first, *others = unknown_numbers(source, set(KNOWN), KNOWN)
    assert "line 1" in first and KNOWN[0] in first
    assert len(others) == 3  # a ratio and both ends
    assert all("line 2" in other and "near it: nothing" in other for other in others)


def test_an_interval_needs_its_ratio_and_both_ends() -> None:
    """`iv` names a ratio without its last part, `ci` a number that has ends of its own."""
    ends = [f"planner:all.x.{end}" for end in ("ratio", "low", "high")]
    assert not list(unknown_numbers('#iv("planner:all.x")', set(ends), ends))
    assert list(unknown_numbers('#iv("planner:all.x")', set(ends[:2]), ends[:2]))
    plain = ["planner:x", "planner:x.low", "planner:x.high"]
    assert not list(unknown_numbers('#ci("planner:x")', set(plain), plain))
    assert list(unknown_numbers('#ci("planner:x")', set(plain[1:]), plain[1:]))


def test_the_committed_report_passes() -> None:
    assert faults(REPORT.read_text(encoding="utf-8"), REPORT.parent) == []


def test_a_paper_made_elsewhere_is_held_to_its_own_numbers(tmp_path: Path) -> None:
    """Catches a report that is checked against other numbers than those that it prints."""
    (tmp_path / "numbers.json").write_text('{"experiment": "decode", "numbers": {}}')
    found = faults('#n("planner:all.planner.over.ar.ratio")', tmp_path)
    assert len(found) == 1 and "no number" in found[0]
    assert faults('#n("planner:all.planner.over.ar.ratio")', REPORT.parent) == []


def test_the_command_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.typ"
    path.write_text(RESULTS + "9 lives\n", encoding="utf-8")
    assert main([str(path)]) == 1
    assert "report.typ: line 2" in capsys.readouterr().out
    assert main([str(tmp_path / "absent.typ")]) == 2
