"""The published bench as rows: speeds, acceptance, where a traversal's time goes, stage by stage.

Guarantees: every row is computed from jobs of the public files; cells stand in the order in which
they were run; sums over jobs are ratios of sums, never means of ratios. Must never know a claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.public.files import AR, ARMS_ON, CHAIN, PublicReceipts
from analysis.public.records import Job

MS_PER_S = 1000.0
ON, OFF = "on", "off"  # phases: whether stages signed
COUNTS = ("g", "accept", "rounds", "wasted")  # of a text, the same in every repetition
ALL_CELLS = "all cells"
FIELDS = (
    "arm", "cell", "rep", "prompt_tokens", "new_tokens", "tok_s", "g", "accept", "rounds", "wasted",
    "frames", "prefill_s", "decode_s", "traversal_s", "transport_s", "stage_s",
)  # fmt: skip


def jobs_frame(public: PublicReceipts) -> pd.DataFrame:
    """One row a job of both phases, in the order of the files: `phase` and FIELDS."""
    phases = ((ON, public.on), (OFF, public.off))
    return pd.DataFrame(
        [
            {"phase": phase, **{field: getattr(job, field) for field in FIELDS}}
            for phase, jobs in phases
            for job in jobs
        ]
    )


def stages_frame(public: PublicReceipts) -> pd.DataFrame:
    """One row a job and stage: phase, arm, cell, rep, frames, stage, span and compute (ms)."""
    rows = []
    for phase, jobs in ((ON, public.on), (OFF, public.off)):
        for job in jobs:
            for stage, (span, compute) in sorted(job.per_stage_ms.items()):
                own = {"arm": job.arm, "cell": job.cell, "rep": job.rep, "frames": job.frames}
                rows.append(
                    {"phase": phase, **own, "stage": stage, "span": span, "compute": compute}
                )
    return pd.DataFrame(rows)


def cells_in_order(jobs: Iterable[Job]) -> list[str]:
    """Cells as the chain arm ran them, which runs all; others behind."""
    every = list(jobs)
    return list(dict.fromkeys(job.cell for job in sorted(every, key=lambda job: job.arm != CHAIN)))


def decode_rows(public: PublicReceipts) -> pd.DataFrame:
    """One row a cell and arm: the paper's own phase; cells that it lacks from the other one.

    Columns: cell, receipts, arm, prompt_tokens, n, tok_s, low, high, COUNTS (medians), `varies`
    (how many of the counts differ between repetitions).
    """
    jobs = jobs_frame(public)
    own_cells = cells_in_order(public.on)
    others = [cell for cell in cells_in_order(public.off) if cell not in own_cells]
    rows = []
    for phase, cells in ((ON, own_cells), (OFF, others)):
        for cell in cells:
            for arm in ARMS_ON:
                own = jobs[(jobs["phase"] == phase) & (jobs["cell"] == cell) & (jobs["arm"] == arm)]
                if len(own):
                    rows.append({"cell": cell, "receipts": phase, "arm": arm, **_summary(own)})
    return pd.DataFrame(rows)


def _summary(jobs: pd.DataFrame) -> dict[str, float]:
    return {
        "prompt_tokens": int(jobs["prompt_tokens"].median()),
        "n": len(jobs),
        "tok_s": float(jobs["tok_s"].median()),
        "low": float(jobs["tok_s"].min()),
        "high": float(jobs["tok_s"].max()),
        **{name: float(jobs[name].median()) for name in COUNTS},
        "varies": sum(jobs[name].nunique() > 1 for name in COUNTS),
    }


def weighted_rows(public: PublicReceipts) -> pd.DataFrame:
    """One row a phase and arm: Σ tokens / Σ decode time over all its jobs, and their number."""
    summed = jobs_frame(public).groupby(["phase", "arm"], sort=False)
    totals = summed[["new_tokens", "decode_s"]].sum()
    return totals.assign(
        tok_s=totals["new_tokens"] / totals["decode_s"], n=summed.size()
    ).reset_index()


def split_rows(public: PublicReceipts) -> pd.DataFrame:
    """One row a phase and arm: where the time of a round's frames went, in ms.

    Columns: traversal, stage, transport (ms a round), share (transport, per cent of traversal),
    `frame` (traversal, ms a frame), `positions` of the new text a round (g, over all jobs), n.
    """
    jobs = jobs_frame(public)
    jobs["committed"] = jobs["g"] * jobs["rounds"]
    grouped = jobs.groupby(["phase", "arm"], sort=False)
    names = ["traversal_s", "stage_s", "transport_s", "rounds", "frames", "committed"]
    summed = grouped[names].sum()
    table = pd.DataFrame(
        {
            name: summed[f"{name}_s"] / summed["rounds"] * MS_PER_S
            for name in ("traversal", "stage", "transport")
        }
    )
    return table.assign(
        share=100.0 * summed["transport_s"] / summed["traversal_s"],
        frame=summed["traversal_s"] / summed["frames"] * MS_PER_S,
        g=summed["committed"] / summed["rounds"],
        n=grouped.size(),
    ).reset_index()


def stage_rows(public: PublicReceipts) -> pd.DataFrame:
    """One row a phase, arm and stage: span and compute, ms a frame, means over frames."""
    rows = stages_frame(public)
    for name in ("span", "compute"):
        rows[name] *= rows["frames"]
    summed = rows.groupby(["phase", "arm", "stage"], sort=False)[
        ["span", "compute", "frames"]
    ].sum()
    return pd.DataFrame(
        {name: summed[name] / summed["frames"] for name in ("span", "compute")}
    ).reset_index()


def speculative(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the arms that draft."""
    return rows[rows["arm"] != AR]


def one(rows: pd.DataFrame, **keys: str) -> pd.Series:
    """The one row with these values."""
    for name, value in keys.items():
        rows = rows[rows[name] == value]
    if len(rows) != 1:
        raise KeyError(f"{len(rows)} rows with {keys}")
    return rows.iloc[0]


def cell_medians(jobs: pd.DataFrame, column: str, by: Sequence[str]) -> pd.DataFrame:
    """Medians of a column over repetitions, one row a group, in the order of the files."""
    return jobs.groupby(list(by), sort=False)[column].median().reset_index()
