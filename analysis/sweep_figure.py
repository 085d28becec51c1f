"""Speed against the one lever that a sweep turns, a line a cell.

Guarantees: the lever's value is read off the plan, not off an arm's name; arms that keep the base's
value under another name (the null) are drawn apart. Must never compute a statistic that a table
could not print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figure_file import Drawing, caption
from analysis.load import Experiment, jobs_frame
from analysis.panels import series_look
from analysis.predictions import NEAR, ceilings
from bench.schema import Plan
from engine.errors import ReceiptError

Lever = Callable[[Plan, str], int]
LEVERS: Mapping[str, tuple[str, Lever]] = {  # experiment -> what is turned, and how to read it
    "k": ("drafts a frame", lambda plan, arm: plan.arms[arm].draft_len),
    "depth": ("frames in flight, at most", lambda plan, arm: plan.arms[arm].depth),
    "stages": ("stages", lambda plan, arm: plan.ring_of(arm).num_stages),
}
AR = ("ar", "null-ar")  # another method: no point of the sweep


def sweep_points(experiment: Experiment) -> pd.DataFrame:
    """Median, least and greatest speed; columns cell, arm, value, is_null, middle, low, high, n."""
    _, value_of = LEVERS[experiment.plan.experiment]
    jobs = jobs_frame(experiment)
    if not jobs.empty:
        jobs = jobs[~jobs["arm"].isin(AR)]
    if jobs.empty:
        raise ReceiptError("no job of the sweep is used: nothing to draw")
    grouped = jobs.groupby(["cell", "arm"])["decode_tok_per_s"]
    points = grouped.agg(middle="median", low="min", high="max", n="size").reset_index()
    points["value"] = [value_of(experiment.plan, arm) for arm in points["arm"]]
    points["is_null"] = points["arm"].isin(experiment.plan.null_pairs)
    return points.sort_values(["cell", "is_null", "value"], ignore_index=True)


def draw_sweep(experiment: Experiment) -> Drawing:
    """One panel a cell; the null arm hollow beside the base arm."""
    points = sweep_points(experiment)
    label, _ = LEVERS[experiment.plan.experiment]
    cells = [cell.name for cell in experiment.plan.cells if cell.name in set(points["cell"])]
    values = sorted(points["value"].unique())
    limits = ceilings(experiment)
    figure = Figure(figsize=(max(4.5, 2.3 * len(cells)), 2.6))
    panels = figure.subplots(1, len(cells), sharex=True, squeeze=False)[0]
    for idx, (axes, cell) in enumerate(zip(panels, cells, strict=True)):
        look = {**series_look(idx), "markersize": 3.4}
        for is_null, chosen in points[points["cell"] == cell].groupby("is_null"):
            line = {"linestyle": "none", "markerfacecolor": "white"} if is_null else {}
            axes.vlines(chosen["value"], chosen["low"], chosen["high"], color=look["color"])
            axes.plot(chosen["value"], chosen["middle"], **{**look, "linewidth": 0.9, **line})
        if limits.get(cell, float("inf")) <= NEAR * points[points["cell"] == cell]["high"].max():
            axes.axhline(limits[cell], color="#808080", linestyle="--", linewidth=0.8)
        axes.set_title(cell)
        axes.set_ylim(bottom=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel(f"{label}\n(log scale)")
    panels[0].set_ylabel("decode_tok_per_s")
    caption(
        figure,
        f"Median of n = {experiment.plan.reps} interleaved reps; bars: min–max; hollow: the null "
        "arm, the base arm under another name. Dashed, where it is near: 1 / ((1 − α) T) of the "
        "base arm, the ceiling of chains whose every loop carries a full frame. Panels have "
        "scales of their own.",
    )
    used = {receipt.requested.arm for receipt, _ in experiment.measured()} - set(AR)
    ids = [name for receipt, name in experiment.measured() if receipt.requested.arm in used]
    return Drawing(figure, points, ids)
