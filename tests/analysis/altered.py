"""Test only: an invented experiment as it would be if something in it were otherwise.

Guarantees: the signed files stay as they are; what is altered is what was loaded of them. Must
never be used outside tests: nothing here was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pandas as pd

from analysis.hypotheses import outcomes
from analysis.load import EXCLUSION_COLUMNS, Experiment, load_experiment
from bench.schema import Lossless, PlannedJobRow, Receipt
from tests.analysis.conftest import Invented


def load_invented(invented: Invented, *hypotheses: str) -> Experiment:
    """The experiment, as if its plan had pre-registered these hypotheses."""
    experiment = load_experiment(invented.folder, invented.key_folders)
    plan = msgspec.structs.replace(experiment.plan, hypotheses=list(hypotheses))
    return replace(experiment, plan=plan)


def outcome_of(experiment: Experiment) -> dict[str, str]:
    """Outcomes by the name of the hypothesis, such as H1."""
    rows = outcomes(experiment)
    names = rows["hypothesis"].str.partition(":")[0]
    return dict(zip(names, rows["outcome"], strict=True))


def measured_of(experiment: Experiment) -> dict[str, str]:
    """What was measured, by the name of the hypothesis."""
    rows = outcomes(experiment)
    names = rows["hypothesis"].str.partition(":")[0]
    return dict(zip(names, rows["measured"], strict=True))


def changed(experiment: Experiment, arm: str, change: Callable[[Receipt], Receipt]) -> Experiment:
    """Every receipt of an arm altered, its reference jobs too."""
    receipts = [
        change(receipt) if receipt.requested.arm == arm else receipt
        for receipt in experiment.receipts
    ]
    return replace(experiment, receipts=tuple(receipts))


def slowed(factor: float) -> Callable[[Receipt], Receipt]:
    """A job whose decoding took so many times as long."""

    def slow(receipt: Receipt) -> Receipt:
        timing = receipt.timing
        decode_ns = timing.last_commit_ns - timing.first_commit_ns
        last_ns = timing.first_commit_ns + round(decode_ns * factor)
        later = msgspec.structs.replace(timing, last_commit_ns=last_ns, end_ns=last_ns)
        return msgspec.structs.replace(receipt, timing=later)

    return slow


def as_failed(receipt: Receipt) -> Receipt:
    """A job that says that it failed."""
    return msgspec.structs.replace(receipt, status="failed")


def not_used(experiment: Experiment, arm: str, *cells: str, reps: int = 4) -> Experiment:
    """As if the measured jobs of an arm on these cells (none named: on all) had been excluded."""
    rows = [
        (*(getattr(row, name) for name in EXCLUSION_COLUMNS[:-1]), "failed: invented")
        for row in experiment.plan.jobs
        if (row.arm, row.role) == (arm, "measured")
        and (not cells or row.cell in cells)
        and row.rep < reps
    ]
    more = pd.DataFrame(rows, columns=list(EXCLUSION_COLUMNS))
    known = experiment.exclusions
    return replace(experiment, exclusions=more if known.empty else pd.concat([known, more]))


def with_plan(experiment: Experiment, /, **fields: object) -> Experiment:
    """As if the plan had said something else."""
    return replace(experiment, plan=msgspec.structs.replace(experiment.plan, **fields))


def with_warmup(experiment: Experiment, job_idx: int) -> Experiment:
    """As if a job had been a warm-up, which is compared with nothing."""

    def warm(row: PlannedJobRow) -> PlannedJobRow:
        role = "warmup" if row.job_idx == job_idx else row.role
        return msgspec.structs.replace(row, role=role)

    receipts = tuple(
        msgspec.structs.replace(
            receipt,
            position=msgspec.structs.replace(receipt.position, role="warmup"),
            lossless=Lossless(verdict="not_compared", reference_id=None, first_difference=None),
        )
        if receipt.position.job_idx == job_idx
        else receipt
        for receipt in experiment.receipts
    )
    jobs = [warm(row) for row in experiment.plan.jobs]
    return replace(with_plan(experiment, jobs=jobs), receipts=receipts)


def without_arms(experiment: Experiment, *arms: str) -> Experiment:
    """As if the run had been asked for the other arms only."""
    nulls = {null: arm for null, arm in experiment.plan.null_pairs.items() if null not in arms}
    fewer = _only_jobs(experiment, lambda row: row.role != "measured" or row.arm not in arms)
    return with_plan(fewer, null_pairs=nulls)


def only_cells(experiment: Experiment, *cells: str) -> Experiment:
    """As if the run had been asked for these cells only."""
    fewer = _only_jobs(experiment, lambda row: row.cell in cells)
    return with_plan(fewer, cells=[row for row in experiment.plan.cells if row.name in cells])


def _only_jobs(experiment: Experiment, is_kept: Callable[[PlannedJobRow], bool]) -> Experiment:
    jobs = [row for row in experiment.plan.jobs if is_kept(row)]
    kept = {row.job_idx for row in jobs}
    pairs = zip(experiment.receipts, experiment.receipt_ids, strict=True)
    chosen = [pair for pair in pairs if pair[0].position.job_idx in kept]
    fewer = replace(
        experiment,
        receipts=tuple(receipt for receipt, _ in chosen),
        receipt_ids=tuple(identifier for _, identifier in chosen),
    )
    return with_plan(fewer, jobs=jobs)
