"""The page: contents to one HTML file.

Guarantees: everything that is not the template's own is escaped; nothing is loaded but figures that
lie beside the page, and a policy in the page forbids the rest; the same contents give the same
bytes. Must never know files.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis.index.anchors import Links
from analysis.index.cell_numbers import Piece
from analysis.index.named_numbers import ReceiptSets
from analysis.index.receipt_files import JobPlace, ReceiptFile, RecordPlace
from analysis.index.shown import Contents, FigureShown, NumberShown
from analysis.trace import PUBLIC

ROOM = Path(__file__).resolve().parent
TEMPLATE, STYLE, SCRIPT = "page.html.j2", "page.css", "page.js"
MISSING_WORDS = "is not here"
PUBLIC_WORDS = "is public and not in this repository"
COMPACT = {"sort_keys": True, "separators": (",", ":")}


def render(contents: Contents, links: Links) -> str:
    """The page as text."""
    style, script = (ROOM / STYLE).read_text("utf-8"), (ROOM / SCRIPT).read_text("utf-8")
    environment = Environment(
        loader=FileSystemLoader(ROOM),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = COMPACT
    environment.filters["marked"] = marked
    return environment.get_template(TEMPLATE).render(
        contents=contents,
        link=links.to,
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
        sample=sample_number(contents.numbers),
        receipts=receipt_rows(contents.receipts, links),
        entries=panel_entries(contents),
    )


def policy(style: str, script: str) -> str:
    """What the page may load and run: its own script and style by their digests, and images.

    Whatever slipped past the escaping would not run.
    """
    return (
        "default-src 'none'; img-src 'self' file:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def marked(text: str) -> Markup:
    """A note's words, with what stands in backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick has no partner
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if idx % 2 else escape(part)
        for idx, part in enumerate(parts)
    )


def sample_number(numbers: list[NumberShown]) -> Piece:
    """A number to show how numbers look."""
    if not numbers:
        return Piece("1.00")
    return Piece(numbers[0].number.value, numbers[0].anchor)


def receipt_rows(sets: ReceiptSets, links: Links) -> dict[str, object]:
    """Receipts as the script reads them: one row each, its folder by place in a list.

    A row: id, folder, file, job, cell, arm, rep, role, problem.
    """
    folders = list(dict.fromkeys(receipt.path.parent for receipt in sets.receipts))
    return {
        "folders": [{"link": links.to(each), "name": links.name(each)} for each in folders],
        "rows": [
            [
                receipt.receipt_id,
                folders.index(receipt.path.parent),
                receipt.path.name,
                *_place(receipt),
                receipt.problem,
            ]
            for receipt in sets.receipts
        ],
        "sets": sets.sets,
    }


def _place(receipt: ReceiptFile) -> list[object]:
    match receipt.place:
        case JobPlace(position=position, requested=requested):
            cell, role = position.cell, position.role
            return [position.job_idx, cell, requested.arm, position.rep, role]
        case RecordPlace(study=study):
            return [None, f"record of study {study}", None, None, None]
    return [None, None, None, None, None]


def panel_entries(contents: Contents) -> list[dict[str, object]]:
    """What the panel shows of each number, then of each figure."""
    figures = [figure for section in contents.sections for figure in section.figures]
    return [*map(_number_entry, contents.numbers), *map(_figure_entry, figures)]


def _number_entry(number: NumberShown) -> dict[str, object]:
    own = number.number
    return {
        "away": PUBLIC_WORDS if number.group == PUBLIC else MISSING_WORDS,
        "anchor": number.anchor,
        "title": f"{number.group}:{number.name}",
        "facts": [
            ("value", f"{own.value} {own.unit}".strip()),
            ("formula", own.formula),
            ("rounding", own.rounding),
            ("experiment", number.group),
        ],
        "set": number.receipt_set,
        "rerun": number.rerun,
    }


def _figure_entry(shown: FigureShown) -> dict[str, object]:
    return {
        "away": MISSING_WORDS,
        "anchor": shown.panel,
        "title": f"figure {shown.figure.group}/{shown.figure.name}",
        "facts": [("drawn from", shown.figure.provenance or "not stated")],
        "set": shown.receipt_set,
        "rerun": ["make figures"],
    }
