"""Figures as `analysis.figure_file` saved them, read back.

Guarantees: size and receipts are those that the files state; what should lie beside a figure and
does not is told. Must never know what a figure shows.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

from analysis.index.printed_tables import of_group

SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt"')
ABOUT = re.compile(r"<rdf:li>(.*?)</rdf:li>", re.DOTALL)
RECEIPT_ID = re.compile(r"\b[0-9a-f]{16}\b")
DRAWN = "receipts drawn"  # ids, if there are any in the metadata, stand behind it
HEAD_LEN = 8_000  # size and metadata stand before anything that is drawn
PX_PER_PT = 4 / 3
UNKNOWN_SIZE = (0, 0)  # of a file that does not say
ENDINGS = ("svg", "pdf", "csv", "ids.txt")
NEEDED = ("pdf", "csv")


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """One figure."""

    group: str
    name: str
    width: int  # CSS pixels
    height: int
    provenance: str
    receipt_ids: tuple[str, ...]
    files: dict[str, Path]  # by ending, those that are there


def read_figures(top: Path) -> tuple[list[DrawnFigure], list[str]]:
    """Every figure below `paper/figures`, by group and name; what is missing."""
    figures, gaps = [], []
    for path in sorted(top.rglob("*.svg")):
        folder = path.parent.relative_to(top).as_posix()
        figure = _read(path, folder)
        for ending in NEEDED:
            if ending not in figure.files:
                name = path.relative_to(top).with_suffix(f".{ending}").as_posix()
                gaps.append(f"paper/figures/{name} is missing; `make figures` writes it")
        figures.append(figure)
    return figures, gaps


def _read(path: Path, folder: str) -> DrawnFigure:
    beside = {ending: path.with_name(f"{path.stem}.{ending}") for ending in ENDINGS}
    files = {ending: found for ending, found in beside.items() if found.is_file()}
    head = path.read_text(encoding="utf-8")[:HEAD_LEN]
    size = SIZE.search(head)
    width, height = map(float, size.groups()) if size else UNKNOWN_SIZE
    about = ABOUT.search(head)
    provenance = html.unescape(about[1]) if about else ""
    stated, _, listed = provenance.partition(DRAWN)
    if "ids.txt" in files:
        listed = files["ids.txt"].read_text(encoding="utf-8")
    return DrawnFigure(
        group=of_group(folder),
        name=path.stem,
        width=round(width * PX_PER_PT),
        height=round(height * PX_PER_PT),
        provenance=f"{stated}{DRAWN}" if about else "",
        receipt_ids=tuple(RECEIPT_ID.findall(listed)),
        files=files,
    )
