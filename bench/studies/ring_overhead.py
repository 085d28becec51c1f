"""What the ring itself costs: `ar` on a local ring without links, against the unsplit engine.

Guarantees: both sides decode the same prompt with the same number of threads, bound and waiting
alike, take turns within every repetition, and must give the same ids, or there is no result.

    python -m bench.studies.ring_overhead [--stages 4] [--threads 2] [--reps 7] [--new-tokens 48]

Prints a row a repetition; the last line is JSON: medians and the median ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from bench.peers.json_worker import JsonWorker
from engine import defaults
from engine.cluster.launch import LocalRing, RingSpec
from engine.coordinator.generate import Generator
from engine.coordinator.job import make_levers
from engine.errors import ConfigError, LonghaulError
from engine.model.threads import available_cores, openmp_env

PROMPT = "Explain in plain words why a long network link makes text generation slow."


class UnsplitEngine(JsonWorker):
    """The worker process; a context manager."""

    def __init__(self, num_threads: int) -> None:
        words = [str(num_threads)]
        super().__init__("bench.studies.unsplit_worker", words, openmp_env(num_threads))

    def decode(self, prompt_ids: tuple[int, ...], num_new: int) -> tuple[list[int], float]:
        """Decode; returns the ids and tok/s.

        Raises:
            ConfigError: the worker ended; its messages are on standard error.
        """
        answer = self.ask({"prompt_ids": prompt_ids, "num_new": num_new})
        return answer["ids"], (num_new - 1) / (answer["decode_ns"] / 1e9)


def measure(num_stages: int, num_threads: int, num_reps: int, num_new: int) -> dict[str, object]:
    """Alternate ring and unsplit engine.

    Raises:
        ConfigError: the two sides disagree on a token.
    """
    rows: list[tuple[float, float]] = []
    levers = make_levers(drafter="none", draft_len=0, depth=1, max_new_tokens=num_new)
    with (
        LocalRing(RingSpec(num_stages, num_threads)) as ring,
        ring.session() as session,
        UnsplitEngine(num_threads) as unsplit,
    ):
        generator = Generator(session, ring.files)
        for rep_idx in range(num_reps + 1):
            generation = generator.generate(PROMPT, levers=levers)
            ring_rate = generation.result.decode_tok_per_s
            ids, unsplit_rate = unsplit.decode(generation.prompt_ids, num_new)
            if ring_rate is None or ids != generation.result.output_ids:
                raise ConfigError("ring and unsplit engine disagree; no speed is reported")
            if rep_idx:  # the first turn warms both sides up
                rows.append((ring_rate, unsplit_rate))
                print(f"ring {ring_rate:6.2f}   unsplit {unsplit_rate:6.2f} tok/s", flush=True)
    return {
        "num_stages": num_stages,
        "num_threads": num_threads,
        "num_reps": num_reps,
        "ring_tok_per_s": round(statistics.median(row[0] for row in rows), 2),
        "unsplit_tok_per_s": round(statistics.median(row[1] for row in rows), 2),
        "ratio": round(statistics.median(row[0] / row[1] for row in rows), 3),
    }


def main() -> int:
    """Parse and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.ring_overhead")
    parser.add_argument("--stages", type=int, default=defaults.NUM_STAGES)
    parser.add_argument("--threads", type=int, default=len(available_cores()))
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=48)
    asked = parser.parse_args()
    try:
        print(json.dumps(measure(asked.stages, asked.threads, asked.reps, asked.new_tokens)))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
