"""Figures of what became of drafts: by distance from verified text, and by round.

Guarantees: one job a prompt, as greedy repetitions repeat themselves; prompts of one group count as
one cell. Must never compute a statistic that a table could not print: those live in `curves`.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from analysis.curves import acceptance_by_distance, accepted_lengths, first_rep, pooled_alpha
from analysis.figure_file import Drawing, arm_look, caption
from analysis.load import Experiment, groups_of, rounds_frame
from analysis.panels import PANEL_COLUMNS, corner_note, panel_grid, stacked
from engine.errors import ReceiptError

CURVE_ARM = "chain-k8"  # the arm whose drafts are followed by distance


def draw_acceptance_by_distance(experiment: Experiment, arm: str = CURVE_ARM) -> Drawing:
    """Conditional acceptance of each draft by its distance from the last verified token."""
    frames = _frames_of_arm(experiment, arm)
    alone_len = experiment.plan.arms[arm].draft_len
    cells = _cells_in(experiment, frames)
    figure, panels = panel_grid(len(cells))
    look = arm_look(arm, [arm])
    tables = []
    for axes, cell in zip(panels, cells, strict=True):
        chosen = frames[frames["cell"] == cell]
        curve = acceptance_by_distance(chosen, alone_len)
        alpha = pooled_alpha(chosen)
        middle = (curve["distance"] + curve["last_distance"]) / 2
        axes.axhline(alpha, color="#808080", linestyle=(0, (4, 2)), linewidth=0.9)
        axes.vlines(middle, curve["low"], curve["high"], color=look["color"], linewidth=0.9)
        axes.hlines(curve["rate"], curve["distance"], curve["last_distance"], color=look["color"])
        axes.plot(middle, curve["rate"], **{**look, "marker": "o", "markersize": 3.2})
        axes.set_title(cell)
        axes.set_ylim(-0.04, 1.04)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MultipleLocator(alone_len))
        corner_note(axes, f"alpha_hat = {alpha:.2f}\nn = {curve['tested'].sum()}", "bottom")
        tables.append(curve.assign(cell=cell, arm=arm, alpha_hat=alpha))
    for axes in panels[-PANEL_COLUMNS:]:
        axes.set_xlabel("distance (tokens)")
        axes.tick_params(labelbottom=True)
    figure.supylabel("accepted / tested", fontsize=8)
    caption(
        figure,
        "Distance of a draft from the last token verified when it was sent; those beyond "
        f"{alone_len} are pooled by {alone_len} (horizontal bars). Arm {arm}; one job per "
        "prompt, as greedy repetitions repeat themselves; n tested drafts; vertical bars: 95 % "
        "Clopper–Pearson, exact only for independent drafts; dashed: alpha_hat.",
    )
    return Drawing(figure, stacked(tables), list(frames["receipt_id"].unique()))


def draw_accepted_lengths(experiment: Experiment) -> Drawing:
    """Rounds by accepted length: a row of panels per drafting arm, a column per cell."""
    frames = _first_rounds(experiment)
    nulls = set(experiment.plan.null_pairs)
    cells = _cells_in(experiment, frames)
    lengths = {
        (arm, cell): accepted_lengths(frames[(frames["arm"] == arm) & (frames["cell"] == cell)])
        for arm in experiment.measured_arms()
        if arm not in nulls
        for cell in cells
    }
    arms = list(dict.fromkeys(arm for (arm, _), table in lengths.items() if not table.empty))
    if not arms:
        raise ReceiptError("no used job drafted anything: no accepted lengths to draw")
    figure = Figure(figsize=(max(4.0, 0.6 + 1.15 * len(cells)), 1.1 + 1.25 * len(arms)))
    grid = figure.subplots(len(arms), len(cells), sharey=True, sharex="row", squeeze=False)
    tables = []
    for row_idx, arm in enumerate(arms):
        for column_idx, cell in enumerate(cells):
            axes, table = grid[row_idx][column_idx], lengths[arm, cell]
            if row_idx == 0:
                axes.set_title(cell)
            if column_idx == 0:
                axes.set_ylabel(f"{arm}\nshare of rounds")
            if table.empty:
                corner_note(axes, "no drafts")
                continue
            _draw_lengths(axes, table, arm)
            tables.append(table.assign(arm=arm, cell=cell))
    for axes in grid[-1]:
        axes.set_xlabel("a (tokens)")
    caption(
        figure,
        "Accepted drafts a per round. Bars: share of rounds with drafts, n rounds in one "
        "job per prompt and arm; dots: the geometric law with the same rounds' alpha_hat, each "
        "round cut at its own k. A comparison, not a test.",
    )
    return Drawing(figure, stacked(tables), list(frames["receipt_id"].unique()))


def _draw_lengths(axes: Axes, table: pd.DataFrame, arm: str) -> None:
    total = table["rounds"].sum()
    colour = arm_look(arm, [arm])["color"]
    axes.bar(table["accepted_len"], table["rounds"] / total, color=colour, alpha=0.75, width=0.8)
    axes.plot(
        table["accepted_len"],
        table["geometric"] / total,
        marker="o",
        markersize=2.2,
        linestyle="none",
        color="black",
    )
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.2)  # room for the note above a bar of 100 %
    axes.set_yticks([0, 0.5, 1])
    corner_note(axes, f"n = {total}")


def _first_rounds(experiment: Experiment) -> pd.DataFrame:
    """Frames of one repetition; prompts of one group count as one cell."""
    frames = first_rep(rounds_frame(experiment))
    return frames if frames.empty else frames.replace({"cell": groups_of(experiment.plan)})


def _frames_of_arm(experiment: Experiment, arm: str) -> pd.DataFrame:
    frames = _first_rounds(experiment)
    if frames.empty or arm not in set(frames["arm"]):
        raise ReceiptError(f"no used job of arm {arm!r}: nothing to draw by distance")
    return frames[frames["arm"] == arm]


def _cells_in(experiment: Experiment, frames: pd.DataFrame) -> list[str]:
    present = set() if frames.empty else set(frames["cell"])
    groups = dict.fromkeys(groups_of(experiment.plan).values())
    return [group for group in groups if group in present]
