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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    MaxNLocator,
)

from analysis import folders, head_products, keepwarm, peers_products
from analysis.acceptance_figures import draw_acceptance_by_distance, draw_accepted_lengths
from analysis.breakdown_table import has_breakdown
from analysis.comparison_figures import bands_in_words, draw_comparisons
from analysis.effects import ALL_CELLS, NullBand, ratio_table
from analysis.figure_file import Drawing, caption, house_style, save
from analysis.folders import product_folder
from analysis.frame_figure import draw_frames_by_stages
from analysis.load import (
    Experiment,
    find_experiment,
    jobs_frame,
    load_experiment,
)
from analysis.numbers import REFERENCE_ARM
from analysis.panels import (
    ROW_INCHES,
    draw_rows,
    label_cells,
    log_axis,
    mark_one,
    stacked,
)
from analysis.power import STUDY_ARM
from analysis.predictions import NEAR, ceilings
from analysis.product_kind import Kind, make_products
from analysis.report_products import REPORT, joint_source, report_figures
from analysis.source_products import draw_acceptance_by_source
from analysis.split_figure import draw_split
from analysis.study_figures import draw_matches, draw_power, draw_prompts, is_simulated
from analysis.study_records import PRODUCTS, StudyRecord, study_records
from analysis.sweep_figure import LEVERS, draw_sweep
from bench.schema import Plan
from engine.errors import LonghaulError, ReceiptError

Painter = Callable[[Experiment], Drawing]

ORACLE_ARM = "oracle"


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
    limits = _draw_ceilings(axes[0], experiment, points, len(arms))
    axes[0].set_xlabel("decode_tok_per_s\n(tokens/s, log scale)")
    tables, bands = [points], []
    # The oracle's ratio is so many times the others' that theirs would be one dot.
    aside = {*_repeats_of(plan, REFERENCE_ARM), ORACLE_ARM}
    against_base = [arm for arm in arms if arm not in aside]
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
    caption(figure, _arms_caption(experiment, bands, ORACLE_ARM in arms, bool(limits)))
    return Drawing(figure, stacked(tables), list(jobs["receipt_id"]))


def _draw_ceilings(
    axes: Axes, experiment: Experiment, points: pd.DataFrame, num_arms: int
) -> dict[str, float]:
    """Mark by cell what no chain exceeds, where it is near; returns what was drawn."""
    greatest = points[points["arm"] != ORACLE_ARM].groupby("cell")["high"].max()
    near = {
        cell: limit
        for cell, limit in ceilings(experiment).items()
        if limit <= NEAR * greatest.get(cell, 0.0)
    }
    names = [cell.name for cell in experiment.plan.cells]
    for cell, limit in near.items():
        top = names.index(cell) * (num_arms + 1) - 0.5
        axes.vlines(limit, top, top + num_arms, color="#808080", linestyle="--", linewidth=0.8)
    return near


def _repeats_of(plan: Plan, arm: str) -> set[str]:
    return {arm, *(null for null, repeated in plan.null_pairs.items() if repeated == arm)}


def _arms_caption(
    experiment: Experiment, bands: list[NullBand], has_oracle: bool, has_ceilings: bool
) -> str:
    return (
        f"Interleaved reps: n = {experiment.plan.reps}. Left: median and min–max over reps. Middle "
        "and right: geometric mean of ratios paired within blocks, 95 % bootstrap over blocks. "
        "Grey: null bands (bootstrap bounds of the central 95 % of null / base): "
        f"{bands_in_words(bands)}. Hollow: null arms."
        + (" The oracle, a bound, is not in the right panel." if has_oracle else "")
        + (
            f" Dashed, where it is near: 1 / ((1 − α) T) of {experiment.plan.base_arm}, the "
            "ceiling of chains whose every loop carries a full frame."
            if has_ceilings
            else ""
        )
    )


FIGURES: Mapping[str, Painter] = {
    "arms_by_cell": draw_arms_by_cell,
    "acceptance_by_distance": draw_acceptance_by_distance,
    "accepted_lengths": draw_accepted_lengths,
}
# By experiment, where its own question needs others.
OWN_FIGURES: Mapping[str, Mapping[str, Painter]] = {
    **{name: {**FIGURES, "sweep": draw_sweep} for name in LEVERS},
    **{
        name: {**FIGURES, "acceptance_by_source": draw_acceptance_by_source}
        for name in ("hybrid", "hybrid-eu")
    },
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
# Of signed study records: file name -> study, painter.
STUDY_PAINTERS: Mapping[str, tuple[str, Callable[[StudyRecord], Drawing]]] = {
    "keepwarm_links": (keepwarm.STUDY, keepwarm.draw_pauses),
    "peers": (peers_products.STUDY, peers_products.draw_peers),
    "head_training": (head_products.TRAINING, head_products.draw_training),
}
UNTIMED_FIGURES: Mapping[str, Painter] = {"frames_by_stages": draw_frames_by_stages}


def figures_of(experiment: Experiment) -> Mapping[str, Painter]:
    """The figures of an experiment by name."""
    others = FIGURES if experiment.is_timed else UNTIMED_FIGURES
    painters = OWN_FIGURES.get(experiment.plan.experiment, others)
    if "power" in painters and not is_simulated(experiment):
        painters = {name: painter for name, painter in painters.items() if name != "power"}
    split = {"traversal_split": draw_split} if has_breakdown(experiment) else {}
    return {**painters, **split}


def write_figures(experiment: Experiment, folder: Path) -> list[Path]:
    """Draw and save every figure."""
    mpl.use("agg")
    plan = experiment.plan
    source = f"experiment {plan.experiment}; receipt set {experiment.receipt_set_digest}"
    paths = []
    with house_style():
        for name, draw in figures_of(experiment).items():
            paths += save(draw(experiment), name, source, folder)
    return paths


def write_study_figures(folder: Path, records: Path | None = None) -> list[Path]:
    """Draw and save the figures of signed study records."""
    mpl.use("agg")
    paths = []
    with house_style():
        for name, (study, draw) in STUDY_PAINTERS.items():
            for found in study_records(study, records)[:1]:
                paths += save(draw(found), name, found.provenance, folder)
    return paths


def _of_experiment(experiment: Experiment, name: str, paper: Path) -> list[Path]:
    return write_figures(experiment, product_folder("figures", "", name, paper / "figures"))


def _of_records(paper: Path) -> list[Path]:
    return write_study_figures(product_folder("figures", "", PRODUCTS, paper / "figures"))


def _of_all(experiments: Sequence[Experiment], paper: Path) -> list[Path]:
    mpl.use("agg")
    folder, source = paper / "figures" / REPORT, joint_source(experiments)
    paths = []
    with house_style():
        for name, draw in report_figures(experiments).items():
            paths += save(draw(), name, source, folder)
    return paths


KIND = Kind(
    places=("figures",), of_experiment=_of_experiment, of_records=_of_records, of_all=_of_all
)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description=__doc__)
    parser.add_argument("--receipts", default="", help="experiment folder; default: all committed")
    parser.add_argument("--out", type=Path, help="of one experiment; default: build/figures")
    options = parser.parse_args(arguments)
    if options.out and not options.receipts:
        parser.error("--out is for one experiment: add --receipts (of all: analysis.products)")
    try:
        if options.receipts:
            folder = find_experiment(options.receipts)
            out = product_folder("figures", options.receipts, folder.name, options.out)
            paths = iter(write_figures(load_experiment(folder), out))
        else:
            paths = make_products([KIND], folders.REPOSITORY / "paper")
        for path in paths:
            print(f"wrote {path}", flush=True)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
