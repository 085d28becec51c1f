"""Named numbers for prose: `python -m analysis.numbers [--receipts DIR] [--out FILE]`.

Guarantees: a number carries its unit, rounding, formula and the ids of the receipts that it rests
on; it is rounded once, here; the same receipts give the same bytes. Must never know what is said
about a number.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pandas as pd

from analysis import folders
from analysis.claim_numbers import claim_numbers
from analysis.folders import DEFAULT_EXPERIMENT, product_folder
from analysis.load import Experiment, find_experiment, jobs_frame, load_experiment
from analysis.named_number import NamedNumber, named
from analysis.product_kind import Kind, make_products
from analysis.ratio_numbers import ratio_numbers
from analysis.record_numbers import record_numbers
from analysis.report_products import REPORT, joint_digest, report_numbers
from analysis.study_numbers import study_numbers
from analysis.study_records import PRODUCTS
from analysis.wire_numbers import wire_numbers
from engine.errors import LonghaulError

REFERENCE_ARM = "ar"


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
    numbers |= claim_numbers(experiment)
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
            numbers |= ratio_numbers(experiment, jobs, base)
    return numbers


def write_numbers(experiment: Experiment, path: Path) -> None:
    """Write the experiment's numbers, sorted, one key a line."""
    numbers = experiment_numbers(experiment)
    _write(path, experiment.plan.experiment, experiment.receipt_set_digest, numbers)


def _write(path: Path, name: str, digest: str, numbers: Mapping[str, NamedNumber]) -> None:
    document = {
        "generator": "analysis.numbers",
        "experiment": name,
        "receipt_set_digest": digest,
        "numbers": numbers,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    body = msgspec.json.encode(document, order="sorted")
    path.write_bytes(msgspec.json.format(body, indent=1) + b"\n")


def _ids(jobs: pd.DataFrame) -> list[str]:
    return [] if jobs.empty else list(jobs["receipt_id"])


def _of_experiment(experiment: Experiment, name: str, paper: Path) -> list[Path]:
    is_default = name == DEFAULT_EXPERIMENT  # its numbers stand at the top, others' in a folder
    path = paper / ("numbers.json" if is_default else f"numbers/{name}.json")
    write_numbers(experiment, path)
    return [path]


def _of_all(experiments: Sequence[Experiment], paper: Path) -> list[Path]:
    path = paper / "numbers" / f"{REPORT}.json"
    _write(path, REPORT, joint_digest(experiments), report_numbers(experiments))
    return [path]


def _of_records(paper: Path) -> list[Path]:
    numbers = record_numbers()
    ids = sorted({each for number in numbers.values() for each in number.receipt_ids})
    path = paper / "numbers" / f"{PRODUCTS}.json"
    _write(path, PRODUCTS, hashlib.sha256("\n".join(ids).encode()).hexdigest(), numbers)
    return [path]


KIND = Kind(
    places=("numbers.json", "numbers"),
    of_experiment=_of_experiment,
    of_records=_of_records,
    of_all=_of_all,
)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.numbers", description=__doc__)
    parser.add_argument("--receipts", default="", help="experiment folder; default: all committed")
    parser.add_argument("--out", type=Path, help="one file, so it needs --receipts")
    options = parser.parse_args(arguments)
    if options.out and not options.receipts:
        parser.error("--out names one file, all committed experiments need several: add --receipts")
    try:
        if options.receipts:
            folder = find_experiment(options.receipts)
            path = options.out or product_folder("numbers.json", options.receipts, folder.name)
            write_numbers(load_experiment(folder), path)
            paths = iter([path])
        else:
            paths = make_products([KIND], folders.REPOSITORY / "paper")
        for path in paths:
            print(f"wrote {path}", flush=True)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
