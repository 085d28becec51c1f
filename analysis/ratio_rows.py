"""Rows of ratios over several cells: a mean with its interval, its cells as ticks, its number.

Guarantees: a mean is over all of the cells asked for or is not there; the null band is that of the
whole experiment, whichever cells are asked for. Must never know which arms or cells there are, nor
compute a statistic that a table could not print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pandas as pd
from matplotlib.axes import Axes

from analysis.effects import ALL_CELLS, null_band, ratio_table
from bench.schema import CellRow, Plan

METRIC = "decode_tok_per_s"
ROW_COLUMNS = ("cell", "arm", "base", "blocks", "ratio", "low", "high", "band_low", "band_high")
TICK_ALPHA = 0.6
WORDS_GAP_POINTS = 4


def ratios_over(
    jobs: pd.DataFrame, plan: Plan, base: str, arms: Sequence[str], cells: Sequence[CellRow]
) -> pd.DataFrame:
    """Each arm against `base` on some of a plan's cells and over all of those; ROW_COLUMNS.

    Args:
        jobs: of `analysis.load.jobs_frame`; all of the experiment's, for the null band.
        cells: of the plan.

    Raises:
        ReceiptError: the plan times nothing.
    """
    band = null_band(jobs, plan, METRIC, base)
    own = jobs[jobs["cell"].isin([cell.name for cell in cells])]
    narrowed = msgspec.structs.replace(plan, cells=list(cells))
    ratios, _ = ratio_table(own, narrowed, base, list(arms), METRIC)
    return ratios.assign(band_low=band.low, band_high=band.high)[list(ROW_COLUMNS)]


def draw_ratio(
    axes: Axes, row: float, ratios: pd.DataFrame, look: dict[str, Any], words: str
) -> None:
    """One arm's row: ticks for its cells, where they are several; mean, interval and number.

    Args:
        ratios: of one arm, as `ratios_over` gives them.
        words: what stands behind the interval.
    """
    is_mean = ratios["cell"] == ALL_CELLS
    mean, cells = ratios[is_mean].iloc[0], ratios[~is_mean].dropna(subset=["ratio"])
    rightmost = [mean["ratio"], mean["high"]]
    if len(cells) > 1:
        rug: dict[str, Any] = {"marker": "|", "markersize": 5, "linestyle": "none"}
        rows = [row] * len(cells)
        axes.plot(cells["ratio"], rows, color=look["color"], alpha=TICK_ALPHA, **rug)
        rightmost += list(cells["ratio"])
    if pd.isna(mean["ratio"]):  # not every cell has it
        return
    axes.hlines(row, mean["low"], mean["high"], color=look["color"], linewidth=1.8)
    axes.plot([mean["ratio"]], [row], **look)
    axes.annotate(
        words,
        (pd.Series(rightmost).max(), row),
        xytext=(WORDS_GAP_POINTS, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
    )
