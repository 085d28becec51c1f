"""How a figure becomes files.

Guarantees: SVG and PDF whose bytes depend on what is drawn alone (no date, no library version);
their metadata names the receipts; the plotted points lie beside as CSV. Must never know what a
figure shows.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from analysis.arm_slots import OTHER_COLOUR, slot_of
from analysis.folders import REPOSITORY

STYLE_FILE = REPOSITORY / "paper" / "style.mplstyle"
MAX_IDS_IN_METADATA = 16  # more ids go into a file beside the figure
PAGE_DPI = 110
# Where SVG names a shape or refers to one: id="…", href="#…", url(#…)
HASHED_ID = re.compile(
    r"""(?P<before>\bid="|href="\#|url\(\#)(?P<name>[A-Za-z][0-9a-f]{10})(?P<behind>["\)])""", re.X
)
CAPTION_COLOUR = "#404040"
CAPTION_INCHES_PER_CHARACTER = 0.056  # DejaVu Sans at 7 points, on average, with a margin


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure, the points in it and the ids of the receipts that they come from."""

    figure: Figure
    points: pd.DataFrame
    receipt_ids: list[str]


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with the style file over matplotlib's own defaults, whatever the user has set."""
    with mpl.rc_context():
        mpl.rcdefaults()
        style.use(STYLE_FILE)
        yield


def arm_look(arm: str, arms: list[str]) -> dict[str, Any]:
    """Keyword arguments that draw an arm's markers."""
    slot = slot_of(arm, arms)
    cycle = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    colour = OTHER_COLOUR if slot.colour_idx is None else f"#{cycle[slot.colour_idx].lstrip('#')}"
    return {
        "color": colour,
        "marker": slot.marker,
        "markerfacecolor": "white" if slot.is_hollow else colour,
        "markeredgecolor": colour,
        "linestyle": "none",
    }


def caption(figure: Figure, text: str) -> None:
    """Put the caption lines below the axes: n, statistic and interval."""
    width = int(figure.get_figwidth() / CAPTION_INCHES_PER_CHARACTER)
    lines = textwrap.fill(text, width, break_on_hyphens=False)
    figure.supxlabel(lines, fontsize=7, color=CAPTION_COLOUR, x=0.01, ha="left")


def save(drawing: Drawing, name: str, source: str, folder: Path) -> list[Path]:
    """Write `<name>.svg`, `.pdf`, `.csv` and, if the receipts are many, `.ids.txt`.

    Args:
        source: what the receipts drawn are part of, for the files' metadata.

    Returns:
        The paths written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figure, ids = drawing.figure, drawing.receipt_ids
    provenance = f"{source}; {len(ids)} receipts drawn"
    paths = [folder / f"{name}.{ending}" for ending in ("svg", "pdf", "csv")]
    if len(ids) <= MAX_IDS_IN_METADATA:
        keywords = f"{provenance}: {', '.join(ids)}"
    else:
        keywords = f"{provenance}, listed in {name}.ids.txt"
        paths.append(folder / f"{name}.ids.txt")
        paths[-1].write_text("".join(f"{identifier}\n" for identifier in ids))
    drawn = io.StringIO()
    about = {"Date": None, "Creator": None, "Keywords": [keywords], "Title": name}
    figure.savefig(drawn, format="svg", metadata=about)
    paths[0].write_text(with_counted_ids(drawn.getvalue()), encoding="utf-8", newline="\n")
    figure.savefig(
        paths[1],
        metadata={
            "CreationDate": None,
            "Creator": None,
            "Producer": None,
            "Keywords": keywords,
            "Title": name,
        },
    )
    body = drawing.points.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    paths[2].write_text(f"# {provenance}\n{body}", encoding="utf-8", newline="\n")
    return paths


def with_counted_ids(svg: str) -> str:
    """An SVG whose shapes are numbered in the order in which they appear.

    matplotlib names clip paths and markers by a hash of their coordinates, whose last bits differ
    between processors; the coordinates themselves are written with fewer digits and do not.
    """
    numbers: dict[str, str] = {}

    def counted(found: re.Match[str]) -> str:
        name = found["name"]
        number = numbers.setdefault(name, f"{name[0]}{len(numbers)}")
        return f"{found['before']}{number}{found['behind']}"

    return HASHED_ID.sub(counted, svg)


def png_bytes(drawing: Drawing) -> bytes:
    """The figure for a notebook's page."""
    picture = io.BytesIO()
    drawing.figure.savefig(picture, format="png", dpi=PAGE_DPI)
    return picture.getvalue()
