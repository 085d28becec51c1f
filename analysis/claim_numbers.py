"""Named numbers that the report's sentences need beside speeds: settings, verdicts, shares.

Guarantees: they are those of the plans and tables. Must never know what is said about a number.
"""

from __future__ import annotations

from analysis.attest_tables import shares, statement_rows
from analysis.effects import geometric_mean_ratio, paired_log_ratios
from analysis.hypotheses import DRAFTABLE
from analysis.load import Experiment, jobs_frame
from analysis.named_number import NamedNumber, named

Numbers = dict[str, NamedNumber]
METRIC = "decode_tok_per_s"
NS_PER_MS = 1_000_000


def claim_numbers(experiment: Experiment) -> Numbers:
    """Of one experiment; what it does not have is left out."""
    return {
        **_setting_numbers(experiment),
        **_draftable_numbers(experiment),
        **_attested_numbers(experiment),
    }


def _setting_numbers(experiment: Experiment) -> Numbers:
    plan, measured = experiment.plan, experiment.measured()
    ids = [identifier for _, identifier in measured]
    identical = [
        identifier for receipt, identifier in measured if receipt.lossless.verdict == "identical"
    ]
    numbers = {
        "model.layers": named(plan.model.num_layers, 0, "layers", "of the model", []),
        "plan.cells": named(len(plan.cells), 0, "cells", "of the plan", []),
        "plan.reps": named(plan.reps, 0, "repetitions", "of the plan", []),
        "jobs.identical": named(
            len(identical), 0, "jobs", "measured jobs with the ids of their reference", identical
        ),
    }
    links = measured[0][0].links if measured else []
    if links:
        loop_ms = sum(link.one_way_ns for link in links) / NS_PER_MS
        formula = "requested one-way delays of all links, summed"
        numbers["profile.loop_ms"] = named(loop_ms, 0, "ms", formula, ids)
    return numbers


def _draftable_numbers(experiment: Experiment) -> Numbers:
    """H2 of the planner's experiments: over the cells that it names."""
    cells = DRAFTABLE.get(experiment.plan.experiment, ())
    jobs = jobs_frame(experiment) if cells else None
    if jobs is None or jobs.empty:
        return {}
    pairs = paired_log_ratios(jobs, METRIC, "planner", "two-state")
    if not set(cells) <= set(pairs["cell"]):
        return {}
    seed_text = f"{METRIC} planner two-state {' '.join(cells)}"
    ends = geometric_mean_ratio(pairs[pairs["cell"].isin(cells)], seed_text)
    used = jobs[jobs["cell"].isin(cells) & jobs["arm"].isin(["planner", "two-state"])]
    formula = f"geometric mean of paired ratios over {', '.join(cells)}; 95 % bootstrap"
    return {
        f"draftable.planner.over.two-state.{name}": named(
            value, 3, "ratio", formula, list(used["receipt_id"])
        )
        for name, value in zip(("ratio", "low", "high"), ends, strict=True)
    }


def _attested_numbers(experiment: Experiment) -> Numbers:
    rows = statement_rows(experiment)
    if rows.empty:
        return {}
    used = set(rows["job_idx"])
    ids = [
        identifier
        for receipt, identifier in experiment.measured()
        if receipt.position.job_idx in used
    ]
    whole = 100.0 * rows["hash_ns"].sum() / rows["compute_ns"].sum()
    formula = "time on digests / time in layers, stages summed, out of signed statements"
    return {
        "digest.share": named(whole, 2, "%", f"{formula}; all attested jobs", ids),
        "digest.share.most": named(
            float(shares(rows).max()), 2, "%", f"{formula}; greatest of any job", ids
        ),
    }
