"""Rules of hypotheses about what is counted: ids, bytes, frames.

Guarantees: they need no repetitions and no null band; a job that is missing or failed counts as
planned, never as good. Must never know a speed, files or axes.
"""

from __future__ import annotations

import pandas as pd

from analysis.agreement import compare_ids
from analysis.load import Experiment
from analysis.rule_parts import FAILS, HOLDS, UNJUDGED, Outcome, Rule, against, as_rows
from analysis.wire import bytes_ratio, wire_by_arm, wire_frame

MAX_FP8_BYTES_RATIO = 0.27
FRAME_STAGES = (1, 2, 3, 4)


def lossless(experiment: Experiment) -> Outcome:
    """Every planned job, measured or reference, ended without a differing id.

    Warm-ups come before anything that they could be compared with. `analysis.load` refuses a
    verdict on a reference job of another numeric configuration.
    """
    if not experiment.receipts:
        return UNJUDGED
    judged = {row.job_idx for row in experiment.plan.jobs if row.role != "warmup"}
    good = [
        receipt
        for receipt in experiment.receipts
        if receipt.position.job_idx in judged
        and receipt.status == "ok"
        and receipt.lossless.verdict in ("identical", "reference")
    ]
    num_planned = len(judged)
    return f"{len(good)} of {num_planned} jobs", HOLDS if len(good) == num_planned else FAILS


def same_ids(arm: str, base: str) -> Rule:
    """fp8 H1, int4 H1: every planned job of the arm has the ids of its block's `base`."""

    def judge(experiment: Experiment) -> Outcome:
        rows = compare_ids(experiment, arm, base)
        num_equal, num_planned = int(rows["equal"].sum()), int(rows["planned"].sum())
        has_run = any(receipt.requested.arm == arm for receipt in experiment.receipts)
        if not has_run or not num_planned:
            return UNJUDGED
        is_whole = num_equal == num_planned and bool((rows["planned"] > 0).all())
        return f"{num_equal} of {num_planned} jobs", HOLDS if is_whole else FAILS

    return judge


def fp8_text(experiment: Experiment) -> Outcome:
    """fp8 H2: some cell's ids part, and each comparison stays within fp8."""
    rows = compare_ids(experiment, "ar-fp8", "ar")
    if not rows["compared"].sum():
        return UNJUDGED
    parted = rows[rows["first_difference"].notna()]
    configs = {
        identifier: receipt.requested.numeric_config
        for identifier, receipt in zip(experiment.receipt_ids, experiment.receipts, strict=True)
    }
    crossed = [
        receipt
        for receipt in experiment.receipts
        if receipt.requested.numeric_config == "fp8"
        and receipt.lossless.reference_id is not None
        and configs.get(receipt.lossless.reference_id) != "fp8"
    ]
    shown = [f"{row.cell} from output {row.first_difference:.0f}" for row in as_rows(parted)]
    measured = f"{'; '.join(shown) or 'no cell differs'}; {len(crossed)} jobs judged across"
    return measured, HOLDS if shown and not crossed else FAILS


def fp8_bytes(experiment: Experiment) -> Outcome:
    """fp8 H3: where stages dropped frames the ratio is bounded, and both bounds must agree."""
    by_arm = wire_by_arm(wire_frame(experiment))
    least, most = bytes_ratio(by_arm, "chain-fp8", "chain-k8")
    if pd.isna(least) or pd.isna(most):
        return UNJUDGED
    measured = f"{least:.4f}" if f"{least:.4f}" == f"{most:.4f}" else f"{least:.4f}–{most:.4f}"
    # At most the limit is at least its inverse.
    return measured, against(1 / most, 1 / least, 1 / MAX_FP8_BYTES_RATIO)


def frames_a_traversal(experiment: Experiment) -> Outcome:
    """frames H1: in each job each of N + 1 processes wrote one frame a traversal, for each N."""
    jobs = wire_frame(experiment)
    if jobs.empty:
        return UNJUDGED
    wanted = {(reply, num_stages) for reply in ("ids", "logits") for num_stages in FRAME_STAGES}
    seen = set(zip(jobs["reply"], jobs["num_stages"], strict=True))
    num_exact, num_planned = int(jobs["is_exact"].sum()), _num_measured(experiment)
    measured = f"{num_exact} of {num_planned} jobs; {len(wanted & seen)} of {len(wanted)} rings"
    return measured, HOLDS if num_exact == num_planned and wanted <= seen else FAILS


def _num_measured(experiment: Experiment) -> int:
    return sum(row.role == "measured" for row in experiment.plan.jobs)
