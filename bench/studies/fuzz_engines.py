"""Two ways to make a target's inputs: edits of honest ones, or libFuzzer led by coverage.

Guarantees: every input is counted by how it ended, and a run that stops early is a failure and
never a short result; a failure carries the input that makes it again. Must never know what a target
does with an input.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.host import CHECKOUT_DIR
from bench.studies.fuzz_mutator import Mutator
from bench.studies.fuzz_seeds import honest_frames
from bench.studies.fuzz_targets import ENDS, TARGETS
from engine.errors import ConfigError

GUIDED_MODULE = "bench.studies.fuzz_guided"
# libFuzzer's last line: edges and features reached, inputs kept for reaching them.
_DONE = re.compile(r"#\d+\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)/")
_ERROR_TAIL_LEN = 3000  # characters of a failed process's own words


@dataclass(frozen=True, slots=True)
class Result:
    """One target, fuzzed to the end.

    Args:
        ends: how many inputs ended how.
        coverage: edges, features and kept inputs, as libFuzzer counts them; zeros without it.
    """

    target: str
    ends: Mapping[str, int]
    elapsed_ms: int
    coverage: tuple[int, int, int] = (0, 0, 0)

    @property
    def num_inputs(self) -> int:
        return sum(self.ends.values())

    def row(self) -> dict[str, str | int]:
        """As a row of a study record."""
        edges, features, kept = self.coverage
        return {
            "target": self.target,
            "inputs": self.num_inputs,
            **{end: self.ends.get(end, 0) for end in ENDS},
            "elapsed_ms": self.elapsed_ms,
            "num_edges": edges,
            "num_features": features,
            "num_kept_inputs": kept,
        }


class FuzzFailureError(Exception):
    """An input that breaks a target.

    Args:
        target: its name.
        given: the input; None if the process died without leaving it.
        cause: what happened, for people.
    """

    def __init__(self, target: str, given: bytes | None, cause: str) -> None:
        self.target = target
        self.given = given
        self.cause = cause
        super().__init__(f"{target}: {cause}")


def run_random(target_name: str, num_inputs: int, seed: int) -> Result:
    """Run the mutator's inputs in this process.

    Raises:
        FuzzFailureError: at the first input that breaks the target.
    """
    target = TARGETS[target_name]()
    rng = random.Random(f"{seed} {target_name}")
    mutator = Mutator(rng, target.seeds, target.control_len, honest_frames())
    ends: Counter[str] = Counter()
    began_s = time.perf_counter()
    for _ in range(num_inputs):
        given = mutator.next()
        try:
            ends[target.end_of(given)] += 1
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise FuzzFailureError(target_name, given, cause) from error
    return Result(target_name, ends, _elapsed_ms(began_s))


def run_guided(target_name: str, num_inputs: int, seed: int) -> Result:
    """Run libFuzzer in a process of its own.

    Raises:
        ConfigError: atheris is not installed.
        FuzzFailureError: the process ended in any other way than having run every input.
    """
    if importlib.util.find_spec("atheris") is None:
        raise ConfigError(
            "--engine atheris needs the package atheris (CPython 3.11 to 3.13 on Linux): "
            "pip install --no-deps atheris==3.0.0; --engine random needs nothing"
        )
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tally, artifact, corpus = (Path(folder) / name for name in ("tally", "artifact", "corpus"))
        corpus.mkdir()
        paths = {"--corpus": corpus, "--tally": tally, "--artifact": artifact}
        numbers = {"--inputs": num_inputs, "--seed": seed}
        flags = [f"{name}={value}" for name, value in (*numbers.items(), *paths.items())]
        done = subprocess.run(
            [sys.executable, "-m", GUIDED_MODULE, f"--target={target_name}", *flags],
            cwd=CHECKOUT_DIR,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        last_line = _DONE.search(done.stderr)
        if done.returncode or last_line is None or not tally.exists():
            given = artifact.read_bytes() if artifact.exists() else None
            words = (done.stdout + done.stderr)[-_ERROR_TAIL_LEN:]
            raise FuzzFailureError(target_name, given, f"status {done.returncode}\n{words}")
        ends = json.loads(tally.read_text(encoding="utf-8"))
    edges, features, kept = map(int, last_line.groups())
    return Result(target_name, ends, _elapsed_ms(began_s), (edges, features, kept))


def _elapsed_ms(began_s: float) -> int:
    return round((time.perf_counter() - began_s) * 1000)


ENGINES: Mapping[str, Callable[[str, int, int], Result]] = {
    "random": run_random,
    "atheris": run_guided,
}
