"""Tables of an experiment: `python -m analysis.tables [--receipts DIR] [--out DIR] [--no-write]`.

Guarantees: every planned cell and arm has a row, also one whose jobs were all excluded; excluded
jobs are listed with their reasons; where repetitions are too few for a verdict, the table says so
in words. Must never know a receipt that `analysis.load` did not verify.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis import attack_table, challenge_table, head_products, keepwarm, peers_products
from analysis.attest_tables import attest_table
from analysis.breakdown_table import breakdown_table, has_breakdown
from analysis.comparison_tables import fp8_ids_table, fp8_speed_table, seal_table
from analysis.determinism import determinism_table
from analysis.effects import ALL_CELLS, ratio_table
from analysis.folders import product_folder
from analysis.hypotheses import outcomes
from analysis.link_probes import links_frame
from analysis.load import Experiment, find_experiments, jobs_frame, load_experiment
from analysis.noop_table import noop_table
from analysis.numbers import REFERENCE_ARM
from analysis.planner_tables import regret_table, stale_table
from analysis.power_tables import power_table, size_table
from analysis.published import published_table
from analysis.replay_tables import replay_tables
from analysis.source_products import source_table
from analysis.study_records import PRODUCTS, study_records
from analysis.study_tables import (
    group_tests_table,
    match_table,
    previous_table,
    study_table,
    tests_table,
)
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
from analysis.wire_tables import fp8_bytes_table, frame_table, link_table
from engine.errors import LonghaulError

Maker = Callable[[Experiment], TableSpec]
MIN_WIDTH_COLUMNS = 132  # a narrower terminal would break the numbers in the middle


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


HYBRID_RUNS = ("hybrid", "hybrid-eu")
PLANNER_RUNS = ("planner", "planner-eu", "planner-six")
AB_TABLES: tuple[Maker, ...] = (decode_table, base_table, acceptance_table)
RESULTS: Mapping[str, tuple[Maker, ...]] = {
    "seal": (seal_table,),
    "fp8": (fp8_speed_table, fp8_bytes_table, fp8_ids_table, acceptance_table),
    "frames": (frame_table,),
    "acceptance": (
        tests_table,
        study_table,
        match_table,
        previous_table,
        group_tests_table,
        power_table,
        size_table,
    ),
    "two-state": (published_table, *AB_TABLES, determinism_table),
    "int4": (*AB_TABLES, stale_table),
    "attest": (*AB_TABLES, attest_table),
    **dict.fromkeys(("keepwarm", "keepwarm-bbr"), (*AB_TABLES, noop_table)),
    **dict.fromkeys(HYBRID_RUNS, (*AB_TABLES, source_table, stale_table)),
    **dict.fromkeys(PLANNER_RUNS, (*AB_TABLES, regret_table, stale_table)),
}
UNTIMED_RESULTS: tuple[Maker, ...] = (frame_table,)


def all_tables(experiment: Experiment) -> list[TableSpec]:
    """Every table of an experiment, in reading order: results, times, hypotheses, jobs, links."""
    others = AB_TABLES if experiment.is_timed else UNTIMED_RESULTS
    results = RESULTS.get(experiment.plan.experiment, others)
    timed = (breakdown_table,) if has_breakdown(experiment) else ()
    probed = () if links_frame(experiment).empty else (link_table,)
    makers = (*results, *timed, hypothesis_table, exclusion_table, *probed)
    return [*(maker(experiment) for maker in makers), *replay_tables(experiment)]


def study_record_tables(records: Path | None = None) -> list[TableSpec]:
    """Tables of signed study records that belong to no experiment."""
    makers = {
        keepwarm.STUDY: keepwarm.pause_table,
        attack_table.STUDY: attack_table.attack_table,
        challenge_table.STUDY: challenge_table.challenge_table,
        peers_products.STUDY: peers_products.peer_table,
        head_products.TRAINING: head_products.training_table,
        head_products.EVALUATION: head_products.trial_table,
    }
    return [
        make(found) for study, make in makers.items() for found in study_records(study, records)[:1]
    ]


def _give_out(specs: list[TableSpec], console: Console, out: Path, no_write: bool) -> None:
    for spec in specs:
        spec.show(console)
        for path in () if no_write else spec.write(out):
            console.print(f"wrote {path}", soft_wrap=True, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description=__doc__)
    parser.add_argument("--receipts", default="", help="experiment folder; default: all committed")
    parser.add_argument("--out", type=Path, help="default: paper/tables, or build/tables")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    console = Console()
    # A pipe or a log has no width of its own; a terminal's is respected.
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=MIN_WIDTH_COLUMNS)
    try:
        for folder in find_experiments(options.receipts):
            out = product_folder("tables", options.receipts, folder.name, options.out)
            _give_out(all_tables(load_experiment(folder)), console, out, options.no_write)
        if not options.receipts:
            out = product_folder("tables", "", PRODUCTS, options.out)
            _give_out(study_record_tables(), console, out, options.no_write)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
