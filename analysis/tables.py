"""Tables of an experiment: `python -m analysis.tables [--receipts DIR] [--out DIR] [--no-write]`.

Guarantees: every experiment's hypotheses, jobs that are not used and own questions have a table;
those of one experiment (--receipts) are printed too. Must never know a receipt that `analysis.load`
did not verify.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from analysis import (
    attack_table,
    challenge_table,
    folders,
    head_products,
    keepwarm,
    peers_products,
)
from analysis.attest_tables import attest_table
from analysis.breakdown_table import breakdown_table, has_breakdown
from analysis.comparison_tables import fp8_ids_table, fp8_speed_table, seal_table
from analysis.determinism import determinism_table
from analysis.experiment_tables import (
    acceptance_table,
    base_table,
    decode_table,
    exclusion_table,
    hypothesis_table,
)
from analysis.folders import product_folder
from analysis.link_probes import links_frame
from analysis.load import Experiment, find_experiment, load_experiment
from analysis.noop_table import noop_table
from analysis.planner_tables import regret_table, stale_table
from analysis.power_tables import power_table, size_table
from analysis.product_kind import Kind, make_products
from analysis.published import published_table
from analysis.replay_tables import replay_tables
from analysis.report_products import REPORT, report_tables
from analysis.source_products import source_table
from analysis.study_records import PRODUCTS, study_records
from analysis.study_tables import (
    group_tests_table,
    match_table,
    previous_table,
    study_table,
    tests_table,
)
from analysis.table_spec import TableSpec
from analysis.wire_tables import fp8_bytes_table, frame_table, link_table
from engine.errors import LonghaulError

Maker = Callable[[Experiment], TableSpec]
MIN_WIDTH_COLUMNS = 132  # a narrower terminal would break the numbers in the middle

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


def _of_experiment(experiment: Experiment, name: str, paper: Path) -> list[Path]:
    out = product_folder("tables", "", name, paper / "tables")
    return [path for spec in all_tables(experiment) for path in spec.write(out)]


def _of_records(paper: Path) -> list[Path]:
    out = product_folder("tables", "", PRODUCTS, paper / "tables")
    return [path for spec in study_record_tables() for path in spec.write(out)]


def _of_all(experiments: Sequence[Experiment], paper: Path) -> list[Path]:
    out = paper / "tables" / REPORT
    return [path for spec in report_tables(experiments) for path in spec.write(out)]


KIND = Kind(
    places=("tables",), of_experiment=_of_experiment, of_records=_of_records, of_all=_of_all
)


def _give_out(specs: list[TableSpec], console: Console, out: Path, no_write: bool) -> None:
    for spec in specs:
        spec.show(console)
        for path in () if no_write else spec.write(out):
            console.print(f"wrote {path}", soft_wrap=True, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description=__doc__)
    parser.add_argument("--receipts", default="", help="experiment folder; default: all committed")
    parser.add_argument("--out", type=Path, help="of one experiment; default: build/tables")
    parser.add_argument("--no-write", action="store_true", help="of one experiment: print only")
    options = parser.parse_args(arguments)
    if (options.out or options.no_write) and not options.receipts:
        parser.error("--out and --no-write are for one experiment: add --receipts")
    console = Console()
    # A pipe or a log has no width of its own; a terminal's is respected.
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=MIN_WIDTH_COLUMNS)
    try:
        if options.receipts:
            folder = find_experiment(options.receipts)
            out = product_folder("tables", options.receipts, folder.name, options.out)
            _give_out(all_tables(load_experiment(folder)), console, out, options.no_write)
        else:
            for path in make_products([KIND], folders.REPOSITORY / "paper"):
                print(f"wrote {path}", flush=True)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
