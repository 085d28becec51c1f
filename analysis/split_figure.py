"""Where one traversal goes: the critical path of decode split by link, stage and process.

Guarantees: the parts of a bar add up to last commit − first commit over the traversals between
them, as those of `analysis.breakdown` do; what the figure calls transport is what they leave of a
traversal. Must never know files, nor compute a statistic that a table could not print.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.breakdown import NS_PER_MS, break_down, critical_path
from analysis.figure_file import Drawing, caption
from analysis.load import Experiment
from bench.schema import Receipt
from engine.errors import ReceiptError

KINDS = {"draftable": "Text to copy from", "novel": "New text"}
LINKS, QUEUE, TRANSPORT, COORDINATOR = "links", "queue", "transport", "coordinator"
TOTAL = "total"
QUARTILES = [0.25, 0.75]
PLACE = {"kind", "arm", "path", "tokens"}  # of a job, beside its parts
# Fixed, by part; a stage keeps its shade whatever the number of stages. Light parts lie between
# dark ones, so that they stay apart in grey.
COLOURS = {LINKS: "#D9D9D9", QUEUE: "#E69F00", TRANSPORT: "#882255", COORDINATOR: "#000000"}
STAGE_COLOURS = ("#08306B", "#2F6FAE", "#6BA6D1", "#A9CDE5", "#D3E4F3", "#EEF4FA")
POINT_COLUMNS = (
    "kind",
    "arm",
    "jobs",
    "traversals",
    "tokens_per_traversal",
    "part",
    "ms",
    "percent",
    "low_ms",
    "high_ms",
)
ROW_INCHES = 0.24
ROOM_FOR_WORDS = 1.5  # a factor behind the greatest total
WORDS_GAP_POINTS = 3


def job_split(receipt: Receipt) -> dict[str, int] | None:
    """ns of each part of one job, in the order of the bar; None if its receipt lacks any.

    Transport is packing, sealing, handing over and whatever else is no delay of a link, no
    queue and no layer; the coordinator's part is drafting, planning and its other waits.
    """
    parts = break_down(receipt)
    if parts is None:
        return None
    on_path = [receipt.frames[idx] for _, idx in critical_path(receipt)]
    stages = {
        stage_part(idx): sum(frame.spans[idx].compute_ns for frame in on_path)
        for idx in range(receipt.ring.num_stages)
    }
    return {
        LINKS: parts.links,
        **stages,
        QUEUE: parts.queue,
        TRANSPORT: parts.codec + parts.seal + parts.other_span + parts.rest,
        COORDINATOR: parts.draft + parts.coordinator,
    }


def stage_part(stage_idx: int) -> str:
    """The name of a stage's part."""
    return f"stage {stage_idx}"


def in_order(parts: Iterable[str]) -> list[str]:
    """Parts as they follow one another in a bar: links, stages, queue, transport, coordinator."""
    ends = {LINKS: -1, QUEUE: 1, TRANSPORT: 2, COORDINATOR: 3}
    return sorted(parts, key=lambda part: (ends.get(part, 0), len(part), part))


def split_points(experiment: Experiment) -> pd.DataFrame:
    """ms a traversal by kind of cell, arm and part, and in all; POINT_COLUMNS.

    Sums over the jobs' critical paths, divided by their traversals. Of the total `low_ms` and
    `high_ms` are the quartiles over jobs.
    """
    kinds = {cell.name: cell.kind for cell in experiment.plan.cells}
    jobs = []
    for receipt, _ in experiment.measured():
        split = job_split(receipt)
        if split is None:
            continue
        of_job: dict[str, object] = {
            "kind": kinds[receipt.position.cell],
            "arm": receipt.requested.arm,
            "path": len(critical_path(receipt)),
            "tokens": len(receipt.output_ids) - 1,
        }
        jobs.append(of_job | split)
    if not jobs:
        raise ReceiptError("no used job says where its time went: nothing to draw")
    rows = []
    for (kind, arm), own in pd.DataFrame(jobs).groupby(["kind", "arm"], sort=False):
        parts = own[in_order(set(own.columns) - PLACE)].dropna(axis=1, how="all")
        totals_ns, traversals = parts.sum(axis=1), int(own["path"].sum())
        each_ms = totals_ns / own["path"] / NS_PER_MS
        place = (kind, arm, len(own), traversals, own["tokens"].sum() / traversals)
        for part, sum_ns in {**parts.sum(), TOTAL: totals_ns.sum()}.items():
            ends = each_ms.quantile(QUARTILES) if part == TOTAL else (float("nan"),) * 2
            percent = 100.0 * sum_ns / totals_ns.sum()
            rows.append((*place, part, sum_ns / traversals / NS_PER_MS, percent, *ends))
    return pd.DataFrame(rows, columns=list(POINT_COLUMNS))


def draw_split(experiment: Experiment) -> Drawing:
    """A panel a kind of cells, a bar an arm, its parts from left to right."""
    points = split_points(experiment)
    kinds = [kind for kind in KINDS if kind in set(points["kind"])]
    arms = [arm for arm in experiment.measured_arms() if arm in set(points["arm"])]
    figure = Figure(figsize=(7.6, 1.55 + ROW_INCHES * len(arms)))
    panels = figure.subplots(1, len(kinds), sharex=True, sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        num_cells = sum(cell.kind == kind for cell in experiment.plan.cells)
        axes.set_title(f"{KINDS[kind]}: {num_cells} cell{'' if num_cells == 1 else 's'}")
        axes.set_xlabel("ms a traversal")
        _draw_bars(axes, points[points["kind"] == kind], arms)
        axes.tick_params(axis="y", length=0)
        axes.yaxis.grid(False)
    panels[0].set_yticks(range(len(arms)), arms)
    panels[0].set_ylim(len(arms) - 0.4, -0.6)
    panels[0].set_xlim(0, ROOM_FOR_WORDS * points[["ms", "high_ms"]].max().max())
    handles: dict[str, Artist] = {}
    for axes in panels:
        handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    names = in_order(handles)
    figure.legend(
        [handles[name] for name in names],
        [_label(name) for name in names],
        loc="outside upper center",
        ncols=min(len(names), 8),
        handlelength=1.0,
        columnspacing=1.2,
    )
    caption(figure, _caption(points))
    ids = [name for receipt, name in experiment.measured() if job_split(receipt) is not None]
    return Drawing(figure, points, ids)


def _draw_bars(axes: Axes, points: pd.DataFrame, arms: list[str]) -> None:
    for arm, own in points.groupby("arm", sort=False):
        row, left = arms.index(str(arm)), 0.0
        for part in own[own["part"] != TOTAL].to_dict("records"):
            width = max(0.0, part["ms"])  # parts that overlap leave transport less than nothing
            name = part["part"]
            look: dict[str, Any] = {"color": _colour(name), "edgecolor": "white", "linewidth": 0.4}
            axes.barh(row, width, left=left, height=0.74, label=name, **look)
            left += width
        total = own[own["part"] == TOTAL].iloc[0]
        axes.hlines(row, total["low_ms"], total["high_ms"], color="#404040", linewidth=0.8)
        axes.annotate(
            f"{total['ms']:.0f} ms, {total['tokens_per_traversal']:.1f} tok",
            (max(total["ms"], total["high_ms"]), row),
            xytext=(WORDS_GAP_POINTS, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
        )


def _colour(part: str) -> str:
    if part in COLOURS:
        return COLOURS[part]
    return STAGE_COLOURS[int(part.rpartition(" ")[2]) % len(STAGE_COLOURS)]


def _label(part: str) -> str:
    return "links' delay" if part == LINKS else part


def _caption(points: pd.DataFrame) -> str:
    totals = points[points["part"] == TOTAL]
    return (
        f"Critical path from the first token's reply to the last token's, n = "
        f"{totals['jobs'].sum()} jobs ({totals['jobs'].min()} or more a bar): sums over jobs "
        "divided by traversals; line: quartiles over jobs; tok: tokens that a traversal brings. "
        "Links' delay: half the median round trip of empty probes, summed over links. Stages: time "
        "in the layers. Queue: from read to start of compute. Transport: packing, sealing, handing "
        "over and what is left of the traversal. Coordinator: drafting, planning, its other waits."
    )
