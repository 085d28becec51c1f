"""Named numbers for prose: `python -m analysis.numbers [--receipts DIR] [--out FILE]`.

Guarantees: a number carries its unit, rounding, formula and the ids of the receipts that it rests
on; it is rounded once, here; the same receipts give the same bytes. Must never know what is said
about a number.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import pandas as pd

from analysis.effects import ALL_CELLS, ratio_table
from analysis.folders import DEFAULT_EXPERIMENT, product_folder
from analysis.load import Experiment, find_experiments, jobs_frame, load_experiment
from analysis.named_number import NamedNumber, named
from analysis.study_numbers import study_numbers
from analysis.wire_numbers import wire_numbers
from engine.errors import LonghaulError

REFERENCE_ARM = "ar"
NULL_BAND_FORMULA = "outer bootstrap bounds of the central 95 % of null / base, 1 included"


def experiment_numbers(experiment: Experiment) -> dict[str, NamedNumber]:
    """Every number that prose may use about one experiment, by name."""
    jobs = jobs_frame(experiment)
    plan = experiment.plan
    numbers = {
        "jobs.planned": named(len(plan.jobs), 0, "jobs", "rows of the plan", []),
        "jobs.excluded": named(
            len(experiment.exclusions), 0, "jobs", "rows of the exclusion table", []
        ),
        "jobs.used": named(len(jobs), 0, "jobs", "measured jobs that are used", _ids(jobs)),
    }
    numbers |= wire_numbers(experiment)
    numbers |= study_numbers(experiment)
    if jobs.empty or not experiment.is_timed:
        return numbers
    for (cell, arm), group in jobs.groupby(["cell", "arm"]):
        numbers[f"{cell}.{arm}.decode_tok_per_s.median"] = named(
            group["decode_tok_per_s"].median(),
            2,
            "tokens/s",
            "median over reps of (output tokens − 1) / (last commit − first commit)",
            _ids(group),
        )
        numbers[f"{cell}.{arm}.tokens_per_round"] = named(
            group["tokens_per_round"].median(), 2, "tokens", "median over reps", _ids(group)
        )
    arms = experiment.measured_arms()
    for base in dict.fromkeys((REFERENCE_ARM, plan.base_arm)):
        if base in arms:
            numbers |= _ratio_numbers(experiment, jobs, base)
    return numbers


def write_numbers(experiment: Experiment, path: Path) -> None:
    """Write the experiment's numbers, sorted, one key a line."""
    document = {
        "generator": "analysis.numbers",
        "experiment": experiment.plan.experiment,
        "receipt_set_digest": experiment.receipt_set_digest,
        "numbers": experiment_numbers(experiment),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    body = msgspec.json.encode(document, order="sorted")
    path.write_bytes(msgspec.json.format(body, indent=1) + b"\n")


def _ratio_numbers(experiment: Experiment, jobs: pd.DataFrame, base: str) -> dict[str, NamedNumber]:
    table, band = ratio_table(jobs, experiment.plan, base, experiment.measured_arms())
    numbers = {}
    if band.is_established:
        used = jobs[jobs["arm"].isin([base, band.null_arm])]
        for end in ("low", "high"):
            numbers[f"null_band.{base}.{end}"] = named(
                getattr(band, end),
                3,
                "ratio",
                NULL_BAND_FORMULA,
                _ids(used),
            )
    for row in table[table["cell"] == ALL_CELLS].itertuples():
        used = jobs[jobs["arm"].isin([row.arm, base])]
        for column in ("ratio", "low", "high"):
            value = getattr(row, column)
            if not pd.isna(value):
                numbers[f"all.{row.arm}.over.{base}.{column}"] = named(
                    value,
                    3,
                    "ratio",
                    "geometric mean over cells of paired ratios; 95 % bootstrap over blocks",
                    _ids(used),
                )
    return numbers


def _ids(jobs: pd.DataFrame) -> list[str]:
    return [] if jobs.empty else list(jobs["receipt_id"])


def numbers_path(receipts_dir: str, experiment: str) -> Path:
    """`numbers.json` in `build/` or `paper/`; a further committed experiment's in a folder."""
    if receipts_dir or experiment == DEFAULT_EXPERIMENT:
        return product_folder("numbers.json", receipts_dir, DEFAULT_EXPERIMENT)
    return product_folder("numbers", receipts_dir, DEFAULT_EXPERIMENT) / f"{experiment}.json"


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.numbers", description=__doc__)
    parser.add_argument("--receipts", default="", help="experiment folder; default: all committed")
    parser.add_argument("--out", type=Path, help="one file, so it needs --receipts")
    options = parser.parse_args(arguments)
    if options.out and not options.receipts:
        parser.error("--out names one file, all committed experiments need several: add --receipts")
    try:
        for folder in find_experiments(options.receipts):
            out = options.out or numbers_path(options.receipts, folder.name)
            write_numbers(load_experiment(folder), out)
            print(f"wrote {out}")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
