"""The table of where decode time goes, by cell and arm.

Guarantees: a row of per cent and one of milliseconds for every planned cell and measured arm, a
dash where no receipt has all parts; what stays unexplained is a column, and its worst job a note.
Must never know files or axes.
"""

from __future__ import annotations

import pandas as pd

from analysis.breakdown import (
    BREAKDOWN_COLUMNS,
    PARTS,
    PER_TRAVERSAL,
    PERCENT,
    breakdown_rows,
    job_breakdowns,
)
from analysis.load import Experiment
from analysis.table_parts import cells_by_arms, make_spec
from analysis.table_spec import Column, TableSpec, number, rounded, text

FIRST_VERSION = 3  # of plans whose receipts say how long drafts, codec and seal took
MAX_REST_PERCENT = 2
DECIMALS = {PERCENT: 1, PER_TRAVERSAL: 2}


def has_breakdown(experiment: Experiment) -> bool:
    """Whether the experiment is timed, and of a version that notes every part."""
    version = int(experiment.plan.schema.rpartition("/")[2])
    return experiment.is_timed and version >= FIRST_VERSION


def breakdown_table(experiment: Experiment) -> TableSpec:
    """Parts of decode time along the critical path, in per cent and in ms per traversal."""
    jobs = job_breakdowns(experiment)
    units = pd.DataFrame({"unit": [PERCENT, PER_TRAVERSAL]})
    rows = cells_by_arms(experiment).merge(units, how="cross")
    rows = rows.merge(breakdown_rows(jobs), on=["cell", "arm", "unit"], how="left")
    columns = (
        text("cell"),
        text("arm"),
        number("jobs", "jobs"),
        number("traversals", "path"),
        text("unit"),
        *(_part(name) for name in PARTS),
    )
    notes = [
        "Medians over reps, so a row need not add up; each job's parts do, to last commit − first "
        "commit. Path: traversals from the first token's reply to the last token's, each frame led "
        "back to the latest reply read before it was sent. Draft: drafting and planning between "
        "that reply and the frame. Coord.: its other time there, and from reply to commit. Queue, "
        "compute, span: sums over stages; span is what is in neither. Codec, seal: the job's mean "
        "per frame of each process, prompt pass included, summed over processes. Links: half the "
        "median round trip of the empty probes, summed over links. Rest: what is left of the "
        "traversals; negative where parts overlap.",
        *_rest_notes(jobs),
    ]
    rows = rows[list(BREAKDOWN_COLUMNS)]
    title = "Where decode time goes"
    return make_spec(experiment, "breakdown", title, rows, columns, notes)


def _part(name: str) -> Column:
    headers = {"coordinator": "coord.", "other_span": "span"}
    return Column(
        headers.get(name, name), lambda row: rounded(row[name], DECIMALS[str(row["unit"])])
    )


def _rest_notes(jobs: pd.DataFrame) -> list[str]:
    if jobs.empty:
        return ["No used job has every part."]
    share = 100 * jobs["rest"] / jobs[list(PARTS)].sum(axis=1)
    worst = jobs.loc[share.abs().idxmax()]
    within = int((share.abs() <= MAX_REST_PERCENT).sum())
    return [
        f"|rest| is at most {MAX_REST_PERCENT} % of decode in {within} of {len(jobs)} jobs; "
        f"furthest from 0: {share[worst.name]:.1f} % ({worst['arm']} on {worst['cell']})."
    ]
