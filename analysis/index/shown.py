"""What the page shows, as its template reads it.

Guarantees: nothing but what was read, and how much room it takes. Must never know HTML, nor where
a file lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analysis.index.cell_numbers import Cell
from analysis.index.drawn_figures import DrawnFigure
from analysis.index.experiment_facts import ExperimentFacts
from analysis.index.named_numbers import ReceiptSets
from analysis.index.printed_tables import OUTCOMES, PrintedTable
from analysis.index.receipt_files import ReceiptFile
from analysis.named_number import NamedNumber
from analysis.study_records import PRODUCTS as STUDIES

MAX_NAME_LEN = 24  # a longer cell is a sentence, and may break


@dataclass(frozen=True, slots=True)
class TableShown:
    """A table with its numbers found."""

    table: PrintedTable
    anchor: str
    cells: list[list[Cell]]

    @property
    def has_numbers(self) -> bool:
        return any(piece.anchor for row in self.cells for cell in row for piece in cell)

    @property
    def looks(self) -> list[str]:
        """How each column is set: numbers to the right, names in one line, sentences broken."""
        longest = [max(map(len, texts)) for texts in zip(*self.table.cells, strict=True)]
        longest = longest or [0] * len(self.table.headers)
        return [
            "right" if is_number else "name" if length <= MAX_NAME_LEN else "words"
            for is_number, length in zip(self.table.is_number, longest, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class FigureShown:
    """A figure and the list of the receipts that were drawn."""

    figure: DrawnFigure
    anchor: str
    panel: str  # anchor of the panel with its receipts
    receipt_set: int


@dataclass(frozen=True, slots=True)
class NumberShown:
    """A number and the list of the receipts that it rests on."""

    group: str
    name: str
    number: NamedNumber
    anchor: str
    receipt_set: int
    rerun: list[str]
    missing: int  # of its receipts, those that are not here and should be


@dataclass(frozen=True, slots=True)
class RecordShown:
    """A study record and what records it again."""

    receipt: ReceiptFile
    study: str
    created: str
    commit: str
    machine: str
    rerun: str


@dataclass(frozen=True, slots=True)
class Section:
    """What belongs to one experiment, to studies, or to all."""

    name: str
    title: str
    anchor: str
    experiment: ExperimentFacts | None
    folder: Path | None  # of its receipts; None: it has none of its own
    num_receipts: int
    tables: list[TableShown]
    figures: list[FigureShown]
    num_numbers: int
    gaps: list[str]

    @property
    def is_studies(self) -> bool:
        return self.name == STUDIES

    @property
    def outcomes(self) -> list[TableShown]:
        """What was asked and what came of it, which a reader wants before anything else."""
        return [shown for shown in self.tables if shown.table.name in OUTCOMES]

    @property
    def results(self) -> list[TableShown]:
        return [shown for shown in self.tables if shown.table.name not in OUTCOMES]


@dataclass(frozen=True, slots=True)
class Contents:
    """The page's contents."""

    sections: list[Section]
    numbers: list[NumberShown]
    records: list[RecordShown]
    receipts: ReceiptSets
    report: Path | None  # the PDF; None: it is not there
    gaps: list[str]  # of all; a section repeats its own

    @property
    def num_problems(self) -> int:
        """Receipts that do not hold."""
        return sum(bool(each.problem) for each in self.receipts.receipts)
