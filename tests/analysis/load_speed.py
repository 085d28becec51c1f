"""How long 2,000 receipts take to load: `python -m tests.analysis.load_speed [--receipts N]`.

Guarantees: the receipts are invented, signed and about as large as the committed ones; they are
loaded by `analysis.load` alone, first with an empty cache, then with the cache that this left. It
prints times and asserts none: those are the machine's. Must never be mistaken for a measurement of
a ring.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from analysis.load import Experiment, jobs_frame, load_experiment, rounds_frame
from tests.analysis.experiment_builder import build_experiment, make_identity
from tests.analysis.plan_builder import Recipe

CELLS = ("verbatim-copy", "code-edit", "summary", "chat")
OUTPUT_LEN = 64  # tokens a job: gives receipts of 37 KB, as the committed ones are on average
DEFAULT_RECEIPTS = 2_000

ResultT = TypeVar("ResultT")


def recipe_of(num_receipts: int) -> Recipe:
    """Whole repetitions that make at least so many receipts."""
    one = Recipe(experiment="load-speed", cells=CELLS, output_len=OUTPUT_LEN, reps=1)
    per_rep = len(CELLS) * (len(one.arms) + len(one.references))
    reps = math.ceil(num_receipts / per_rep)
    return Recipe(experiment="load-speed", cells=CELLS, output_len=OUTPUT_LEN, reps=reps)


def shape(experiment: Experiment) -> int:
    """Make the frames that products start from; returns the number of their rows."""
    return len(jobs_frame(experiment)) + len(rounds_frame(experiment))


def timed(words: str, work: Callable[[], ResultT]) -> ResultT:
    """Do it and print the seconds that it took."""
    start = time.perf_counter()
    result = work()
    print(f"{words:<44}{time.perf_counter() - start:8.2f} s", flush=True)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.analysis.load_speed")
    parser.add_argument("--receipts", type=int, default=DEFAULT_RECEIPTS, help="at least so many")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        os.environ["LONGHAUL_CACHE"] = str(top / "cache")
        identity, recipe = make_identity(top / "home"), recipe_of(options.receipts)
        built = timed("invent", lambda: build_experiment(top / "built", identity, recipe))
        sizes = [path.stat().st_size for path in (built / "receipts").glob("????.json")]
        print(f"receipts: {len(sizes)}, {sum(sizes) / len(sizes) / 1e3:.0f} KB each")
        keys = [top / "home" / "keys"]
        for words in ("load, nothing known", "load, all known"):
            experiment = timed(words, lambda: load_experiment(built, keys))
            timed("  its frames of jobs and rounds", partial(shape, experiment))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
