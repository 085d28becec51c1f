"""Which printed cell is which named number.

Guarantees: a number is found by the words of its row, as its name is made of them, and never by its
value; where the value of the unrounded row is not what the number says, there is no link and the
difference is told. Must never know a page.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from string import Formatter

from analysis.effects import ALL_CELLS
from analysis.index.anchors import anchor
from analysis.index.printed_tables import PrintedTable
from analysis.named_number import NamedNumber

INTERVAL = re.compile(r"(\S+)( \[)(.+)(–)(.+)(\])")  # middle [low–high]: numbers at 0, 2, 4
CSV_DIGITS = 1e-5  # CSVs hold six significant digits
BELOW = "<"  # a p-value's cell may state a bound


@dataclass(frozen=True, slots=True)
class NumberRule:
    """The numbers of one column: CSV column and name of each, in printed order."""

    header: str  # pattern of the printed column's header
    parts: tuple[tuple[str, str], ...]
    where: Mapping[str, str] = field(default_factory=dict)  # rows by CSV column

    def applies_to(self, columns: Collection[str]) -> bool:
        """Whether a table has what the names are made of."""
        words = {word for _, name in self.parts for _, word, _, _ in Formatter().parse(name)}
        return {*(word for word in words if word), *(key for key, _ in self.parts)} <= {*columns}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a printed cell."""

    text: str
    anchor: str = ""  # of the number that it is


Cell = tuple[Piece, ...]

_ALL = "all.{arm}.over.{base}"
_PAUSE = "keepwarm.{control}.{size}.{idle_ms}"
SPEED = NumberRule(
    r"tok/s \[min–max\]", (("median_tok_per_s", "{cell}.{arm}.decode_tok_per_s.median"),)
)
TOKENS = NumberRule(r"tokens/round", (("tokens_per_round", "{cell}.{arm}.tokens_per_round"),))
RATIO = NumberRule(
    r"ratio( to \S+)? \[95 %\]",
    tuple((end, f"{_ALL}.{end}") for end in ("ratio", "low", "high")),
    {"cell": ALL_CELLS},
)
RULES: Mapping[str, tuple[NumberRule, ...]] = {  # by the table's name
    "decode": (SPEED, TOKENS, RATIO),
    "against_base": (RATIO,),
    "seal": (SPEED, RATIO),
    "fp8_speed": (SPEED, RATIO),
    "fp8_bytes": (
        NumberRule(r"bytes/position", (("least_bytes", "{arm}.hidden_bytes_per_position.least"),)),
        NumberRule(
            r"ratio", (("least_ratio", "{arm}.over.{base}.hidden_bytes_per_position.least"),)
        ),
    ),
    "fp8_ids": (
        NumberRule(r"first difference", (("first_difference", "{cell}.{arm}.first_difference"),)),
    ),
    "frames": (
        NumberRule(r"frames/traversal", (("frames_per_traversal", "{arm}.frames_per_traversal"),)),
        NumberRule(r"bytes/traversal", (("bytes_per_traversal", "{arm}.bytes_per_traversal"),)),
    ),
    "iid": (NumberRule(r"p", (("p", "study.p.{test}"),)),),
    "match_length": (NumberRule(r"rate \[95 %\]", (("rate", "study.match.{context}"),)),),
    "round_before": (NumberRule(r"rate \[95 %\]", (("rate", "study.round_before.{context}"),)),),
    "head_evaluation": (
        NumberRule(
            r"first token right \[95 %\]",
            (
                ("first", "head.{group}.{shape}.first"),
                ("first_low", "head.{group}.{shape}.first.low"),
                ("first_high", "head.{group}.{shape}.first.high"),
            ),
        ),
        NumberRule(r"tokens a traversal", (("tokens", "head.{group}.{shape}.tokens"),)),
    ),
    "peers": (
        NumberRule(r"decode tok/s \[min–max\]", (("tok_per_s", "peers.{cell}.{side}.tok_per_s"),)),
        NumberRule(r"× plain pipeline \[min–max\]", (("ratio", "peers.{cell}.{side}.over.ar"),)),
    ),
    "keepwarm_links": (
        NumberRule(r"cold: ms \[min–max\]", (("cold", f"{_PAUSE}.cold"),)),
        NumberRule(r"kept warm: ms \[min–max\]", (("warm", f"{_PAUSE}.warm"),)),
    ),
}


def linked_cells(
    table: PrintedTable, numbers: Mapping[str, NamedNumber]
) -> tuple[list[list[Cell]], list[str]]:
    """The printed cells in pieces, and where a table and a number contradict each other.

    Args:
        numbers: those of the table's own group.
    """
    if len(table.rows) != len(table.cells):
        return [[(Piece(text),) for text in cells] for cells in table.cells], []
    columns = table.rows[0] if table.rows else {}
    rules = [rule for rule in RULES.get(table.name, ()) if rule.applies_to(columns)]
    by_column = [
        next((rule for rule in rules if re.fullmatch(rule.header, header)), None)
        for header in table.headers
    ]
    rows, gaps = [], []
    for texts, row in zip(table.cells, table.rows, strict=True):
        cells = []
        for text, rule in zip(texts, by_column, strict=True):
            cell, differences = _linked(text, rule, row, table.group, numbers)
            cells.append(cell)
            gaps += [f"{table.group}, table {table.name}: {each}" for each in differences]
        rows.append(cells)
    return rows, gaps


def _linked(
    text: str,
    rule: NumberRule | None,
    row: Mapping[str, str],
    group: str,
    numbers: Mapping[str, NamedNumber],
) -> tuple[Cell, list[str]]:
    interval = INTERVAL.fullmatch(text)
    texts = interval.groups() if interval else (text,)
    if rule is None or any(row[key] != wanted for key, wanted in rule.where.items()):
        return (Piece(text),), []
    anchors, differences = {}, []
    for place, (column, template) in enumerate(rule.parts):
        name = template.format_map(row)
        if name not in numbers or not row[column] or 2 * place >= len(texts):
            continue
        if agrees(row[column], numbers[name].value):
            anchors[2 * place] = anchor("number", f"{group}:{name}")
        else:
            differences.append(
                f"{column} is {row[column]}, the number {name} {numbers[name].value}; "
                "run: make tables"
            )
    return tuple(Piece(part, anchors.get(idx, "")) for idx, part in enumerate(texts)), differences


def agrees(unrounded: str, value: str) -> bool:
    """Whether a CSV's field, or the bound that it states, rounds to a number's value."""
    try:
        if unrounded.startswith(BELOW):
            return float(value) <= float(unrounded.removeprefix(BELOW))
        exact, shown = float(unrounded), float(value)
    except ValueError:  # words, which no number says
        return False
    half_a_digit = 0.5 * 10.0 ** -len(value.partition(".")[2])
    return abs(exact - shown) <= half_a_digit + CSV_DIGITS * abs(exact)
