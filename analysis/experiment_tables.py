"""The tables that most experiments have: speeds, ratios, acceptance, hypotheses, jobs not used.

Guarantees: every planned cell and arm has a row, also one whose jobs were all excluded; excluded
jobs are listed with their reasons; where repetitions are too few for a verdict, the table says so
in words. Must never know which experiment has which table.
"""

from __future__ import annotations

import pandas as pd

from analysis.effects import ALL_CELLS, ratio_table
from analysis.hypotheses import outcomes
from analysis.load import Experiment, jobs_frame
from analysis.numbers import REFERENCE_ARM
from analysis.table_parts import (
    SPEED_NOTE,
    band_note,
    cells_by_arms,
    lossless_counts,
    make_spec,
    resolution_note,
    speeds,
    verdict_words,
)
from analysis.table_spec import NOTHING, Column, TableSpec, interval, number, text


def decode_table(experiment: Experiment) -> TableSpec:
    """Speed by cell and arm, against autoregressive decoding."""
    jobs = jobs_frame(experiment)
    rows = cells_by_arms(experiment)
    if not jobs.empty:
        measured = speeds(jobs)
        measured["tokens_per_round"] = jobs.groupby(["cell", "arm"])["tokens_per_round"].median()
        rows = rows.merge(measured.reset_index(), on=["cell", "arm"], how="left")
    rows = rows.merge(lossless_counts(experiment), on=["cell", "arm"], how="left")
    notes = [resolution_note(experiment)]
    if REFERENCE_ARM in experiment.measured_arms() and not jobs.empty:
        ratios, band = ratio_table(jobs, experiment.plan, REFERENCE_ARM, experiment.measured_arms())
        rows = rows.merge(ratios, on=["cell", "arm"], how="left")
        notes.append(band_note(band))
    else:
        missing = dict.fromkeys(("ratio", "low", "high"), float("nan"))
        rows = rows.assign(**missing, verdict=NOTHING)
        notes.append(f"No used job of `{REFERENCE_ARM}`: no ratios.")
    rows["verdict"] = rows["verdict"].fillna(NOTHING)
    notes.append(
        f"{SPEED_NOTE} Lossless: jobs whose output ids equal those of the reference job of their "
        "own numeric configuration, of the planned."
    )
    columns = (
        text("cell"),
        text("arm"),
        interval(("median_tok_per_s", "min_tok_per_s", "max_tok_per_s"), "tok/s [min–max]", 2),
        number("tokens_per_round", "tokens/round", 2),
        interval(("ratio", "low", "high"), f"ratio to {REFERENCE_ARM} [95 %]", 2),
        Column("verdict", verdict_words, is_number=False),
        Column("lossless", lambda row: f"{row['identical']}/{row['planned']}"),
    )
    return make_spec(experiment, "decode", "Decoding speed", rows, columns, notes)


def base_table(experiment: Experiment) -> TableSpec:
    """Every arm against the experiment's base arm."""
    jobs = jobs_frame(experiment)
    base = experiment.plan.base_arm
    arms = experiment.measured_arms()
    if jobs.empty or base not in arms:
        return make_spec(
            experiment,
            "against_base",
            f"Arms against {base}",
            pd.DataFrame(columns=["cell"]),
            (text("cell"),),
            [f"No used job of `{base}`."],
        )
    rows, band = ratio_table(jobs, experiment.plan, base, arms)
    order = [*(cell.name for cell in experiment.plan.cells), ALL_CELLS]
    rows = rows.sort_values("cell", key=lambda cells: cells.map(order.index), kind="stable")
    columns = (
        text("cell"),
        text("arm"),
        number("blocks", "blocks"),
        interval(("ratio", "low", "high"), f"ratio to {base} [95 %]", 3),
        Column("verdict", verdict_words, is_number=False),
    )
    notes = [resolution_note(experiment), band_note(band)]
    return make_spec(experiment, "against_base", f"Arms against {base}", rows, columns, notes)


def acceptance_table(experiment: Experiment) -> TableSpec:
    """Rounds, drafts and their fate by cell and arm, summed over repetitions."""
    jobs = jobs_frame(experiment)
    rows = cells_by_arms(experiment)
    sums = ["rounds", "sum_draft", "sum_accepted", "sum_tested", "discarded_len"]
    if not jobs.empty:
        grouped = jobs.groupby(["cell", "arm"])
        summed = grouped[sums].sum()
        summed["jobs"] = grouped.size()
        fate = ["rounds", "sum_draft", "sum_accepted", "sum_tested"]
        summed["reps_agree"] = (grouped[fate].nunique() == 1).all(axis=1)
        summed["acceptance_rate"] = summed["sum_accepted"] / summed["sum_draft"]
        summed["alpha_hat"] = summed["sum_accepted"] / summed["sum_tested"]
        rows = rows.merge(summed.reset_index(), on=["cell", "arm"], how="left")
    else:
        rows = rows.assign(
            **dict.fromkeys((*sums, "jobs", "acceptance_rate", "alpha_hat"), float("nan")),
            reps_agree=False,
        )
    columns = (
        text("cell"),
        text("arm"),
        number("jobs", "jobs"),
        number("rounds", "rounds"),
        number("sum_draft", "Σk"),
        number("sum_accepted", "Σa"),
        number("acceptance_rate", "acceptance_rate", 3),
        number("alpha_hat", "alpha_hat", 3),
        number("discarded_len", "discarded"),
        Column("reps agree", _agreement, is_number=False),
    )
    notes = [
        "acceptance_rate = Σa / Σk over rounds; alpha_hat = Σa / Σtested; discarded: drafts lost "
        "to flushes. Greedy repetitions repeat themselves, so sums over reps are no larger sample "
        "of the text: no interval is printed. 'reps agree': every rep has the same rounds, Σk, Σa "
        "and Σtested.",
    ]
    return make_spec(experiment, "acceptance", "Acceptance of drafts", rows, columns, notes)


def exclusion_table(experiment: Experiment) -> TableSpec:
    """Planned jobs that are not used, and why."""
    rows = experiment.exclusions
    total = len(experiment.plan.jobs)
    note = f"{len(rows)} of {total} planned jobs are not used."
    columns = (
        text("cell"),
        text("arm"),
        number("job_idx", "job"),
        number("rep", "rep"),
        text("role"),
        text("reason"),
    )
    return make_spec(experiment, "exclusions", "Jobs not used", rows, columns, [note])


def hypothesis_table(experiment: Experiment) -> TableSpec:
    """What was pre-registered, and what came of it."""
    columns = (text("hypothesis"), text("measured"), text("outcome"))
    note = (
        "The hypotheses stand in the signed plan, written before the first job; the rules are in "
        "analysis/hypotheses.py. Verdicts of single cells in the other tables are exploratory: "
        "they are not corrected for their number."
    )
    rows = outcomes(experiment)
    return make_spec(experiment, "hypotheses", "Pre-registered hypotheses", rows, columns, [note])


def _agreement(row: dict[str, object]) -> str:
    jobs = row["jobs"]
    if not isinstance(jobs, int | float) or not jobs > 1:
        return NOTHING
    return "yes" if row["reps_agree"] else "no"
