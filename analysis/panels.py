"""How the axes of this project's figures are laid out and labelled.

Guarantees: one look for rows of arms, log axes, grids of panels and corner notes, whatever a figure
shows. Must never know receipts or compute a statistic.
"""

from __future__ import annotations

from typing import Any, Literal

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.arm_slots import OTHER_COLOUR, OTHER_MARKERS
from analysis.figure_file import arm_look

PANEL_COLUMNS = 4
RULE_COLOUR = "#DDDDDD"
ROW_INCHES = 0.125  # height of one arm of one cell


def draw_rows(axes: Axes, points: pd.DataFrame, arms: list[str], cells: list[str]) -> None:
    """One marker at `middle` per cell and arm, a line from `low` to `high` where they are known."""
    for arm_idx, arm in enumerate(arms):
        chosen = points[points["arm"] == arm]
        rows = [cells.index(cell) * (len(arms) + 1) + arm_idx for cell in chosen["cell"]]
        look = arm_look(arm, arms)
        # A NaN end, one block's interval, draws nothing.
        axes.hlines(rows, chosen["low"], chosen["high"], color=look["color"])
        axes.plot(chosen["middle"], rows, label=arm, **look)


def label_cells(panels: list[Axes], cells: list[str], num_arms: int) -> None:
    """Name each group of arm rows by its cell, and rule the groups off."""
    group = num_arms + 1
    panels[0].set_yticks([idx * group + (num_arms - 1) / 2 for idx in range(len(cells))], cells)
    panels[0].set_ylim(len(cells) * group - 1, -1)
    for axes in panels:
        axes.tick_params(axis="y", length=0)
        axes.yaxis.grid(False)
        for idx in range(1, len(cells)):
            axes.axhline(idx * group - 1, color=RULE_COLOUR, linewidth=0.6)


def log_axis(axes: Axes) -> None:
    """A log x axis with plain numbers at 1, 2 and 5."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def corner_note(axes: Axes, text: str, side: Literal["top", "bottom"] = "top") -> None:
    """Small words in a right corner, readable over what is drawn there."""
    axes.annotate(
        text,
        (0.98, 0.97 if side == "top" else 0.04),
        xycoords="axes fraction",
        ha="right",
        va=side,
        fontsize=7,
        color="#404040",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
    )


def series_look(idx: int) -> dict[str, Any]:
    """Keyword arguments that draw the idx-th of a few lines that are no arms; none is black."""
    cycle = mpl.rcParams["axes.prop_cycle"].by_key()["color"][1:]
    is_last = idx >= len(cycle)
    colour = OTHER_COLOUR if is_last else f"#{cycle[idx].lstrip('#')}"
    return {"color": colour, "marker": OTHER_MARKERS[idx % len(OTHER_MARKERS)]}


def mark_one(axes: Axes, low: float, high: float) -> None:
    """A rule at ratio 1 over the grey of a null band; NaN ends, no band, draw no grey."""
    if low <= high:
        axes.axvspan(low, high, color="#BBBBBB", alpha=0.6, linewidth=0)
    axes.axvline(1.0, color="#808080", linewidth=0.8)


def stacked(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The plotted points of several panels as one table, cell and arm first."""
    points = pd.concat(tables, ignore_index=True)
    first = ["cell", "arm"]
    return points[[*first, *(name for name in points.columns if name not in first)]]


def panel_grid(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in rows of PANEL_COLUMNS."""
    columns = min(PANEL_COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(4.5, 1.95 * columns), 1.55 * rows + 0.8))
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]
