"""The index's parts: tables read back, numbers found by name, receipts by their bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.index.anchors import Links, anchor
from analysis.index.cell_numbers import Piece, agrees, linked_cells
from analysis.index.drawn_figures import read_figures
from analysis.index.experiment_facts import experiment_facts, experiment_names
from analysis.index.named_numbers import ReceiptSets, read_numbers
from analysis.index.printed_tables import PrintedTable, read_tables
from analysis.index.receipt_files import ReceiptFile, receipt_files
from analysis.named_number import NamedNumber, named
from analysis.table_spec import TableSpec, number, text
from bench.receipt import receipt_id, signature_path
from tests.analysis.conftest import Invented
from tests.analysis.index_repository import STUDY, write_record

WORDS = st.text(st.sampled_from("ab|\\`<–1"), min_size=1, max_size=8)


# ---- anchors ----


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_an_anchor_is_one_word_that_leads_back_to_its_name(name: str) -> None:
    """Catches names with spaces and signs, which are no ids, and two names of one anchor."""
    made = anchor("number", name)
    assert unquote(made) == f"number={name}"
    assert not set(made) & set(" \t\n\r\f\"'<>&#`")


def test_plain_names_stand_in_the_address_as_they_are() -> None:
    wanted = "number=planner:all.planner.over.ar.ratio"
    assert anchor("number", "planner:all.planner.over.ar.ratio") == wanted


def test_links_are_relative_to_the_page_and_names_to_the_root(tmp_path: Path) -> None:
    path = tmp_path / "receipts" / "a b#" / "0.json"
    links = Links(tmp_path / "build", tmp_path)
    assert links.to(path) == "../receipts/a%20b%23/0.json"
    assert links.name(path) == "receipts/a b#/0.json"


# ---- tables ----


def spec_of(rows: pd.DataFrame, notes: tuple[str, ...] = ()) -> TableSpec:
    columns = (text("cell"), number("speed", "tok/s", 1))
    return TableSpec("speeds", "Speeds", rows, columns, notes, "made by a test")


@given(st.lists(st.tuples(WORDS, st.floats(-1e6, 1e6)), max_size=5))
def test_a_table_reads_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float]]
) -> None:
    """Catches strokes in cells, empty tables, and columns that swap sides."""
    top = tmp_path_factory.mktemp("tables")
    spec = spec_of(pd.DataFrame(rows, columns=["cell", "speed"]), ("|a note|", "more"))
    spec.write(top / "group")
    [table], gaps = read_tables(top)
    assert [list(row) for row in table.cells] == spec.printed()
    assert (table.group, table.name, table.title) == ("group", "speeds", "Speeds")
    assert (table.headers, table.is_number) == (("cell", "tok/s"), (False, True))
    assert (table.notes, table.provenance) == (("|a note|", "more"), "made by a test")
    assert [row["cell"] for row in table.rows] == [cell for cell, _ in rows] and not gaps
    assert set(table.files) == {"md", "csv", "typ"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "provenance, title, header"),
        ("# A heading\n\nwords\n", "provenance, title, header"),
        ("<!-- by hand -->\n### Title\n\nno table\n", "provenance, title, header"),
        ("<!-- by hand -->\n### Title\n\n| a | b |\n| :-- |\n", "its rows differ in length"),
        ("<!-- by hand -->\n### Title\n\nno table\nat all\n", "its rows differ in length"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "notes.md").write_text(written)
    tables, [gap] = read_tables(tmp_path)
    assert not tables and gap.startswith("paper/tables/notes.md: ") and said in gap


def test_a_csv_that_is_missing_or_longer_is_told(tmp_path: Path) -> None:
    """Catches rows beside which another row's words stand."""
    spec_of(pd.DataFrame({"cell": ["chat"], "speed": [1.0]})).write(tmp_path)
    path = tmp_path / "speeds.csv"
    path.write_text(path.read_text() + "another,2\n")
    _, [gap] = read_tables(tmp_path)
    assert "prints 1 rows and its CSV has 2" in gap
    path.unlink()
    [table], [gap] = read_tables(tmp_path)
    assert "has no CSV beside it" in gap and table.rows == () and table.cells == (("chat", "1.0"),)


# ---- numbers in cells ----


def table_of(name: str, header: str, texts: list[str], rows: list[dict[str, str]]) -> PrintedTable:
    cells = tuple((printed,) for printed in texts)
    return PrintedTable("g", name, "", (header,), (True,), cells, (), "", tuple(rows), {})


def ratio(value: float) -> NamedNumber:
    return named(value, 3, "ratio", "", [])


def test_numbers_are_found_by_the_words_of_their_row_not_by_value() -> None:
    """Catches a guess: both rows print 3.26."""
    rows = [{"cell": cell, "arm": "ar", "median_tok_per_s": "3.26"} for cell in ("chat", "summary")]
    table = table_of("decode", "tok/s [min–max]", ["3.26 [3.20–3.30]", "3.26"], rows)
    numbers = {
        f"{cell}.ar.decode_tok_per_s.median": named(3.26, 2, "tokens/s", "", [])
        for cell in ("other", "summary", "chat")
    }
    cells, gaps = linked_cells(table, numbers)
    wanted = [f"number=g:{cell}.ar.decode_tok_per_s.median" for cell in ("chat", "summary")]
    assert [row[0][0] for row in cells] == [Piece("3.26", each) for each in wanted] and not gaps
    assert "".join(piece.text for piece in cells[0][0]) == "3.26 [3.20–3.30]"
    assert not any(piece.anchor for piece in cells[0][0][1:])


def test_middle_and_ends_of_a_ratio_are_three_numbers_of_all_cells_only() -> None:
    """Catches the ratio of one cell under the name of all of them."""
    row = {"arm": "tree", "base": "ar", "ratio": "1.1004", "low": "1.0004", "high": "1.2004"}
    rows = [{**row, "cell": cell} for cell in ("chat", "all cells")]
    table = table_of("decode", "ratio to ar [95 %]", ["1.10 [1.00–1.20]"] * 2, rows)
    numbers = {
        f"all.tree.over.ar.{end}": ratio(value)
        for end, value in (("ratio", 1.1), ("low", 1.0), ("high", 1.2))
    }
    (one, every), gaps = linked_cells(table, numbers)
    assert one == [(Piece("1.10 [1.00–1.20]"),)] and not gaps
    found = {piece.text: piece.anchor for piece in every[0] if piece.anchor}
    assert found == {
        "1.10": "number=g:all.tree.over.ar.ratio",
        "1.00": "number=g:all.tree.over.ar.low",
        "1.20": "number=g:all.tree.over.ar.high",
    }


def test_a_number_that_says_something_else_is_not_linked_but_told() -> None:
    """Catches a table and numbers of different receipts that look like one another."""
    row = {"test": "depth_rise", "p": "0.0123"}
    number_of = {"study.p.depth_rise": named(0.0124, 6, "p", "", [])}
    [[cell]], [gap] = linked_cells(table_of("iid", "p", ["0.0123"], [row]), number_of)
    assert cell == (Piece("0.0123"),)
    assert gap.startswith("g, table iid: p is 0.0123, the number study.p.depth_rise 0.012400")


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("unknown", "p", {"test": "depth_rise", "p": "0.5"}),  # no rule for the table
        ("iid", "level", {"test": "depth_rise", "p": "0.5"}),  # nor for the column
        ("iid", "p", {"p": "0.5"}),  # a table of this name with other columns
        ("iid", "p", {"test": "stream_runs", "p": "0.5"}),  # a number that there is not
        ("iid", "p", {"test": "depth_rise", "p": ""}),  # nothing was computed
    ],
)
def test_what_has_no_rule_or_no_number_stays_text(
    name: str, header: str, row: dict[str, str]
) -> None:
    number_of = {"study.p.depth_rise": named(0.5, 6, "p", "", [])}
    cells, gaps = linked_cells(table_of(name, header, ["0.5"], [row]), number_of)
    assert cells == [[(Piece("0.5"),)]] and not gaps


@pytest.mark.parametrize(
    ("unrounded", "value", "holds"),
    [
        ("3.26499", "3.26", True),
        ("3.265", "3.26", True),  # the CSV's six digits cannot tell
        ("3.2656", "3.26", False),
        ("1164.49", "1164", True),
        ("1165", "1164", False),
        ("1e-05", "0.000010", True),
        ("< 1e-6", "0.000000", True),
        ("< 1e-6", "0.000010", False),
        ("none", "0.5", False),
        ("< none", "0.5", False),
    ],
)
def test_a_number_is_the_rounded_field(unrounded: str, value: str, holds: bool) -> None:
    assert agrees(unrounded, value) is holds


# ---- receipts ----


@pytest.fixture
def receipts(frames_invented: Invented, tmp_path: Path) -> Path:
    """`receipts/` with one experiment and the key that signed it."""
    top = tmp_path / "receipts"
    (top / "keys").mkdir(parents=True)
    shutil.copytree(frames_invented.folder, top / "frames")
    shutil.copy(frames_invented.home / "keys" / "harness.pub", top / "keys" / "one.pub")
    return top


def first(top: Path) -> Path:
    return top / "frames" / "receipts" / "0000.json"


def problem_of(top: Path) -> str:
    return next(each.problem for each in receipt_files(top) if each.path == first(top))


def test_receipts_are_known_by_their_bytes_and_say_where_they_stand(
    receipts: Path, frames_invented: Invented
) -> None:
    files = receipt_files(receipts)
    assert len(files) == len(list((receipts / "frames" / "receipts").glob("????.json")))
    for idx, each in enumerate(files):
        assert each.receipt_id == receipt_id(each.path.read_bytes()) and not each.problem
        assert (each.group, each.place.position.job_idx) == ("frames", idx)
        assert each.key_id == frames_invented.identity.key_id


def test_a_changed_byte_a_strange_key_and_no_signature_are_told(receipts: Path) -> None:
    body = first(receipts).read_bytes()
    first(receipts).write_bytes(body.replace(b'"measured"', b'"warmup__"', 1) + b" ")
    assert "its bytes are not the ones that 0000.sig.json signs" in problem_of(receipts)
    first(receipts).write_bytes(b"{")
    assert "no receipt: " in problem_of(receipts)
    first(receipts).write_bytes(body)
    assert problem_of(receipts) == ""
    signature_path(first(receipts)).write_text("{}")
    assert problem_of(receipts).startswith("0000.sig.json: not a signature file: ")
    signature_path(first(receipts)).unlink()
    assert problem_of(receipts) == "unsigned: 0000.sig.json is missing"


def test_a_key_that_is_not_the_repositorys_is_told(receipts: Path) -> None:
    """Catches a page that trusts whatever key its reader happens to have."""
    (receipts / "keys" / "one.pub").unlink()
    assert problem_of(receipts).startswith("signed by unknown key ")
    facts = experiment_facts(receipts, "frames", receipt_files(receipts))
    [gap] = facts.gaps
    assert gap.startswith("receipts/frames/plan.json: ") and not facts.facts + facts.hypotheses


def test_a_study_of_an_experiments_name_is_another_thing(
    receipts: Path, frames_invented: Invented
) -> None:
    """Catches a study's record among the receipts of the experiment that shares its name."""
    write_record(receipts / "studies" / "frames" / "0.json", frames_invented)
    files = receipt_files(receipts)
    assert files[-1].group == "studies" and files[-1].place.study == STUDY
    assert sum(each.group == "frames" for each in files) == len(files) - 1
    assert experiment_names(receipts) == ["frames"]


def test_a_receipt_too_few_and_a_plan_that_is_gone_are_told(receipts: Path) -> None:
    files = receipt_files(receipts)
    assert experiment_facts(receipts, "frames", files).gaps == ()
    [gap] = experiment_facts(receipts, "frames", files[1:]).gaps
    assert f"of {len(files)} planned jobs, {len(files) - 1} have receipts here" in gap
    (receipts / "frames" / "plan.json").unlink()
    facts = experiment_facts(receipts, "frames", files)
    assert facts.plan is None and "plan.json" in facts.gaps[0]
    assert experiment_names(receipts) == ["frames"]


def test_sets_prefer_the_own_experiment_and_are_kept_once(receipts: Path) -> None:
    """Catches a link into another experiment that holds the same bytes."""
    shutil.copytree(receipts / "frames", receipts / "again")
    files = receipt_files(receipts)
    names = [each.path.relative_to(receipts.parent).as_posix() for each in files]
    sets = ReceiptSets(files, names)
    ids = [each.receipt_id for each in files if each.group == "frames"]
    for group in ("frames", "again"):
        found = sets.sets[sets.add(group, reversed(ids))]
        assert [files[idx].receipt_id for idx in found] == ids
        assert {files[idx].group for idx in found} == {group}
    kept = sets.add("frames", [*ids, "0123456789abcdef"])
    assert sets.add("frames", ["0123456789abcdef", *ids]) == kept == 2
    assert sets.missing(kept) == ["0123456789abcdef"] and not sets.missing(0)


def test_numbers_say_what_measures_them_again(receipts: Path) -> None:
    files: list[ReceiptFile] = receipt_files(receipts)
    sets = ReceiptSets(files, [f"receipts/frames/receipts/{each.path.name}" for each in files])
    own = named(1, 0, "", "", [files[0].receipt_id])
    rerun = sets.rerun("frames", "n", own, sets.add("frames", own.receipt_ids))
    assert rerun == ["python -m bench run --experiment frames --scale full"]
    bare = named(1, 0, "", "", [])
    assert sets.rerun("frames", "n", bare, sets.add("frames", [])) == []


def test_files_of_numbers_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "seal.json").write_text('{"experiment": 1}')
    numbers, gaps = read_numbers(tmp_path)
    assert not numbers and sorted(gap.split(" ")[0] for gap in gaps) == [
        "paper/numbers.json",
        "paper/numbers/seal.json",
    ]


# ---- figures ----

SVG = """<svg xmlns:xlink="x" width="540pt" height="72.4pt" viewBox="0 0 1 1">
<metadata><rdf:li>experiment a &amp; b; receipt set 0123456789abcdef; {drawn}</rdf:li></metadata>
</svg>"""


def test_a_figures_size_and_receipts_are_read_from_its_files(tmp_path: Path) -> None:
    """Catches the digest of the receipt set among the receipts."""
    few = "2 receipts drawn: 00000000000000aa, 00000000000000bb"
    (tmp_path / "few.svg").write_text(SVG.format(drawn=few))
    (tmp_path / "seal").mkdir()
    (tmp_path / "seal" / "many.svg").write_text(
        SVG.format(drawn="20 receipts drawn, listed in many.ids.txt")
    )
    (tmp_path / "seal" / "many.ids.txt").write_text("00000000000000cc\n00000000000000dd\n")
    (tmp_path / "seal" / "many.csv").write_text("a\n")
    (few_figure, many), gaps = read_figures(tmp_path)
    assert (few_figure.group, few_figure.width, few_figure.height) == ("decode", 720, 97)
    assert few_figure.receipt_ids == ("00000000000000aa", "00000000000000bb")
    wanted = "experiment a & b; receipt set 0123456789abcdef; 2 receipts drawn"
    assert few_figure.provenance == wanted
    assert many.group == "seal" and many.receipt_ids == ("00000000000000cc", "00000000000000dd")
    assert [gap.split(" ")[0] for gap in gaps] == [
        "paper/figures/few.pdf",
        "paper/figures/few.csv",
        "paper/figures/seal/many.pdf",
    ]
