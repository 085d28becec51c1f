"""One table, five ways: Markdown, CSV, Typst, a terminal, a notebook.

Guarantees: rounding happens once, here, by the column's own rule; a written file starts with a
comment that names its generator and the digest of the receipts it was made from; the same rows give
the same bytes. Must never know what a column means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

NOTHING = "—"
Formatter = Callable[[dict[str, object]], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A printed column, made from a whole row."""

    header: str
    cell: Formatter
    is_number: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class TableSpec:
    """Rows, what to print of them and the sentences below."""

    name: str
    title: str
    rows: pd.DataFrame
    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    provenance: str

    def printed(self) -> list[list[str]]:
        """The printed cells, row by row."""
        return [
            [column.cell(row) for column in self.columns] for row in self.rows.to_dict("records")
        ]

    def to_markdown(self) -> str:
        """The table as Markdown; also what a notebook shows."""
        rule = ["--:" if column.is_number else ":--" for column in self.columns]
        lines = [
            f"<!-- {self.provenance} -->",
            f"### {self.title}",
            "",
            _markdown_row([column.header for column in self.columns]),
            _markdown_row(rule),
            *(_markdown_row(cells) for cells in self.printed()),
            "",
            *(f"{note}\n" for note in self.notes),
        ]
        return "\n".join(lines)

    def to_csv(self) -> str:
        """The unrounded rows (six significant digits, so that bytes do not hang on a last bit)."""
        body = self.rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        return f"# {self.provenance}\n{body}"

    def to_typst(self) -> str:
        """A Typst file with two names, `body` and `notes`; the report imports it.

        Every cell is a string literal, so nothing in it is read as markup.
        """
        sides = ["right" if column.is_number else "left" for column in self.columns]
        header = ", ".join(_typst_string(column.header) for column in self.columns)
        lines = [
            f"// {self.provenance}",
            "#let body = table(",
            f"  columns: {len(self.columns)},",
            f"  align: ({', '.join(sides)},),",
            f"  table.header({header}),",
            *(f"  {', '.join(map(_typst_string, cells))}," for cells in self.printed()),
            ")",
            f"#let notes = ({''.join(f'{_typst_string(note)}, ' for note in self.notes)})",
        ]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write `<name>.md`, `<name>.csv` and `<name>.typ`."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"md": self.to_markdown(), "csv": self.to_csv(), "typ": self.to_typst()}
        paths = [folder / f"{self.name}.{ending}" for ending in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8", newline="\n")
        return paths

    def show(self, console: Console) -> None:
        """Print to a terminal; the first column is named once per run of equal values."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for column in self.columns:
            # Only words may break: a number cut in two is misread.
            table.add_column(
                Text(column.header),
                justify="right" if column.is_number else "left",
                no_wrap=column.is_number,
                overflow="ellipsis" if column.is_number else "fold",
            )
        shown = self.printed()
        for idx, cells in enumerate(shown):
            repeats = idx > 0 and shown[idx - 1][0] == cells[0]
            ends_section = idx + 1 < len(shown) and shown[idx + 1][0] != cells[0]
            texts = [Text("" if repeats and not at else cell) for at, cell in enumerate(cells)]
            table.add_row(*texts, end_section=ends_section)
        console.print(table)
        for note in self.notes:
            console.print(Text(note, style="dim"))
        console.print()


def text(key: str, header: str | None = None) -> Column:
    """A column of words."""
    return Column(header or key, lambda row: str(row[key]), is_number=False)


def number(key: str, header: str, decimals: int = 0) -> Column:
    """A column of numbers with a fixed number of decimals; NaN prints as a dash."""
    return Column(header, lambda row: rounded(row.get(key), decimals))


def interval(keys: tuple[str, str, str], header: str, decimals: int) -> Column:
    """A column `middle [low–high]`; the middle alone if it is all there is."""

    def cell(row: dict[str, object]) -> str:
        middle, low, high = (rounded(row.get(key), decimals) for key in keys)
        is_bare = NOTHING in (low, high) or row[keys[1]] == row[keys[2]]
        return middle if is_bare else f"{middle} [{low}–{high}]"

    return Column(header, cell)


def rounded(value: object, decimals: int) -> str:
    """The one rounding rule."""
    if not isinstance(value, int | float) or math.isnan(value):
        return NOTHING
    return f"{value:.{decimals}f}"


def _markdown_row(cells: list[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _typst_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
