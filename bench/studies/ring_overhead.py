"""What the ring itself costs: `ar` on a local ring without links, against the unsplit engine.

Guarantees: both sides decode the same prompt with the same threads and OpenMP waits, take turns
within every repetition, and must give the same ids, or there is no result.

    python -m bench.studies.ring_overhead [--stages 4] [--threads 2] [--reps 7] [--new-tokens 48]

Prints a row a repetition; the last line is JSON: medians and the median ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

from engine import defaults
from engine.cluster.launch import LocalRing, RingSpec
from engine.coordinator.generate import Generator
from engine.coordinator.job import make_levers
from engine.errors import ConfigError, LonghaulError
from engine.model.decoder import Decoder
from engine.model.threads import openmp_env, set_threads
from engine.model.unsplit import prefill

PROMPT = "Explain in plain words why a long network link makes text generation slow."
Row = tuple[float, float]


def unsplit_tok_per_s(
    decoder: Decoder, prompt_ids: tuple[int, ...], num_new: int
) -> tuple[float, list[int]]:
    """Decode `num_new` tokens in this process; the prefill's token starts the clock."""
    import torch

    cache = decoder.new_cache()
    output = [prefill(decoder, prompt_ids, cache)]
    began_ns = time.monotonic_ns()
    while len(output) < num_new:
        hidden = decoder.embed(torch.tensor(output[-1:]))
        output += decoder.greedy(decoder.forward(hidden, cache.kv_len, cache))
    return (num_new - 1) / ((time.monotonic_ns() - began_ns) / 1e9), output


def measure(num_stages: int, num_threads: int, num_reps: int, num_new: int) -> dict[str, object]:
    """Alternate ring and unsplit engine.

    Raises:
        ConfigError: the two sides disagree on a token.
    """
    set_threads(num_threads)
    rows: list[Row] = []
    levers = make_levers(drafter="none", draft_len=0, depth=1, max_new_tokens=num_new)
    with LocalRing(RingSpec(num_stages, num_threads)) as ring, ring.session() as session:
        generator = Generator(session, ring.files)
        decoder = Decoder.load(ring.files, 0, ring.files.config.num_layers)
        for rep_idx in range(num_reps + 1):
            generation = generator.generate(PROMPT, levers=levers)
            ring_rate = generation.result.decode_tok_per_s
            unsplit_rate, ids = unsplit_tok_per_s(decoder, generation.prompt_ids, num_new)
            if ring_rate is None or ids != generation.result.output_ids:
                raise ConfigError("ring and unsplit engine disagree; no speed is reported")
            if rep_idx:  # the first turn warms both sides up
                rows.append((ring_rate, unsplit_rate))
                print(
                    f"ring {ring_rate:6.2f} tok/s   unsplit {unsplit_rate:6.2f} tok/s", flush=True
                )
    return {
        "num_stages": num_stages,
        "num_threads": num_threads,
        "num_reps": num_reps,
        "ring_tok_per_s": round(statistics.median(row[0] for row in rows), 2),
        "unsplit_tok_per_s": round(statistics.median(row[1] for row in rows), 2),
        "ratio": round(statistics.median(row[0] / row[1] for row in rows), 3),
    }


def main() -> int:
    """Parse, set the OpenMP waits before torch loads them, measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.ring_overhead")
    parser.add_argument("--stages", type=int, default=defaults.NUM_STAGES)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=48)
    asked = parser.parse_args()
    wanted = openmp_env(asked.threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        # OpenMP reads its waits once, on load: start over with them set.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "bench.studies.ring_overhead", *sys.argv[1:]],
            {**os.environ, **wanted},
        )
    try:
        print(json.dumps(measure(asked.stages, asked.threads, asked.reps, asked.new_tokens)))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
