"""Fuzzes everything that receives: payloads, connections, handshakes, hidden states.

Guarantees: every failing input is kept as hex and makes the exit status 1; a record is written only
of a run in which no input failed. Must never know what makes an input fail.

    python -m bench.studies.fuzz [--inputs 1000000] [--engine random|atheris] [--seed N]
                                 [--targets payload plain ...] [--record DIR]
    python -m bench.studies.fuzz --targets plain --replay build/fuzz/plain-0123456789abcdef.hex

`--inputs` is a number per target. Prints a line per target; the last line is JSON. `--record DIR`
also writes a signed study record there.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.host import CHECKOUT_DIR
from bench.schema import Study
from bench.studies.fuzz_engines import ENGINES, FuzzFailureError, Result
from bench.studies.fuzz_targets import ENDS, TARGETS
from bench.study_record import make_study, write_study
from engine.errors import ConfigError, LonghaulError

STUDY = "transport-fuzz"
FAILURES_DIR = CHECKOUT_DIR / "build" / "fuzz"


def keep_failure(failure: FuzzFailureError) -> Path | None:
    """Write the failing input as hex; returns its path, None if there is no input."""
    if failure.given is None:
        return None
    name = f"{failure.target}-{hashlib.sha256(failure.given).hexdigest()[:16]}.hex"
    FAILURES_DIR.mkdir(parents=True, exist_ok=True)
    path = FAILURES_DIR / name
    path.write_text(failure.given.hex() + "\n", encoding="ascii")
    return path


def fuzz(engine: str, targets: Sequence[str], num_inputs: int, seed: int) -> list[Result] | None:
    """Fuzz each target, the others too after one has failed; None if any has."""
    results: list[Result] = []
    for target in targets:
        try:
            result = ENGINES[engine](target, num_inputs, seed)
        except FuzzFailureError as failure:
            print(f"FAILED {failure}", file=sys.stderr)
            path = keep_failure(failure)
            if path is not None:
                again = f"python -m bench.studies.fuzz --targets {target} --replay {path}"
                print(f"  to see it again: {again}", file=sys.stderr)
        else:
            print(_line(result), flush=True)
            results.append(result)
    return results if len(results) == len(targets) else None


def replay(targets: Sequence[str], path: Path) -> int:
    """Run one kept input, with its whole traceback if it still fails."""
    if len(targets) != 1:
        raise ConfigError("--replay needs --targets with the one target that the input is for")
    try:
        given = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} holds no input as hex: {error}") from error
    print(TARGETS[targets[0]]().end_of(given))
    return 0


def make_record(results: Sequence[Result], engine: str, num_inputs: int, seed: int) -> Study:
    """What a run counted, as a study record."""
    version = importlib.metadata.version("atheris") if engine == "atheris" else ""
    settings: dict[str, str | int] = {
        "engine": engine,
        "engine_version": version,
        "inputs_per_target": num_inputs,
        "seed": seed,
    }
    return make_study(STUDY, settings, [result.row() for result in results])


def _line(result: Result) -> str:
    row = result.row()
    ends = ", ".join(f"{row[end]} {end}" for end in ENDS if row[end])
    edges = f"; {row['num_edges']} edges" if row["num_edges"] else ""
    return (
        f"{result.target}: {result.num_inputs} inputs in {result.elapsed_ms / 1000:.1f} s: "
        f"{ends}{edges}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.studies.fuzz")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each target")
    parser.add_argument("--engine", choices=ENGINES, default="random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--replay", type=Path, help="file with one input as hex")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a signed record there")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Parse and fuzz; 1 if an input failed."""
    asked = _parser().parse_args(words)
    try:
        if asked.inputs < 1:
            raise ConfigError(f"--inputs {asked.inputs}: at least 1")
        if asked.replay is not None:
            return replay(asked.targets, asked.replay)
        results = fuzz(asked.engine, asked.targets, asked.inputs, asked.seed)
        if results is None:
            return 1
        if asked.record is not None:
            study = make_record(results, asked.engine, asked.inputs, asked.seed)
            print(write_study(study, asked.record))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps([result.row() for result in results]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
