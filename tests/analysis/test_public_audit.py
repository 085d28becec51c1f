"""The audit's outputs: the same bytes every time, whole, and of the pinned files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from analysis.folders import REPOSITORY
from analysis.public import audit
from analysis.public.audit import (
    ENDINGS,
    NUMBERS,
    TABLE_NAMES,
    TABLES,
    committed_faults,
    is_product,
    main,
    make,
)
from analysis.public.claims import all_claims, claims_table
from analysis.public.files import MATRIX, PAPER_OFF, PAPER_ON, read_public, set_digest
from analysis.public.numbers import audit_numbers
from analysis.public.tables import decode_table
from analysis.trace import NumbersFile
from tests.analysis.public_builder import honest

PAPER = REPOSITORY / "paper"
FOLDER = os.environ.get("LONGHAUL_PUBLIC_RECEIPTS", "")
PRODUCTS = {f"{TABLES}/{name}.{ending}" for name in TABLE_NAMES for ending in ENDINGS} | {NUMBERS}


def products(top: Path) -> dict[str, bytes]:
    """Everything below a folder that is laid out as `paper/`, by name."""
    return {
        path.relative_to(top).as_posix(): path.read_bytes()
        for path in top.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The honest set's folder and pins."""
    folder = tmp_path_factory.mktemp("public")
    return folder, honest().write(folder)


@pytest.fixture(scope="module")
def first(
    files: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """What the honest set makes, and its pins; tests that alter a file copy it."""
    public = read_public(*files)
    paper = tmp_path_factory.mktemp("paper")
    make(public, all_claims(public), paper)
    return paper, files[1]


@pytest.fixture
def made(first: tuple[Path, dict[str, str]], tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A copy of it."""
    shutil.copytree(first[0], tmp_path / "paper")
    return tmp_path / "paper", first[1]


def test_everything_is_made_and_the_same_every_time(
    made: tuple[Path, dict[str, str]], files: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Catches a product that no list knows, and one that hangs on the hour or the hash seed."""
    paper, public = made[0], read_public(*files)
    make(public, all_claims(public), tmp_path / "again")
    assert products(paper) == products(tmp_path / "again")
    assert set(products(paper)) == PRODUCTS
    assert all(map(is_product, PRODUCTS))
    assert not any(map(is_product, ("numbers/planner.json", "tables/publicity.md", "numbers.json")))


def test_numbers_have_the_layout_that_trace_and_report_read(
    made: tuple[Path, dict[str, str]],
) -> None:
    paper, pins = made
    body = (paper / NUMBERS).read_bytes()
    file = msgspec.json.decode(body, type=NumbersFile)
    assert file.experiment == "public"
    assert list(file.numbers) == sorted(file.numbers)
    head = msgspec.json.decode(body)
    assert head["generator"] == "analysis.public.audit"
    assert head["receipt_set_digest"] == set_digest(pins)
    ids = {each for number in file.numbers.values() for each in number.receipt_ids}
    assert ids <= {f"{name}:{pin[:16]}" for name, pin in pins.items()}
    for name, number in file.numbers.items():
        quoted = name.startswith(("published.", "audit.calibration."))
        assert number.formula and number.unit and bool(number.receipt_ids) != quoted, name


def test_numbers_are_those_of_the_jobs(tmp_path: Path) -> None:
    """Catches a number under another one's name, or of the other file."""
    files = honest()
    (one,) = (
        record
        for record in files.on
        if (record["arm"], record["cell"], record["rep"]) == ("chain", "open-chat", 2)
    )
    one.update(tok_s=13.0)
    public = read_public(tmp_path, files.write(tmp_path))
    numbers = audit_numbers(public, all_claims(public))
    assert numbers["open-chat.chain.tok_s.median"].value == "12.50"
    assert numbers["open-chat.chain.tok_s.low"].value == "12.50"
    assert numbers["open-chat.chain.tok_s.high"].value == "13.00"
    assert numbers["open-chat.chain.tok_s.median"].receipt_ids == public.ids(PAPER_ON)
    assert numbers["all.chain.tok_s.off"].receipt_ids == public.ids(PAPER_OFF)
    assert float(numbers["all.ar.tok_s.on"].value) == 4.90
    assert numbers["split.on.chain.traversal"].value == "400"
    assert numbers["split.on.chain.transport_share"].value == "60"
    assert numbers["attestation.chain.stage-1.ms"].value == "0.16"
    assert numbers["attestation.hybrid.ring.share"].value == "0.40"
    assert numbers["open-chat.chain.wasted"].value == "3"
    assert (numbers["jobs.on"].value, numbers["jobs.off"].value) == ("64", "52")


def test_the_decode_table_prints_one_row_a_cell_and_arm(tmp_path: Path) -> None:
    printed = decode_table(read_public(tmp_path, honest().write(tmp_path))).to_markdown()
    assert "| open-chat | 58 | on | chain | 3 | 12.50 | 3.00 | 2.50 | 10 | 3 |" in printed
    assert "| all cells | — | on | ar | 12 | 4.90 | — | — | — | — |" in printed
    assert printed.count("| all cells |") == 3
    assert (
        "up to 1.0 % above" in printed and "differ between repetitions in 0 of 24 rows" in printed
    )


def _altered_table(paper: Path) -> None:
    path = paper / TABLES / "law.md"
    path.write_text(path.read_text().replace("receipt set ", "receipt set 0", 1))


def _altered_numbers(paper: Path) -> None:
    path = paper / NUMBERS
    path.write_bytes(path.read_bytes().replace(b'"receipt_set_digest": "', b'"x": "', 1))


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda paper: (paper / TABLES / "claims.typ").unlink(),
        "tables/public/claims.typ: is missing",
    ),
    (lambda paper: (paper / NUMBERS).unlink(), "numbers/public.json: is missing"),
    (
        lambda paper: (paper / TABLES / "more.md").write_text("typed"),
        "tables/public/more.md: is no product",
    ),
    (_altered_table, "tables/public/law.md: was not made from the pinned"),
    (_altered_numbers, "numbers/public.json: was not made from the pinned"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_a_fault_that_shows_without_the_files_is_named(
    made: tuple[Path, dict[str, str]], fault: Callable[[Path], object], words: str
) -> None:
    paper, pins = made
    assert committed_faults(paper, pins) == []
    fault(paper)
    (found,) = committed_faults(paper, pins)
    assert found.startswith(words)


def test_products_of_other_files_are_no_products_of_the_pinned_ones(
    made: tuple[Path, dict[str, str]],
) -> None:
    """Catches a check that holds anything to be the published files' product."""
    assert len(committed_faults(made[0])) == len(PRODUCTS)


def test_the_command_line_writes_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = honest().write(tmp_path / "files")
    monkeypatch.setattr(audit, "read_public", partial(read_public, pins=pins))
    words = ["--folder", str(tmp_path / "files"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "31 published claims: 23 supported, 1 not supported, 7 not testable"
    assert len(told) == 1 + len(PRODUCTS) and set(products(tmp_path / "out")) == PRODUCTS


def test_the_command_line_refuses_what_is_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest().write(tmp_path / "files")
    out = tmp_path / "out"
    assert main(["--folder", str(tmp_path / "files"), "--out", str(out)]) == 2
    assert f"error: {tmp_path / 'files' / PAPER_ON}: altered" in capsys.readouterr().err
    assert not out.exists()
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2 and "--folder" in capsys.readouterr().err


def test_the_committed_audit_is_whole_and_of_the_pinned_files() -> None:
    """Catches a product that was left out, typed, or made from other files; needs no folder."""
    assert committed_faults(PAPER) == []


@pytest.mark.skipif(not FOLDER, reason="LONGHAUL_PUBLIC_RECEIPTS names no folder")
def test_the_committed_audit_is_what_the_published_files_make(tmp_path: Path) -> None:
    """Catches a number of the appendix that the published files do not give."""
    public = read_public(Path(FOLDER))
    claims = all_claims(public)
    make(public, claims, tmp_path)
    committed = {name: body for name, body in products(PAPER).items() if is_product(name)}
    made = products(tmp_path)
    assert committed.keys() == made.keys()
    assert [name for name, body in made.items() if committed[name] != body] == []
    assert len(public.matrix.matrix) == 16 and MATRIX in claims_table(public, claims).to_csv()
