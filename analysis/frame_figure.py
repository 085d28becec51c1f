"""The figure of what a traversal costs on the wire, by number of stages.

Guarantees: the same sums as in the table of frames; no time is in it. Must never know files, nor
compute a statistic that a table could not print.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MultipleLocator, NullFormatter

from analysis.figure_file import Drawing, arm_look, caption
from analysis.load import Experiment
from analysis.wire import arms_on_wire, wire_frame
from engine.errors import ReceiptError

SIDE_STEP = 0.06  # arms of one number of stages stand beside each other, not on one another


def draw_frames_by_stages(experiment: Experiment) -> Drawing:
    """Frames and bytes a traversal against N, by what the last stage replies with."""
    rows = arms_on_wire(experiment)
    if rows.empty:
        raise ReceiptError("no used job counted its hops: no frames to draw")
    figure = Figure(figsize=(6.4, 3.0))
    left, right = figure.subplots(1, 2)
    _draw_by_stages(left, rows, "frames_per_traversal")
    stages = sorted(rows["num_stages"].unique())
    left.plot(
        stages,
        [num_stages + 1 for num_stages in stages],
        color="#808080",
        linestyle=(0, (4, 2)),
        linewidth=0.9,
        label="N + 1",
        zorder=1,
    )
    left.set_ylabel("frames a traversal")
    left.yaxis.set_major_locator(MultipleLocator(1))
    left.set_ylim(0, max(stages) + 1.6)
    _draw_by_stages(right, rows, "bytes_per_traversal")
    right.set_yscale("log")
    right.yaxis.set_major_locator(LogLocator())
    right.yaxis.set_minor_formatter(NullFormatter())
    right.set_ylabel("bytes a traversal (log scale)")
    for axes in (left, right):
        axes.set_xlabel("stages N")
        axes.set_xticks(stages)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside upper center", ncols=len(rows) // 2 + 1
    )
    caption(
        figure,
        f"Sums over {int(rows['jobs'].sum())} jobs, prefill included; headers and tags included; "
        "every hop counted. Counts, so no interval. Dashed: one frame on each of N + 1 links.",
    )
    columns = ["arm", "reply", "num_stages", "traversals", "frames", "frames_per_traversal"]
    points = rows[[*columns, "bytes_per_traversal"]]
    return Drawing(figure, points, list(wire_frame(experiment)["receipt_id"]))


def _draw_by_stages(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    replies = list(rows["reply"].unique())
    arms = list(rows["arm"])
    for row in rows.to_dict("records"):
        step = SIDE_STEP * (2 * replies.index(row["reply"]) - len(replies) + 1)
        axes.plot(
            row["num_stages"] + step, row[column], label=row["arm"], **arm_look(row["arm"], arms)
        )
