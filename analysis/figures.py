"""Figures of an experiment: `python -m analysis.figures [--receipts DIR] [--out DIR]`.

Guarantees: `arms_by_cell`, `acceptance_by_distance` and `accepted_lengths`, or the experiment's
own figures, each as SVG and PDF with reproducible bytes and the plotted points as CSV; a caption
states n, statistic and interval; where nothing is timed, no speed is drawn.
Must never know a receipt that `analysis.load` did not verify, nor compute a statistic that a table
could not print: those live in `effects` and `curves`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    MaxNLocator,
    MultipleLocator,
    PercentFormatter,
)

from analysis.comparison_figures import bands_in_words, draw_comparisons
from analysis.curves import acceptance_by_distance, accepted_lengths, first_rep, pooled_alpha
from analysis.effects import ALL_CELLS, NullBand, ratio_table
from analysis.figure_file import Drawing, arm_look, caption, house_style, save
from analysis.folders import product_folder
from analysis.frame_figure import draw_frames_by_stages
from analysis.load import (
    Experiment,
    find_experiments,
    groups_of,
    jobs_frame,
    load_experiment,
    rounds_frame,
)
from analysis.numbers import REFERENCE_ARM
from analysis.panels import (
    PANEL_COLUMNS,
    ROW_INCHES,
    corner_note,
    draw_rows,
    label_cells,
    log_axis,
    mark_one,
    panel_grid,
    stacked,
)
from analysis.power import STUDY_ARM
from analysis.study_figures import draw_matches, draw_power, draw_prompts, is_simulated
from bench.schema import Plan
from engine.errors import LonghaulError, ReceiptError

Painter = Callable[[Experiment], Drawing]
CURVE_ARM = "chain-k8"  # the arm whose drafts are followed by distance


def draw_arms_by_cell(experiment: Experiment) -> Drawing:
    """Speed, its ratio to autoregressive decoding and to the base arm; rows of arms by cell."""
    jobs = jobs_frame(experiment)
    if jobs.empty:
        raise ReceiptError("no measured job is used: nothing to draw")
    plan, arms = experiment.plan, experiment.measured_arms()
    cells = [cell.name for cell in plan.cells]
    grouped = jobs.groupby(["cell", "arm"])["decode_tok_per_s"]
    points = grouped.agg(middle="median", low="min", high="max", n="size").reset_index()
    points = points.assign(panel="decode_tok_per_s")
    figure = Figure(figsize=(7.6, 1.5 + ROW_INCHES * (len(arms) + 1) * len(cells)))
    axes = figure.subplots(1, 3, sharey=True, width_ratios=(1.1, 1, 0.8))
    draw_rows(axes[0], points, arms, cells)
    axes[0].set_xlabel("decode_tok_per_s\n(tokens/s, log scale)")
    tables, bands = [points], []
    against_base = [arm for arm in arms if arm not in _repeats_of(plan, REFERENCE_ARM)]
    for panel, base, compared in (
        (axes[1], REFERENCE_ARM, arms),
        (axes[2], plan.base_arm, against_base),
    ):
        ratios, band = ratio_table(jobs, plan, base, compared)
        ratios = ratios[(ratios["cell"] != ALL_CELLS) & ratios["ratio"].notna()]
        ratios = ratios.rename(columns={"ratio": "middle", "blocks": "n"}).drop(columns="base")
        mark_one(panel, band.low, band.high)
        draw_rows(panel, ratios, arms, cells)
        panel.set_xlabel(f"ratio to {base}\n({'log' if panel is axes[1] else 'linear'} scale)")
        tables.append(
            ratios.assign(panel=f"ratio to {base}", band_low=band.low, band_high=band.high)
        )
        bands.append(band)
    log_axis(axes[0])
    log_axis(axes[1])
    axes[2].xaxis.set_major_locator(MaxNLocator(4))
    label_cells(list(axes), cells, len(arms))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(arms), 6))
    caption(figure, _arms_caption(experiment, bands))
    return Drawing(figure, stacked(tables), list(jobs["receipt_id"]))


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


def _repeats_of(plan: Plan, arm: str) -> set[str]:
    return {arm, *(null for null, repeated in plan.null_pairs.items() if repeated == arm)}


def _arms_caption(experiment: Experiment, bands: list[NullBand]) -> str:
    return (
        f"Interleaved reps: n = {experiment.plan.reps}. Left: median and min–max over reps. Middle "
        "and right: geometric mean of ratios paired within blocks, 95 % bootstrap over blocks. "
        "Grey: null bands (bootstrap bounds of the central 95 % of null / base): "
        f"{bands_in_words(bands)}. Hollow: null arms."
    )


FIGURES: Mapping[str, Painter] = {
    "arms_by_cell": draw_arms_by_cell,
    "acceptance_by_distance": draw_acceptance_by_distance,
    "accepted_lengths": draw_accepted_lengths,
}
# By experiment, where its own question needs others.
OWN_FIGURES: Mapping[str, Mapping[str, Painter]] = {
    "seal": {"seal_ratios": draw_comparisons},
    "fp8": {"fp8_ratios": draw_comparisons},
    "frames": {"frames_by_stages": draw_frames_by_stages},
    "acceptance": {
        "acceptance_by_distance": partial(draw_acceptance_by_distance, arm=STUDY_ARM),
        "accepted_lengths": draw_accepted_lengths,
        "acceptance_by_prompt": draw_prompts,
        "acceptance_by_match": draw_matches,
        "power": draw_power,
    },
}
UNTIMED_FIGURES: Mapping[str, Painter] = {"frames_by_stages": draw_frames_by_stages}


def figures_of(experiment: Experiment) -> Mapping[str, Painter]:
    """The figures of an experiment by name."""
    others = FIGURES if experiment.is_timed else UNTIMED_FIGURES
    painters = OWN_FIGURES.get(experiment.plan.experiment, others)
    if "power" in painters and not is_simulated(experiment):
        return {name: painter for name, painter in painters.items() if name != "power"}
    return painters


def write_figures(experiment: Experiment, folder: Path) -> list[Path]:
    """Draw and save every figure."""
    mpl.use("agg")
    paths = []
    with house_style():
        for name, draw in figures_of(experiment).items():
            paths += save(draw(experiment), name, experiment, folder)
    return paths


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description=__doc__)
    parser.add_argument("--receipts", default="", help="experiment folder; default: all committed")
    parser.add_argument("--out", type=Path, help="default: paper/figures, or build/figures")
    options = parser.parse_args(arguments)
    try:
        for folder in find_experiments(options.receipts):
            out = product_folder("figures", options.receipts, folder.name, options.out)
            for path in write_figures(load_experiment(folder), out):
                print(f"wrote {path}")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
