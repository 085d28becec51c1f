"""Figures of the law: speed over acceptance, predicted over measured, crossover over levels.

Guarantees: what is drawn is in `law_products`' table or follows from the closed form.
Must never know files.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, PercentFormatter

from analysis.arm_slots import in_reading_order
from analysis.closed_form import ceiling, chain_rate, crossover, lockstep_rate
from analysis.figure_file import Drawing, arm_look, caption
from analysis.law_products import CAPS, PUBLISHED_COVER, SHAPES, Cover, Law
from analysis.panels import log_axis, series_look
from engine.errors import ReceiptError

PER_MISS = np.geomspace(1.0, 1000.0, 200)  # tokens a miss, 1 / (1 - alpha)
LAW_EXPERIMENT = "planner"  # whose chains of fixed length stand beside the curves
LAW_ARMS = ("ar", "chain-k8", "chain-k32", "chain-k64", "planner")
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
GREYS = ("#222222", "#777777", "#AAAAAA", "#444444")
STYLES = ("--", "-", "-", ":")


def draw_law(study: Law) -> Drawing:
    """Speed over tokens a miss: curves of the closed form, the ceiling, and measured cells."""
    cells = study.cells
    cells = cells[(cells["experiment"] == LAW_EXPERIMENT) & cells["arm"].isin(LAW_ARMS)]
    by_cell = cells[cells["arm"] == "chain-k8"].set_index("cell")["alpha"]
    cells = cells.assign(alpha=cells["cell"].map(by_cell)).dropna(subset=["alpha"])
    cells = cells[cells["alpha"] < 1.0]  # a cell without a miss has no place on the axis
    if cells.empty:
        raise ReceiptError(f"no used job of {LAW_EXPERIMENT}: no point to draw beside the law")
    loop_s = float(cells[cells["arm"] == "chain-k8"]["loop_s"].median())
    figure = Figure(figsize=(6.8, 3.8))
    axes = figure.subplots()
    tables = []
    for (label, rates), grey, style in zip(_curves(loop_s).items(), GREYS, STYLES, strict=True):
        axes.plot(PER_MISS, rates, style, color=grey, linewidth=1.1, label=label, marker="")
        tables.append(pd.DataFrame({"series": label, "per_miss": PER_MISS, "tok_per_s": rates}))
    arms = in_reading_order(cells["arm"])
    for arm in arms:
        own = cells[cells["arm"] == arm]
        points = pd.DataFrame({"per_miss": 1 / (1 - own["alpha"]), "tok_per_s": own["measured"]})
        axes.plot(points["per_miss"], points["tok_per_s"], label=arm, **arm_look(arm, arms))
        tables.append(points.assign(series=arm))
    log_axis(axes)
    _log_speeds(axes)
    axes.set_ylim(0.7 / loop_s, 1.6 * cells["measured"].max())
    axes.set_xlabel("tokens a miss, 1 / (1 − α), of chain-k8 on the cell (log scale)")
    axes.set_ylabel("decode_tok_per_s (log scale)")
    figure.legend(loc="outside right center", fontsize=7)
    used = study.jobs[study.jobs["experiment"] == LAW_EXPERIMENT]
    used = used[used["arm"].isin(LAW_ARMS) & used["cell"].isin(cells["cell"])]
    caption(
        figure,
        f"Lines: closed form for independent acceptance and a loop of T = {loop_s * 1e3:.0f} ms, "
        "the fitted ring's for 9 positions. Markers: cells of the planner experiment "
        f"(n = {cells['cell'].nunique()}), medians of {used.groupby(['arm', 'cell']).size().max()} "
        "reps; a cell has one place on the axis. A miss: a draft that was wrong, or a round "
        "without one.",
    )
    return Drawing(figure, pd.concat(tables, ignore_index=True), list(used["receipt_id"]))


def _curves(loop_s: float) -> dict[str, list[float]]:
    alphas = [1.0 - 1.0 / per_miss for per_miss in PER_MISS]
    return {
        "ceiling 1 / ((1 − α) T)": [ceiling(alpha, loop_s) for alpha in alphas],
        "K = 8, D = 4": [chain_rate(alpha, 8, 4, loop_s) for alpha in alphas],
        "K = 32, D = 4": [chain_rate(alpha, 32, 4, loop_s) for alpha in alphas],
        "K = 8, one at a time": [lockstep_rate(alpha, 8, loop_s) for alpha in alphas],
    }


def _log_speeds(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_predicted(study: Law) -> Drawing:
    """Predicted over measured speed, a marker a cell: the ring model, and the closed form."""
    cells = study.cells[study.cells["is_checked"]]
    if cells.empty:
        raise ReceiptError("no cell that the fit had not seen: nothing to check it on")
    arms = in_reading_order(cells["arm"])
    figure = Figure(figsize=(7.2, 3.7))
    panels = list(figure.subplots(1, 2, sharex=True, sharey=True))
    columns = {
        "ring_model": "discrete-event ring model",
        "closed_form": "closed form (fixed lengths)",
    }
    for axes, (column, title) in zip(panels, columns.items(), strict=True):
        own = cells.dropna(subset=[column])
        for arm in arms:
            chosen = own[own["arm"] == arm]
            axes.plot(
                chosen["measured"], chosen[column], label=arm, **arm_look(arm, arms), markersize=3
            )
        _diagonal(axes, cells)
        off = np.abs(np.log(own[column] / own["measured"]))
        axes.set_title(f"{title}\nmedian error {np.expm1(off.median()):.0%}, n = {len(own)}")
        axes.set_xlabel("measured tok/s (log scale)")
    panels[0].set_ylabel("predicted tok/s (log scale)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=6, ncols=1)
    caption(
        figure,
        "Cells that the ring's fit had not seen; a marker is a cell and arm of an experiment, "
        "median over reps. Diagonal: predicted = measured; grey: within 10 %.",
    )
    used = study.jobs[study.jobs["is_checked"]]
    return Drawing(figure, cells, list(used["receipt_id"]))


def _diagonal(axes: Axes, cells: pd.DataFrame) -> None:
    low, high = 0.7 * cells["measured"].min(), 1.4 * cells["measured"].max()
    ends = np.array([low, high])
    axes.fill_between(ends, ends / 1.1, ends * 1.1, color="#BBBBBB", alpha=0.6, linewidth=0)
    axes.plot(ends, ends, color="#808080", linewidth=0.8, marker="")
    log_axis(axes)
    _log_speeds(axes)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)


def draw_crossover(cover: Cover) -> Drawing:
    """The acceptance above which a chain wins, over the levels that its rival may have."""
    figure = Figure(figsize=(5.2, 3.0))
    axes = figure.subplots()
    rows = []
    for draft_len, depth in SHAPES:
        for name, ratio in (("published", PUBLISHED_COVER), ("measured", cover.ratio)):
            for cap in CAPS:
                alpha = crossover(draft_len, depth, ratio, cap)
                if alpha is not None:
                    rows.append((draft_len, depth, name, ratio, cap, alpha))
    points = pd.DataFrame(rows, columns=["draft_len", "depth", "cover", "ratio", "levels", "alpha"])
    for idx, ((draft_len, depth, name, ratio), own) in enumerate(
        points.groupby(["draft_len", "depth", "cover", "ratio"], sort=False)
    ):
        look = {**series_look(idx // 2), "markersize": 3, "linewidth": 0.9}
        if name == "published":
            look |= {"markerfacecolor": "white", "linestyle": "--"}
        label = f"K = {draft_len}, D = {depth}; {name} cover {ratio:.2f}"
        axes.plot(own["levels"], own["alpha"], label=label, **look)
    axes.set_xlabel("levels that the tree may have")
    axes.set_ylabel("acceptance at the crossover")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(FixedLocator(list(CAPS)))
    figure.legend(loc="outside right center", fontsize=7)
    caption(
        figure,
        "Closed form on one loop time: above its curve a chain is faster than a "
        "tree of so many levels. Cover: how much likelier a level holds the right token than a "
        "chain's draft is right; measured on the first level, tree over chain-eagle.",
    )
    return Drawing(figure, points, list(cover.receipt_ids))
