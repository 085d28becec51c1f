"""Coverage-guided fuzzing of one target: a process of its own, since libFuzzer never returns.

Guarantees: `engine.transport` is instrumented before anything imports it; how many inputs ended how
is written once the last input has run, so a tally proves a complete run; a failure ends the process
with libFuzzer's status and the input in its artifact. Needs `atheris`; `bench.studies.fuzz` starts
it. Must never know how the tally is shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path


def main() -> None:
    """Fuzz; the process ends within."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.fuzz_guided")
    parser.add_argument("--target", required=True)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--corpus", type=Path, required=True, help="empty folder")
    parser.add_argument("--tally", type=Path, required=True, help="file to write")
    parser.add_argument("--artifact", type=Path, required=True, help="file for a failing input")
    asked = parser.parse_args()

    import atheris

    with atheris.instrument_imports(include=["engine.transport"]):
        from bench.studies.fuzz_targets import MAX_INPUT_LEN, TARGETS

    target = TARGETS[asked.target]()
    for idx, seed in enumerate(target.seeds):
        (asked.corpus / f"seed-{idx}").write_bytes(seed)
    ends: Counter[str] = Counter()

    def run(given: bytes) -> None:
        ends[target.end_of(given)] += 1
        if ends.total() == asked.inputs:
            asked.tally.write_text(json.dumps(ends), encoding="utf-8")

    flags = {
        "runs": asked.inputs,
        "seed": asked.seed,
        "max_len": MAX_INPUT_LEN,
        "exact_artifact_path": asked.artifact,
    }
    atheris.Setup(
        [sys.argv[0], str(asked.corpus), *(f"-{name}={value}" for name, value in flags.items())],
        run,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
