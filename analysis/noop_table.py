"""Noops that jobs sent to keep their links warm, beside the frames that they sent anyway.

Guarantees: counts are those that each sender stated; jobs of a version that counted none are left
out, not counted as none. Must never know what a noop saved: that is the A/B's.
"""

from __future__ import annotations

import pandas as pd
from msgspec import UNSET

from analysis.load import Experiment
from analysis.table_parts import make_spec
from analysis.table_spec import TableSpec, interval, number, text

COLUMNS = ("arm", "cell", "keepwarm_ms", "seconds", "frames", "noops", "busiest")
NS_PER_S = 1e9


def noop_rows(experiment: Experiment) -> pd.DataFrame:
    """One row a job that is used; COLUMNS; `busiest`: noops of the link that sent most."""
    rows = []
    for receipt, _ in experiment.measured():
        hops = receipt.counters.hops
        if hops is UNSET or any(hop.noops is UNSET for hop in hops):
            continue
        noops = [int(hop.noops) for hop in hops if hop.noops is not UNSET]
        rows.append(
            (
                receipt.requested.arm,
                receipt.position.cell,
                receipt.requested.keepwarm_ms,
                receipt.timing.end_ns / NS_PER_S,
                receipt.counters.frames_on_wire,
                sum(noops),
                max(noops),
            )
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def noop_table(experiment: Experiment) -> TableSpec:
    """By arm and cell."""
    rows = noop_rows(experiment)
    grouped = rows.groupby(["arm", "cell"], sort=False)
    table = pd.DataFrame(
        {
            "jobs": grouped.size(),
            "keepwarm_ms": grouped["keepwarm_ms"].first(),
            "seconds": grouped["seconds"].median(),
            "frames": grouped["frames"].median(),
            "noops": grouped["noops"].median(),
            "low": grouped["noops"].min(),
            "high": grouped["noops"].max(),
            "busiest": grouped["busiest"].max(),
        }
    ).reset_index()
    columns = (
        text("arm"),
        text("cell"),
        number("jobs", "jobs"),
        number("keepwarm_ms", "noop after (ms)"),
        number("seconds", "job (s)", 1),
        number("frames", "frames on all links"),
        interval(("noops", "low", "high"), "noops on all links [min–max]", 0),
        number("busiest", "most on one link"),
    )
    notes = [
        "Medians over jobs. A noop goes over a forward link after so much silence on it; it is no "
        "frame and no stage answers it. Counted by its sender.",
    ]
    return make_spec(experiment, "noops", "Noops on silent links", table, columns, notes)
