"""Whether two arms gave the same ids, and where they part.

Guarantees: two jobs are compared within one block only, id by id; a job that is missing or ended
early is counted as planned, never as equal. Says nothing of losslessness: two arms of different
numeric configurations are different models. Must never know speeds, files or axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.load import Experiment

AGREEMENT_COLUMNS = (
    "cell",
    "planned",
    "compared",
    "equal",
    "output_len",
    "first_difference",
    "last_difference",
    "equal_frac",
)
FINISHED = ("eos", "length", "stop")  # a job that ended so has its whole output


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first output that differs, an end included; None: there is none."""
    shorter = min(len(ours), len(theirs))
    first = next((idx for idx in range(shorter) if ours[idx] != theirs[idx]), shorter)
    return None if first == len(ours) == len(theirs) else first


def compare_ids(experiment: Experiment, arm: str, base: str) -> pd.DataFrame:
    """Measured jobs of an arm beside the reference job `base` of their block; AGREEMENT_COLUMNS.

    `first_difference` … `last_difference` is the range over blocks of where the ids part, NaN if
    they never do; `equal_frac` the smallest share of leading outputs that are equal, of the longer
    output; `output_len` the longest of the arm.
    """
    outputs = {
        (receipt.position.block_idx, receipt.position.role, receipt.requested.arm): receipt
        for receipt in experiment.receipts
        if receipt.finish_reason in FINISHED
    }
    rows = []
    for cell in experiment.plan.cells:
        planned = [
            row.block_idx
            for row in experiment.plan.jobs
            if (row.cell, row.arm, row.role) == (cell.name, arm, "measured")
        ]
        pairs = [
            (
                outputs[block_idx, "measured", arm].output_ids,
                outputs[block_idx, "reference", base].output_ids,
            )
            for block_idx in planned
            if (block_idx, "measured", arm) in outputs and (block_idx, "reference", base) in outputs
        ]
        rows.append((cell.name, len(planned), len(pairs), *_summary(pairs)))
    return pd.DataFrame(rows, columns=list(AGREEMENT_COLUMNS))


def _summary(pairs: list[tuple[list[int], list[int]]]) -> tuple[float, ...]:
    """The columns from `equal` on."""
    firsts = [first_difference(ours, theirs) for ours, theirs in pairs]
    known = [first for first in firsts if first is not None]
    shares = [
        1.0 if first is None else first / max(len(ours), len(theirs))
        for first, (ours, theirs) in zip(firsts, pairs, strict=True)
    ]
    return (
        firsts.count(None),
        max((len(ours) for ours, _ in pairs), default=np.nan),
        min(known, default=np.nan),
        max(known, default=np.nan),
        min(shares, default=np.nan),
    )
