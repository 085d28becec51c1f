"""The hero figure: ways of decoding side by side, as ratios to one token a traversal.

Guarantees: a ratio is to the `ar` of its own experiment and paired within its blocks, because
absolute times drift between runs; no number joins two experiments, each has rows and a null band
of its own, and the caption names them; a way that an experiment did not measure has no row there.
Must never know files, nor compute a statistic that a table could not print.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.effects import ALL_CELLS
from analysis.figure_file import Drawing, arm_look, caption
from analysis.load import Experiment, jobs_frame
from analysis.panels import mark_one
from analysis.ratio_rows import METRIC, draw_ratio, ratios_over
from bench.schema import CellRow, Plan
from engine.errors import ReceiptError

HERO_EXPERIMENTS = ("planner", "hybrid")  # of the report's figure, in its order
BASE = "ar"
MODES: Mapping[str, str] = {  # arm -> what it does, in reading order; others are not drawn
    BASE: "a token a traversal",
    "chain-k8": "n-grams, 8 a frame",
    "planner": "n-grams, planned",
    "tree": "learned trees",
    "hybrid": "n-grams or trees",
    "hybrid-planner": "either, planned",
}
GROUPS: Mapping[str, str] = {
    "draftable": "Copies",
    "mixed": "Mixed",
    "novel": "New text",
}
MIXED_CELL = "mixed"  # its kind is draftable; half of its answer has nothing to copy
POINT_COLUMNS = (
    "experiment",
    "group",
    "cell",
    "arm",
    "blocks",
    "ratio",
    "low",
    "high",
    "band_low",
    "band_high",
    "tok_per_s",
)
ROW_INCHES = 0.2
ROOM_BEFORE, ROOM_BEHIND = 0.06, 0.42  # of the logarithmic range, for markers and for words
WIDTHS = {"draftable": 1.15, "mixed": 0.85, "novel": 1.0}
WIDE, WIDE_TICKS, TICKS = 8.0, (1, 3, 10, 30, 100, 300), (0.7, 1, 1.5, 2, 3, 5, 7)


def groups_of(plan: Plan) -> dict[str, list[CellRow]]:
    """The plan's cells by group, in reading order; a group without a cell is left out."""
    found: dict[str, list[CellRow]] = {name: [] for name in GROUPS}
    for cell in plan.cells:
        found[MIXED_CELL if cell.name == MIXED_CELL else cell.kind].append(cell)
    return {name: cells for name, cells in found.items() if cells}


def hero_points(experiments: Mapping[str, Experiment]) -> pd.DataFrame:
    """One row per experiment, group, mode and cell, and over all cells of the group; POINT_COLUMNS.

    `ar` has a row a group, ratio 1 by definition; `tok_per_s`, the median over its jobs, is known
    of it alone.

    Raises:
        ReceiptError: an experiment times nothing.
    """
    tables = []
    for name, experiment in experiments.items():
        jobs, plan = jobs_frame(experiment), experiment.plan
        measured = set() if jobs.empty else set(jobs["arm"])
        arms = [arm for arm in MODES if arm in measured and arm != BASE]
        if BASE not in measured or not arms:
            continue
        for group, cells in groups_of(plan).items():
            ratios = ratios_over(jobs, plan, BASE, arms, cells)
            own = jobs[(jobs["arm"] == BASE) & jobs["cell"].isin([cell.name for cell in cells])]
            base = ratios.iloc[0].to_dict() | {"cell": ALL_CELLS, "arm": BASE}
            base |= {"blocks": len(own), "tok_per_s": own[METRIC].median()}
            base |= {"ratio": 1.0, "low": float("nan"), "high": float("nan")}
            both = pd.concat([pd.DataFrame([base]), ratios], ignore_index=True)
            tables.append(both.assign(experiment=name, group=group))
    if not tables:
        modes = ", ".join(arm for arm in MODES if arm != BASE)
        raise ReceiptError(
            f"no used job of {BASE} beside one of {modes} in {', '.join(experiments) or 'nothing'}:"
            " nothing to draw"
        )
    return pd.concat(tables, ignore_index=True)[list(POINT_COLUMNS)]


def draw_hero(experiments: Mapping[str, Experiment]) -> Drawing:
    """A row of panels an experiment, a column a group of cells, a line a way of decoding."""
    points = hero_points(experiments)
    names = list(dict.fromkeys(points["experiment"]))
    groups = [group for group in GROUPS if group in set(points["group"])]
    modes = {name: _modes_in(points[points["experiment"] == name]) for name in names}
    heights = [len(arms) + 1 for arms in modes.values()]
    figure = Figure(figsize=(7.6, 1.25 + 0.2 * len(names) + ROW_INCHES * sum(heights)))
    grid = figure.subplots(
        len(names),
        len(groups),
        sharex="col",
        sharey="row",
        squeeze=False,
        height_ratios=heights,
        width_ratios=[WIDTHS[group] for group in groups],
    )
    for name, panels in zip(names, grid, strict=True):
        own = points[points["experiment"] == name]
        for group, axes in zip(groups, panels, strict=True):
            num_cells = len(groups_of(experiments[name].plan).get(group, ()))
            words = f"{num_cells} cell{'' if num_cells == 1 else 's'}" if num_cells else "not run"
            axes.set_title(f"{GROUPS[group]}: {words}")
            _draw_group(axes, own[own["group"] == group], modes[name])
        labels = [f"{MODES[arm]} ({arm})" for arm in modes[name]]
        panels[0].set_yticks(range(len(labels)), labels)
        panels[0].set_ylim(len(labels) - 0.4, -0.6)
        panels[0].set_ylabel(f"experiment\n{name}", fontweight="bold")
    for group, axes in zip(groups, grid[-1], strict=True):
        _scale(axes, points[points["group"] == group])
        axes.set_xlabel(f"ratio to {BASE} (log scale)")
    drawn = {name: experiments[name] for name in names}
    caption(figure, _caption(drawn, points))
    return Drawing(figure, points, _ids(drawn, modes))


def hero_source(experiments: Mapping[str, Experiment]) -> str:
    """What the figure's files say that they were made from."""
    return "; ".join(
        f"experiment {name}, receipt set {experiment.receipt_set_digest}"
        for name, experiment in experiments.items()
    )


def _scale(axes: Axes, points: pd.DataFrame) -> None:
    """One log scale for a column of panels, with room for the printed numbers."""
    numbers = points[["ratio", "low", "high", "band_low", "band_high"]]
    low, high = numbers.min().min(), numbers.max().max()
    axes.set_xscale("log")
    axes.set_xlim(low / (high / low) ** ROOM_BEFORE, high * (high / low) ** ROOM_BEHIND)
    axes.xaxis.set_major_locator(FixedLocator(WIDE_TICKS if high / low > WIDE else TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _modes_in(points: pd.DataFrame) -> list[str]:
    return [arm for arm in MODES if arm in set(points["arm"])]


def _draw_group(axes: Axes, points: pd.DataFrame, arms: list[str]) -> None:
    axes.tick_params(axis="y", length=0)
    axes.yaxis.grid(False)
    if points.empty:
        return
    mark_one(axes, points["band_low"].iloc[0], points["band_high"].iloc[0])
    for row, arm in enumerate(arms):
        own = points[points["arm"] == arm]
        if own.empty:
            continue
        mean = own[own["cell"] == ALL_CELLS].iloc[0]
        words = f"{mean['ratio']:.{1 if mean['ratio'] >= 10 else 2}f}"
        if arm == BASE:
            words = f"1 = {mean['tok_per_s']:.2f} tok/s"
        draw_ratio(axes, row, own, arm_look(arm, arms), words)


def _caption(drawn: Mapping[str, Experiment], points: pd.DataFrame) -> str:
    told = []
    for name, experiment in drawn.items():
        plan, own = experiment.plan, points[points["experiment"] == name].iloc[0]
        low, high = own["band_low"], own["band_high"]
        band = "not established" if pd.isna(low) else f"{low:.3f}–{high:.3f}"
        told.append(
            f"{name} ({len(plan.cells)} cells, n = {plan.reps} reps, {plan.ring.num_stages} "
            f"stages, {plan.ring.profile}; null band, grey: {band})"
        )
    return (
        f"Experiment{'' if len(told) == 1 else 's'} {' and '.join(told)}. Copies: cells whose "
        "answer stands in the prompt; mixed: copies and new words in turn. Marker: geometric mean "
        f"over cells of ratios of decode_tok_per_s to {BASE}, paired within blocks of the same "
        f"experiment; bar: 95 % bootstrap over blocks; ticks: single cells. Of {BASE}: median "
        "tok/s over its jobs. Rows of different experiments compare as ratios only."
    )


def _ids(drawn: Mapping[str, Experiment], modes: Mapping[str, list[str]]) -> list[str]:
    """Of the jobs of the drawn arms, and of the null arm that made the band."""
    found = []
    for name, experiment in drawn.items():
        nulls = [null for null, repeated in experiment.plan.null_pairs.items() if repeated == BASE]
        used = {*modes[name], *nulls}
        found += [each for job, each in experiment.measured() if job.requested.arm in used]
    return found
