"""Tables as `analysis.table_spec` wrote them, read back.

Guarantees: the printed cells are those of the Markdown file, the unrounded rows those of the CSV
beside it; a file in another form is refused by its name, a missing CSV is told. Must never know
what a column means.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from analysis.folders import DEFAULT_EXPERIMENT
from engine.errors import ReceiptError

PROVENANCE = re.compile(r"<!-- (.*) -->")
CELL_BORDER = re.compile(r"(?<!\\)\|")
NUMBER_SIDE = "--:"  # how the rule below the header marks a column of numbers
OUTCOMES = ("hypotheses",)  # what was asked, and what came of it
LAST = ("exclusions", "links")  # of jobs and machines, not of results


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """One table."""

    group: str
    name: str
    title: str
    headers: tuple[str, ...]
    is_number: tuple[bool, ...]
    cells: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    provenance: str
    rows: tuple[dict[str, str], ...]  # of the CSV; empty: there is none
    files: dict[str, Path]  # by ending, those that are there


def read_tables(top: Path) -> tuple[list[PrintedTable], list[str]]:
    """Every table below `paper/tables`, by group and in reading order; what could not be read."""
    tables, gaps = [], []
    for path in sorted(top.rglob("*.md")):
        name = f"paper/tables/{path.relative_to(top).as_posix()}"
        try:
            table = _read(path, path.parent.relative_to(top).as_posix())
        except ReceiptError as error:
            gaps.append(f"{name}: {error}")
            continue
        if "csv" not in table.files:
            gaps.append(f"{name}: has no CSV beside it; `make tables` writes both")
        elif len(table.rows) != len(table.cells):
            gaps.append(
                f"{name}: prints {len(table.cells)} rows and its CSV has {len(table.rows)}; "
                "run: make tables"
            )
        tables.append(table)
    return sorted(tables, key=_reading_order), gaps


def of_group(path: str) -> str:
    """The group of a folder below `paper/tables` or `paper/figures`: the default one's is none."""
    return DEFAULT_EXPERIMENT if path == "." else path


def _reading_order(table: PrintedTable) -> tuple[str, bool, str]:
    return table.group, table.name in LAST, table.name


def _read(path: Path, folder: str) -> PrintedTable:
    lines = path.read_text(encoding="utf-8").splitlines()
    provenance = PROVENANCE.fullmatch(lines[0]) if lines else None
    if provenance is None or len(lines) < 5 or not lines[1].startswith("### "):
        raise ReceiptError("no table of analysis.table_spec: provenance, title, header are not so")
    # Up to the first other line: a note below may begin with such a stroke too.
    body = [_split(line) for line in takewhile(lambda line: line.startswith("|"), lines[3:])]
    header, rule, *rows = body or [(), ()]
    if not header or any(len(row) != len(header) for row in body):
        raise ReceiptError("no table of analysis.table_spec: its rows differ in length")
    files = {
        ending: path.with_suffix(f".{ending}")
        for ending in ("md", "csv", "typ")
        if path.with_suffix(f".{ending}").is_file()
    }
    return PrintedTable(
        group=of_group(folder),
        name=path.stem,
        title=lines[1].removeprefix("### "),
        headers=header,
        is_number=tuple(side == NUMBER_SIDE for side in rule),
        cells=tuple(rows),
        notes=tuple(line for line in lines[3 + len(body) :] if line),
        provenance=provenance[1],
        rows=_csv_rows(files["csv"]) if "csv" in files else (),
        files=files,
    )


def _split(line: str) -> tuple[str, ...]:
    _, *cells, _ = CELL_BORDER.split(line)
    return tuple(cell.strip().replace("\\|", "|") for cell in cells)


def _csv_rows(path: Path) -> tuple[dict[str, str], ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(_without_comments(file)))


def _without_comments(lines: Iterable[str]) -> Iterable[str]:
    """The rows below the line that says where they come from."""
    rows = iter(lines)
    first = next(rows, "")
    if not first.startswith("# "):
        yield first
    yield from rows
