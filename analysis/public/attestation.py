"""What signing cost the published stages, from times that do not drift with the ring.

Hashing stood between a stage's compute stamp and its send, so span less compute holds it and little
else; compute itself, which drifts from run to run, cancels. Guarantees: the cost is a difference of
such gaps, signing less not signing, never of spans. Must never know a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from analysis.public.decode import OFF, ON, speculative, stages_frame
from analysis.public.files import PAPER_OFF, PAPER_ON, PublicReceipts
from engine.errors import ReceiptError

KEYS = ["arm", "stage", "phase"]
TIMES = ["span", "compute", "gap"]
RING = "ring"  # the sum over stages
LIKE_FOR_LIKE = "cells"


def _by_frames(rows: pd.DataFrame) -> pd.DataFrame:
    weighted = rows.assign(**{name: rows[name] * rows["frames"] for name in TIMES})
    summed = weighted.groupby(KEYS, sort=False)[[*TIMES, "frames"]].sum()
    return summed[TIMES].div(summed["frames"], axis=0)


def _by_jobs(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby(KEYS, sort=False)[TIMES].mean()


def _in_both(rows: pd.DataFrame) -> pd.DataFrame:
    phases = rows.groupby(["arm", "cell"])["phase"].transform("nunique")
    return rows[phases == 2]


def _by_cells(rows: pd.DataFrame) -> pd.DataFrame:
    by_cell = _in_both(rows).groupby([*KEYS, "cell"], sort=False)[TIMES].mean()
    return by_cell.groupby(KEYS, sort=False).mean()


WEIGHTINGS: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    LIKE_FOR_LIKE: _by_cells,  # cells of both phases, each counting once
    "frames": _by_frames,
    "jobs": _by_jobs,
}


def cost_rows(public: PublicReceipts, weighting: str = LIKE_FOR_LIKE) -> pd.DataFrame:
    """One row an arm and stage, and one an arm for the whole ring.

    Columns: arm, stage, gap_off, gap_on, cost (ms a frame), compute (ms, nobody signing), share
    (cost, per cent of compute), span_off, span_on, shift (per cent by which the span changed).

    Raises:
        ReceiptError: an arm has no cell in both files.
    """
    rows = speculative(stages_frame(public))
    rows = rows.assign(gap=rows["span"] - rows["compute"])
    lost = sorted(set(rows["arm"]) - set(_in_both(rows)["arm"]))
    if lost:
        raise ReceiptError(
            f"{PAPER_ON} and {PAPER_OFF} have no cell in common of arm {', '.join(lost)}: what "
            "signing cost is a difference between them"
        )
    wide = WEIGHTINGS[weighting](rows).unstack("phase")
    stages = pd.DataFrame(
        {
            "gap_off": wide[("gap", OFF)],
            "gap_on": wide[("gap", ON)],
            "compute": wide[("compute", OFF)],
            "span_off": wide[("span", OFF)],
            "span_on": wide[("span", ON)],
        }
    ).reset_index()
    rings = stages.drop(columns="stage").groupby("arm", sort=False).sum().reset_index()
    table = pd.concat([stages, rings.assign(stage=RING)], ignore_index=True)
    table["cost"] = table["gap_on"] - table["gap_off"]
    table["share"] = 100.0 * table["cost"] / table["compute"]
    table["shift"] = 100.0 * (table["span_on"] / table["span_off"] - 1.0)
    return table.sort_values("arm", kind="stable", ignore_index=True)


def ring_rows(public: PublicReceipts) -> pd.DataFrame:
    """The whole ring's rows of `cost_rows` under every weighting, named in column `weighting`."""
    parts = []
    for weighting in WEIGHTINGS:
        rows = cost_rows(public, weighting)
        parts.append(rows[rows["stage"] == RING].assign(weighting=weighting))
    return pd.concat(parts, ignore_index=True)
