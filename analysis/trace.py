"""What a number rests on: `python -m analysis.trace NUMBER` (or `make trace NUMBER=…`).

A number is named as in `paper/numbers`: `planner:all.planner.over.ar.ratio`, or without the
experiment where one alone has it. Guarantees: what is printed is what the committed numbers say,
and every receipt that is listed was found by the digest of its bytes; one that is not there is said
to be missing. Must never know how a number is computed.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from analysis import folders
from analysis.folders import DEFAULT_EXPERIMENT
from analysis.named_number import NamedNumber
from bench.receipt import receipt_id
from engine.errors import ConfigError, LonghaulError

MISSING = "missing here"
STUDIES = "studies"
PUBLIC = "public"  # numbers out of others' receipts, which are not in the repository
RERUN = {  # study -> what records it again, where that is not its module
    "head-training": "make train-head",
    "head-evaluation": "make train-head",
    "seal-cost": "make study-seal",
    "attacks": "make study-attacks",
    "challenge": "make study-challenge",
    "keepwarm": "make study-keepwarm",
    "peers": "make study-peers",
    "transport-fuzz": "python -m bench.studies.fuzz",
    "replay": "python -m bench replay",
    "streaks": "make study-streaks",
}
NUM_SUGGESTIONS = 5


class NumbersFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of numbers, as `analysis.numbers` writes it."""

    experiment: str
    numbers: dict[str, NamedNumber]


@dataclass(frozen=True, slots=True)
class Traced:
    """A number, its experiment, and where its receipts lie, by id."""

    experiment: str
    name: str
    number: NamedNumber
    paths: Mapping[str, str]


def committed_numbers(paper: Path | None = None) -> dict[str, dict[str, NamedNumber]]:
    """Numbers by experiment and name.

    Args:
        paper: a folder that is laid out as `paper/`; None: the committed one.
    """
    paper = folders.REPOSITORY / "paper" if paper is None else paper
    paths = [paper / "numbers.json", *sorted((paper / "numbers").glob("*.json"))]
    files = {path: msgspec.json.decode(path.read_bytes(), type=NumbersFile) for path in paths}
    names = {path: path.stem for path in paths} | {paths[0]: DEFAULT_EXPERIMENT}
    return {names[path]: dict(file.numbers) for path, file in files.items()}


def trace(asked: str) -> Traced:
    """Find a number and its receipts.

    Raises:
        ConfigError: no experiment has it, or several have; what is near, or which, is listed.
    """
    numbers = committed_numbers()
    experiment, colon, name = asked.partition(":")
    if not colon:
        name = asked
        having = [each for each, own in numbers.items() if name in own]
        if len(having) > 1:
            listed = ", ".join(f"{each}:{name}" for each in having)
            raise ConfigError(f"several experiments have a number {name!r}; say which: {listed}")
        experiment = having[0] if having else ""
    if name not in numbers.get(experiment, {}):
        known = [f"{each}:{own}" for each, names in numbers.items() for own in names]
        near = difflib.get_close_matches(asked, known, NUM_SUGGESTIONS, cutoff=0.3)
        raise ConfigError(
            f"no number {asked!r}; near it: {', '.join(near) or 'none'}; experiments: "
            f"{', '.join(numbers)}"
        )
    number = numbers[experiment][name]
    return Traced(experiment, name, number, _paths(experiment, number.receipt_ids))


def _paths(experiment: str, receipt_ids: list[str]) -> dict[str, str]:
    """Files by the ids of their bytes: the experiment's own, else of any experiment or study."""
    own = folders.COMMITTED / experiment / folders.RECEIPTS_FOLDER
    found = _files_by_id(own.glob("*.json"))
    if not set(receipt_ids) <= found.keys():
        found = _files_by_id(folders.COMMITTED.glob("*/*/*.json"))
    return {each: found.get(each, MISSING) for each in receipt_ids}


def _files_by_id(paths: Iterable[Path]) -> dict[str, str]:
    return {
        receipt_id(path.read_bytes()): str(path.relative_to(folders.REPOSITORY))
        for path in sorted(paths)
        if not path.name.endswith(folders.SIGNATURE_ENDING)
    }


def rerun_commands(traced: Traced) -> list[str]:
    """What measures the receipts behind a number again."""
    if traced.experiment == PUBLIC:
        return ["python -m analysis.public.audit --folder DIR"]
    commands = []
    for path in traced.paths.values():
        parts = Path(path).parts
        if parts[1:2] == (STUDIES,):
            commands.append(RERUN.get(parts[2], f"python -m bench.studies.{parts[2]}"))
        else:
            experiment = parts[1] if path != MISSING else traced.experiment
            commands.append(f"python -m bench run --experiment {experiment} --scale full")
    return list(dict.fromkeys(commands))


def show(traced: Traced, console: Console) -> None:
    """Print it for a person."""
    number = traced.number
    console.print(f"{traced.experiment}:{traced.name} = {number.value} {number.unit}")
    console.print(f"  {number.formula}; {number.rounding}")
    if not traced.paths:
        console.print("  it rests on the plan alone, no receipt")
    for each, path in traced.paths.items():
        console.print(f"  {each}  {path}", soft_wrap=True, highlight=False)
    jobs = [path for path in traced.paths.values() if Path(path).parts[1:2] != (STUDIES,)]
    if jobs:
        console.print(f"explain one: python -m bench show {jobs[0]}", soft_wrap=True)
    for command in rerun_commands(traced):
        console.print(f"run it again: {command}", soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.trace", description=__doc__)
    parser.add_argument("number", help="such as planner:all.planner.over.ar.ratio")
    options = parser.parse_args(arguments)
    try:
        show(trace(options.number), Console())
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
