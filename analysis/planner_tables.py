"""Tables of what speculation wastes, and of how far the planner is from knowing.

Guarantees: each arm stands beside its own bound, paired within blocks; frames are counted by the
stages and the coordinator, not inferred. Must never know files or axes.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from analysis.effects import ratio_table
from analysis.load import Experiment, jobs_frame
from analysis.table_parts import SPEED_NOTE, make_spec, resolution_note, speeds
from analysis.table_spec import TableSpec, interval, number, text
from bench.schema import FrameRow, Receipt

PLANNER, CLAIRVOYANT = "planner", "clairvoyant"
STALE_COUNTS = ("frames", "stale", "stale_answered", "stages_dropped", "stages_computed")


def regret_table(experiment: Experiment) -> TableSpec:
    """The planner against itself when told which drafts will be accepted, by cell."""
    jobs = jobs_frame(experiment)
    arms = experiment.measured_arms()
    title = "What the planner loses by not knowing"
    columns = (
        text("cell"),
        number("blocks", "blocks"),
        number("planner", "planner tok/s", 2),
        number("clairvoyant", "clairvoyant tok/s", 2),
        interval(("ratio", "low", "high"), "planner / clairvoyant [95 %]", 3),
        number("regret", "regret %", 1),
    )
    notes = [
        "clairvoyant: the planner with the same drafter and the same costs, told how many of its "
        "drafts the target will accept; a bound, not a method. Regret: 1 − ratio.",
        f"{SPEED_NOTE} {resolution_note(experiment)}",
    ]
    if jobs.empty or not {PLANNER, CLAIRVOYANT} <= set(arms):
        rows = pd.DataFrame(columns=["cell"])
        return make_spec(experiment, "regret", title, rows, columns, ["Neither ran here."])
    rows, _ = ratio_table(jobs, experiment.plan, CLAIRVOYANT, [PLANNER])
    medians = speeds(jobs)["median_tok_per_s"].unstack("arm")
    rows = rows.merge(medians[[PLANNER, CLAIRVOYANT]].reset_index(), on="cell", how="left")
    rows["regret"] = 100.0 * (1.0 - rows["ratio"])
    return make_spec(experiment, "regret", title, rows, columns, notes)


def stale_table(experiment: Experiment) -> TableSpec:
    """Frames that a divergence made worthless, and what stages spent on them, by cell and arm."""
    rows = []
    for (cell, arm), receipts in _by_cell_and_arm(experiment).items():
        counts = [_stale_counts(receipt) for receipt in receipts]
        summed = {name: sum(count[name] for count in counts) for name in counts[0]}
        if summed["stale"]:
            rows.append({"cell": cell, "arm": arm, "jobs": len(receipts), **summed})
    frame = pd.DataFrame(rows, columns=["cell", "arm", "jobs", *STALE_COUNTS, "stale_ns", "all_ns"])
    frame["share"] = 100.0 * frame["stale_ns"] / frame["all_ns"]
    columns = (
        text("cell"),
        text("arm"),
        number("jobs", "jobs"),
        number("frames", "frames sent"),
        number("stale", "stale"),
        number("stale_answered", "answered"),
        number("stages_dropped", "dropped by stages"),
        number("stages_computed", "computations of stale frames"),
        number("share", "% of computing", 1),
    )
    notes = [
        "Frames sent behind the prompt pass; stale: of an epoch that a divergence ended before "
        "their reply could matter. Answered: their reply came all the same and was dropped. A "
        "stage drops what waits in its line when a frame of a newer epoch comes, and computes to "
        "the end what it has begun. % of computing: of the stages' time on answered frames, "
        "what went into stale ones. Sums over jobs; arms without stale frames have no row.",
    ]
    return make_spec(experiment, "stale", "Stale frames", frame, columns, notes)


def _by_cell_and_arm(experiment: Experiment) -> dict[tuple[str, str], list[Receipt]]:
    arms = experiment.measured_arms()
    places = [(cell.name, arm) for cell in experiment.plan.cells for arm in arms]
    found: dict[tuple[str, str], list[Receipt]] = {place: [] for place in places}
    for receipt, _ in experiment.measured():
        found[receipt.position.cell, receipt.requested.arm].append(receipt)
    return {place: receipts for place, receipts in found.items() if receipts}


def _stale_counts(receipt: Receipt) -> dict[str, int]:
    frames = [frame for frame in receipt.frames if frame.outcome != "prefill"]
    stale = [frame for frame in frames if frame.outcome == "stale"]
    return {
        "frames": len(frames),
        "stale": len(stale),
        "stale_answered": sum(frame.received_ns is not None for frame in stale),
        "stages_dropped": receipt.counters.stale_dropped,
        "stages_computed": receipt.counters.stale_computed,
        "stale_ns": _computing_ns(frames, lambda frame: frame.outcome == "stale"),
        "all_ns": _computing_ns(frames, lambda frame: True),
    }


def _computing_ns(frames: list[FrameRow], counts: Callable[[FrameRow], bool]) -> int:
    return sum(span.compute_ns for frame in frames if counts(frame) for span in frame.spans)
