"""Tables of an experiment: `python -m analysis.tables [--receipts DIR] [--out DIR] [--no-write]`.

Guarantees: every planned cell and arm has a row, also one whose jobs were all excluded; excluded
jobs are listed with their reasons; where repetitions are too few for a verdict, the table says so
in words. Must never know a receipt that `analysis.load` did not verify.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis.effects import ALL_CELLS, MIN_REPS, NO_VERDICT, NullBand, ratio_table
from analysis.hypotheses import outcomes
from analysis.load import (
    Experiment,
    default_out,
    find_experiment,
    jobs_frame,
    load_experiment,
)
from analysis.numbers import REFERENCE_ARM
from analysis.table_spec import NOTHING, Column, TableSpec, interval, number, text
from engine.errors import LonghaulError

MIN_WIDTH_COLUMNS = 132  # a narrower terminal would break the numbers in the middle


def decode_table(experiment: Experiment) -> TableSpec:
    """Speed by cell and arm, against autoregressive decoding."""
    jobs = jobs_frame(experiment)
    rows = _cells_by_arms(experiment)
    if not jobs.empty:
        grouped = jobs.groupby(["cell", "arm"])
        speeds = grouped["decode_tok_per_s"].agg(
            median_tok_per_s="median", min_tok_per_s="min", max_tok_per_s="max"
        )
        speeds["tokens_per_round"] = grouped["tokens_per_round"].median()
        rows = rows.merge(speeds.reset_index(), on=["cell", "arm"], how="left")
    rows = rows.merge(_lossless_counts(experiment), on=["cell", "arm"], how="left")
    notes = [_resolution_note(experiment)]
    if REFERENCE_ARM in experiment.measured_arms() and not jobs.empty:
        ratios, band = ratio_table(jobs, experiment.plan, REFERENCE_ARM, experiment.measured_arms())
        rows = rows.merge(ratios, on=["cell", "arm"], how="left")
        notes.append(_band_note(band))
    else:
        missing = dict.fromkeys(("ratio", "low", "high"), float("nan"))
        rows = rows.assign(**missing, verdict=NOTHING)
        notes.append(f"No used job of `{REFERENCE_ARM}`: no ratios.")
    rows["verdict"] = rows["verdict"].fillna(NOTHING)
    notes.append(
        "tok/s: decode_tok_per_s = (output tokens − 1) / (last commit − first commit), median "
        "[min–max] over reps. Ratio: geometric mean of ratios paired within blocks [95 % "
        "bootstrap over blocks]. Lossless: jobs whose output ids equal the reference job's, of "
        "the planned."
    )
    columns = (
        text("cell"),
        text("arm"),
        interval(("median_tok_per_s", "min_tok_per_s", "max_tok_per_s"), "tok/s [min–max]", 2),
        number("tokens_per_round", "tokens/round", 2),
        interval(("ratio", "low", "high"), f"ratio to {REFERENCE_ARM} [95 %]", 2),
        Column("verdict", _verdict, is_number=False),
        Column("lossless", lambda row: f"{row['identical']}/{row['planned']}"),
    )
    return _spec(experiment, "decode", "Decoding speed", rows, columns, notes)


def base_table(experiment: Experiment) -> TableSpec:
    """Every arm against the experiment's base arm."""
    jobs = jobs_frame(experiment)
    base = experiment.plan.base_arm
    arms = experiment.measured_arms()
    if jobs.empty or base not in arms:
        return _spec(
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
        Column("verdict", _verdict, is_number=False),
    )
    notes = [_resolution_note(experiment), _band_note(band)]
    return _spec(experiment, "against_base", f"Arms against {base}", rows, columns, notes)


def acceptance_table(experiment: Experiment) -> TableSpec:
    """Rounds, drafts and their fate by cell and arm, summed over repetitions."""
    jobs = jobs_frame(experiment)
    rows = _cells_by_arms(experiment)
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
    return _spec(experiment, "acceptance", "Acceptance of drafts", rows, columns, notes)


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
    return _spec(experiment, "exclusions", "Jobs not used", rows, columns, [note])


def hypothesis_table(experiment: Experiment) -> TableSpec:
    """What was pre-registered, and what came of it."""
    columns = (text("hypothesis"), text("measured"), text("outcome"))
    note = (
        "The hypotheses stand in the signed plan, written before the first job; the rules are in "
        "analysis/hypotheses.py. Verdicts of single cells in the other tables are exploratory: "
        "they are not corrected for their number."
    )
    rows = outcomes(experiment)
    return _spec(experiment, "hypotheses", "Pre-registered hypotheses", rows, columns, [note])


def all_tables(experiment: Experiment) -> list[TableSpec]:
    """Every table, in reading order."""
    makers = (decode_table, base_table, acceptance_table, hypothesis_table, exclusion_table)
    return [maker(experiment) for maker in makers]


def _cells_by_arms(experiment: Experiment) -> pd.DataFrame:
    cells = [cell.name for cell in experiment.plan.cells]
    pairs = [(cell, arm) for cell in cells for arm in experiment.measured_arms()]
    return pd.DataFrame(pairs, columns=["cell", "arm"])


def _lossless_counts(experiment: Experiment) -> pd.DataFrame:
    planned = [row for row in experiment.plan.jobs if row.role == "measured"]
    identical = {
        receipt.position.job_idx
        for receipt, _ in experiment.measured()
        if receipt.lossless.verdict == "identical"
    }
    rows = [(row.cell, row.arm, row.job_idx in identical) for row in planned]
    frame = pd.DataFrame(rows, columns=["cell", "arm", "identical"])
    counted = frame.groupby(["cell", "arm"])["identical"].agg(["sum", "size"]).reset_index()
    return counted.rename(columns={"sum": "identical", "size": "planned"})


def _resolution_note(experiment: Experiment) -> str:
    reps = experiment.plan.reps
    if reps == 1:
        return (
            "One rep: each number is a single job. It shows that the ring works and how large the "
            f"effects roughly are; it resolves little. Verdicts need at least {MIN_REPS} reps."
        )
    if reps < MIN_REPS:
        return f"{reps} reps: too few to say what noise looks like; verdicts need {MIN_REPS}."
    return f"{reps} reps of every cell and arm, interleaved."


def _band_note(band: NullBand) -> str:
    if band.null_arm is None:
        return f"Null band against `{band.base}`: not established (no arm repeats it)."
    where = f"`{band.null_arm}` / `{band.base}`, blocks: {band.num_blocks}, reps: {band.num_reps}"
    if not band.is_established:
        return f"Null band ({where}): not established; no verdict is given."
    return (
        f"Null band ({where}): {band.low:.3f} … {band.high:.3f}. A difference inside it is what "
        "one arm shows against itself."
    )


def _verdict(row: dict[str, object]) -> str:
    # Without a band every row would repeat the reason that the note below gives once.
    return "no verdict" if row["verdict"] == NO_VERDICT else str(row["verdict"])


def _agreement(row: dict[str, object]) -> str:
    jobs = row["jobs"]
    if not isinstance(jobs, int | float) or not jobs > 1:
        return NOTHING
    return "yes" if row["reps_agree"] else "no"


def _spec(
    experiment: Experiment,
    name: str,
    title: str,
    rows: pd.DataFrame,
    columns: tuple[Column, ...],
    notes: list[str],
) -> TableSpec:
    provenance = (
        f"generated by analysis.tables; experiment {experiment.plan.experiment}; "
        f"{len(experiment.receipts)} receipts; receipt set {experiment.receipt_set_digest}"
    )
    return TableSpec(name, title, rows, columns, tuple(notes), provenance)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description=__doc__)
    parser.add_argument("--receipts", default="", help="experiment folder; default: committed")
    parser.add_argument("--out", type=Path, help="default: paper/tables, or build/tables")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    try:
        experiment = load_experiment(find_experiment(options.receipts))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    # A pipe or a log has no width of its own; a terminal's is respected.
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=MIN_WIDTH_COLUMNS)
    for spec in all_tables(experiment):
        spec.show(console)
        if not options.no_write:
            for path in spec.write(options.out or default_out(options.receipts, "tables")):
                console.print(f"wrote {path}", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
