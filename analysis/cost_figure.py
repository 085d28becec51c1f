"""What trust costs: attestation and sealing, by the stages' own clocks and end to end.

Guarantees: digests are set against layers as in the table of attestation, with the share that was
promised; every ratio is to the arm without the lever, with that arm's own null band; times of
sealing alone are those of the signed record. Must never know files, nor compute a statistic that a
table could not print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis.attest_tables import MAX_SHARE_PERCENT, attest_table
from analysis.effects import ALL_CELLS
from analysis.figure_file import Drawing, arm_look, caption
from analysis.load import Experiment, jobs_frame
from analysis.panels import log_axis
from analysis.ratio_rows import draw_ratio, ratios_over
from analysis.study_records import StudyRecord
from engine.errors import ReceiptError

COST_EXPERIMENTS = ("attest", "seal")
STUDY = "seal-cost"
PAIRS: Mapping[str, Mapping[str, str]] = {  # experiment -> arm -> the arm without the lever
    "attest": {"ar-attest": "ar", "chain-attest": "chain-k8"},
    "seal": {"seal-chacha": "seal-none", "seal-aes": "seal-none"},
}
# suite of the record -> the arm that it looks like
SUITES = {"plain": "seal-none", "chacha20-poly1305": "seal-chacha", "aes-256-gcm": "seal-aes"}
TIMES = {"seal_and_open_ns": "alone", "exchange_ns": "exchange"}
NS_PER_US = 1000.0
QUARTILES = (0.25, 0.5, 0.75)
SIDE_STEP = 0.12  # arms of one stage stand beside each other
ROOM_FOR_LEGEND = 1.35  # a factor over the greatest share
ROOM_FOR_WORDS = 0.45  # of the axis, behind the greatest ratio


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One question of the figure: its points, and how they are drawn."""

    name: str
    title: str
    points: pd.DataFrame
    draw: Callable[[Axes, pd.DataFrame], None]


def digest_points(attest: Experiment) -> pd.DataFrame:
    """Digests over layers by arm and stage, % of all jobs and of the least and greatest job."""
    rows = attest_table(attest).rows
    return rows[["arm", "stage", "jobs", "share", "low", "high"]]


def ratio_points(experiment: Experiment, name: str) -> pd.DataFrame:
    """Ratios of the experiment's arms to those without the lever; `ratio_rows.ROW_COLUMNS`.

    Args:
        name: of the experiment, a key of `PAIRS`.
    """
    jobs, plan = jobs_frame(experiment), experiment.plan
    measured = set() if jobs.empty else set(jobs["arm"])
    tables = [
        ratios_over(jobs, plan, base, [arm], plan.cells)
        for arm, base in PAIRS[name].items()
        if {arm, base} <= measured
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def time_points(found: StudyRecord) -> pd.DataFrame:
    """Quartiles in µs by suite and kind of time; columns suite, time, n, low, middle, high."""
    rows = pd.DataFrame(found.record.rows)
    table = []
    for suite in SUITES:
        for time in TIMES:
            taken_us = rows[rows["suite"] == suite][time] / NS_PER_US
            if len(taken_us):
                table.append((suite, time, len(taken_us), *taken_us.quantile(list(QUARTILES))))
    return pd.DataFrame(table, columns=["suite", "time", "n", "low", "middle", "high"])


def draw_cost(experiments: Mapping[str, Experiment], record: StudyRecord | None) -> Drawing:
    """Up to four panels; what was not measured has none.

    Args:
        experiments: by name, those of `COST_EXPERIMENTS` that there are.
        record: of the study `seal-cost`; None: there is none.
    """
    panels = [panel for panel in _panels(experiments, record) if len(panel.points)]
    if not panels:
        raise ReceiptError(
            f"no attested job, no sealed one beside its twin ({', '.join(COST_EXPERIMENTS)}) and "
            f"no record of study {STUDY!r}: nothing to draw"
        )
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.8 * max(columns, 1.4), 0.6 + 1.9 * rows))
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        axes.set_title(panel.title)
        panel.draw(axes, panel.points)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    caption(figure, _caption(experiments, record, {panel.name for panel in panels}))
    points = pd.concat([panel.points.assign(panel=panel.name) for panel in panels])
    return Drawing(figure, points, _ids(experiments, record))


def _panels(experiments: Mapping[str, Experiment], record: StudyRecord | None) -> list[Panel]:
    found = []
    attest, seal = (experiments.get(name) for name in COST_EXPERIMENTS)
    if attest is not None:
        digests = digest_points(attest)
        found.append(Panel("digests", "Attesting: time on digests", digests, _draw_digests))
        ratios = ratio_points(attest, "attest")
        found.append(Panel("attest", "Attesting: end to end", ratios, _draw_ratios))
    if seal is not None:
        ratios = ratio_points(seal, "seal")
        found.append(Panel("seal", "Sealing: end to end", ratios, _draw_ratios))
    if record is not None:
        times = time_points(record)
        found.append(Panel("times", "Sealing: between two processes", times, _draw_times))
    return found


def _draw_digests(axes: Axes, points: pd.DataFrame) -> None:
    arms = list(dict.fromkeys(points["arm"]))
    for idx, arm in enumerate(arms):
        own = points[points["arm"] == arm]
        at = own["stage"] + SIDE_STEP * (2 * idx - len(arms) + 1)
        look = arm_look(arm, arms)
        axes.vlines(at, own["low"], own["high"], color=look["color"])
        axes.plot(at, own["share"], label=arm, **look)
    axes.axhline(MAX_SHARE_PERCENT, color="#404040", linestyle=(0, (4, 2)), linewidth=0.9)
    axes.annotate(
        f"promised: at most {MAX_SHARE_PERCENT:g} % of a job",
        (0.02, MAX_SHARE_PERCENT),
        xycoords=("axes fraction", "data"),
        xytext=(0, -3),
        textcoords="offset points",
        va="top",
        fontsize=7,
    )
    axes.set_xticks(sorted(points["stage"].unique()))
    axes.set_xlabel("stage")
    axes.set_ylabel("% of time in layers")
    axes.set_ylim(0, ROOM_FOR_LEGEND * max(MAX_SHARE_PERCENT, points["high"].max()))
    axes.legend(loc="upper right", fontsize=7, ncols=2, handletextpad=0.2, columnspacing=1.0)


def _draw_ratios(axes: Axes, points: pd.DataFrame) -> None:
    pairs = list(dict.fromkeys(zip(points["arm"], points["base"], strict=True)))
    arms = [arm for arm, _ in pairs]
    for row, (arm, _) in enumerate(pairs):
        own = points[points["arm"] == arm]
        low, high = own[["band_low", "band_high"]].iloc[0]
        if low <= high:  # NaN ends: no band
            axes.barh(row, high - low, left=low, height=0.6, color="#BBBBBB", alpha=0.6)
        mean = own[own["cell"] == ALL_CELLS].iloc[0]
        draw_ratio(axes, row, own, arm_look(arm, arms), f"{mean['ratio']:.3f}")
    axes.axvline(1.0, color="#808080", linewidth=0.8)
    axes.set_yticks(range(len(pairs)), [f"{arm}\n/ {base}" for arm, base in pairs])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.yaxis.grid(False)
    numbers = points[["ratio", "low", "high", "band_low", "band_high"]]
    least, most = min(1.0, numbers.min().min()), max(1.0, numbers.max().max())
    room = most - least
    axes.set_xlim(least - 0.05 * room, most + ROOM_FOR_WORDS * room)
    axes.set_xlabel("ratio of decode_tok_per_s (linear scale)")


def _draw_times(axes: Axes, points: pd.DataFrame) -> None:
    rows = [(suite, time) for time in TIMES for suite in SUITES]
    drawn = [
        each for each in rows if each in set(zip(points["suite"], points["time"], strict=True))
    ]
    for row, (suite, time) in enumerate(drawn):
        own = points[(points["suite"] == suite) & (points["time"] == time)].iloc[0]
        look = arm_look(SUITES[suite], list(SUITES.values()))
        axes.hlines(row, own["low"], own["high"], color=look["color"], linewidth=1.8)
        axes.plot([own["middle"]], [row], **look)
        axes.annotate(
            f"{own['middle']:.{1 if own['middle'] < 10 else 0}f}",
            (own["high"], row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    labels = [f"{TIMES[time]}: {suite.partition('-')[0]}" for suite, time in drawn]
    axes.set_yticks(range(len(drawn)), labels)
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.yaxis.grid(False)
    log_axis(axes)
    axes.xaxis.set_major_locator(LogLocator())
    axes.set_xlim(0.6 * points["low"].min(), 4.0 * points["high"].max())
    axes.set_xlabel("µs (log scale)")


def _caption(
    experiments: Mapping[str, Experiment], record: StudyRecord | None, drawn: set[str]
) -> str:
    told = []
    if "digests" in drawn:
        told.append(
            "Digests: processor time over time in layers, out of signed statements, summed over "
            "jobs; bars: least to greatest job."
        )
    if drawn & set(COST_EXPERIMENTS):
        reps = ", ".join(
            f"{name} {experiments[name].plan.reps}" for name in COST_EXPERIMENTS if name in drawn
        )
        told.append(
            f"End to end (n, reps: {reps}): geometric mean over cells of ratios paired within "
            "blocks, 95 % bootstrap over blocks; ticks: single cells; grey: the null band of the "
            "arm divided by."
        )
    if "times" in drawn and record is not None:
        settings = record.record.settings
        told.append(
            f"Between two processes: a frame of {int(settings['payload_bytes']):,} bytes over "
            "loopback and a small answer back (exchange), sealing and opening it in one process "
            f"(alone); median and quartiles of n = {settings['reps']}."
        )
    return " ".join(told)


def _ids(experiments: Mapping[str, Experiment], record: StudyRecord | None) -> list[str]:
    """Of the jobs whose arms are drawn, divided by, or make a band; of the record."""
    found: list[str] = []
    for name in COST_EXPERIMENTS:
        experiment = experiments.get(name)
        if experiment is None:
            continue
        used = {*PAIRS[name], *PAIRS[name].values()}
        nulls = experiment.plan.null_pairs.items()
        used |= {null for null, repeated in nulls if repeated in used}
        found += [each for job, each in experiment.measured() if job.requested.arm in used]
    return found if record is None else [*found, record.record_id]
