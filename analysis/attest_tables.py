"""What attestation costs the stages: time spent on digests against time spent on layers.

Guarantees: both times are the stages' own, out of statements that they signed; a job's share is the
ratio of its sums, never a mean of ratios. Whether statements hold is `bench check`'s question. Must
never know files or axes.
"""

from __future__ import annotations

import pandas as pd

from analysis.load import Experiment
from analysis.rule_parts import FAILS, HOLDS, UNJUDGED, Outcome
from analysis.table_parts import make_spec
from analysis.table_spec import TableSpec, interval, number, text
from engine.trust.attestation import open_envelope, parse_statement

MAX_SHARE_PERCENT = 0.4
COLUMNS = ("job_idx", "cell", "arm", "stage", "frames", "positions", "hash_ns", "compute_ns")


def statement_rows(experiment: Experiment) -> pd.DataFrame:
    """One row a stage and attested job that is used; COLUMNS."""
    rows = []
    for receipt, _ in experiment.measured():
        for signed in receipt.attestations:
            statement = parse_statement(open_envelope(signed)[1])
            rows.append(
                (
                    receipt.position.job_idx,
                    receipt.position.cell,
                    receipt.requested.arm,
                    statement.stage_idx,
                    statement.frames,
                    statement.positions,
                    statement.hash_ns,
                    statement.compute_ns,
                )
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def shares(rows: pd.DataFrame) -> pd.Series:
    """Per cent of computing that each job's stages spent on digests, by job."""
    summed = rows.groupby("job_idx")[["hash_ns", "compute_ns"]].sum()
    return 100.0 * summed["hash_ns"] / summed["compute_ns"]


def attest_table(experiment: Experiment) -> TableSpec:
    """By arm and stage: digests against layers."""
    rows = statement_rows(experiment)
    rows["share"] = 100.0 * rows["hash_ns"] / rows["compute_ns"]
    grouped = rows.groupby(["arm", "stage"], sort=False)
    summed = grouped[["frames", "positions", "hash_ns", "compute_ns"]].sum()
    table = summed.assign(
        jobs=grouped.size(),
        share=100.0 * summed["hash_ns"] / summed["compute_ns"],
        low=grouped["share"].min(),
        high=grouped["share"].max(),
        us_per_frame=summed["hash_ns"] / summed["frames"] / 1000.0,
    ).reset_index()
    columns = (
        text("arm"),
        number("stage", "stage"),
        number("jobs", "jobs"),
        number("frames", "frames"),
        number("positions", "positions"),
        number("us_per_frame", "µs a frame", 1),
        interval(("share", "low", "high"), "% of computing [min–max over jobs]", 3),
    )
    notes = [
        "Digests of a frame as received and as sent, on a thread of their own: its processor time "
        "against the time in the layers, summed over jobs. Frames: those that the roots are over; "
        "stale ones are hashed too and are in the time. `bench check` holds every statement.",
    ]
    title = "What attestation costs the stages"
    return make_spec(experiment, "attestation", title, table, columns, notes)


def cheap_enough(experiment: Experiment) -> Outcome:
    """attest H3: in every attested job."""
    rows = statement_rows(experiment)
    if rows.empty:
        return UNJUDGED
    found = shares(rows)
    measured = f"{found.median():.3f} % [{found.min():.3f}–{found.max():.3f}] in {len(found)} jobs"
    return measured, HOLDS if found.max() <= MAX_SHARE_PERCENT else FAILS
