"""Attention kernels compared: whose outputs keep their bits under any chunking, and how fast.

Guarantees: every candidate sees the same queries, keys and values, in float32; "invariant" means
equal bits for 64 positions however they are chunked, whatever keys follow, at eight depths of
context, on one thread and on two; timings take turns within every repetition.

    python -m bench.studies.kernels [--threads 2] [--reps 20] [--shape 3,3,64]
                                    [--only NAME ...]

Prints a row a candidate; the last line is JSON. A shape is key heads, query heads per key head and
head size; the default is SmolLM2-135M's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch

from bench.studies.attention_candidates import CANDIDATES, STORE_LEN, Call, Candidate
from bench.studies.stage_env import restart_as_stage
from engine.model.threads import available_cores

_MODULE = "bench.studies.kernels"
CONTEXT_LENS = (128, 1024, 4096)
ROW_COUNTS = (1, 9, 64)
MIN_POSITIONS = 2  # a stage pads a shorter call; see engine.model.decoder
_CHUNKS = (1, 2, 3, 7, 9, 17, 64)
_TRAILING_LEN = 200  # a chunk that carries 136 positions behind the compared ones
_STARTS = (0, 60, 100, 180, 440, 500, 960, 4000)


class Bench:
    """Random queries, keys and values of one shape."""

    def __init__(self, num_kv_heads: int, per_head: int, head_dim: int) -> None:
        generator = torch.Generator().manual_seed(0)
        query_shape = (STORE_LEN, num_kv_heads, per_head, head_dim)
        self._queries = torch.randn(query_shape, generator=generator)
        self._stored = torch.randn(2, num_kv_heads, STORE_LEN, head_dim, generator=generator)

    def call(self, candidate: Candidate, start: int, num_new: int) -> Call:
        """Make the call for positions `[start, start + num_new)`; keys beyond them are zero."""
        kv_len, num_positions = start + num_new, max(num_new, MIN_POSITIONS)
        num_keys = min(edge for edge in candidate.edges if edge >= kv_len)
        stored = self._stored[:, :, :num_keys].clone()
        stored[:, :, kv_len:] = 0
        queries = self._queries[start : start + num_positions].clone()
        queries[num_new:] = 0
        seen_to = torch.arange(start, start + num_positions)
        hidden = torch.arange(num_keys) > seen_to.repeat_interleave(queries.shape[2])[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        return Call(queries, stored[0], stored[1], mask, start, num_new)

    def outputs(self, candidate: Candidate, start: int, chunk: int) -> torch.Tensor:
        """Compute 64 positions from `start` in chunks."""
        if chunk > 64:
            return candidate.compute(self.call(candidate, start, chunk))[:64]
        calls = [
            self.call(candidate, first, min(chunk, start + 64 - first))
            for first in range(start, start + 64, chunk)
        ]
        return torch.cat([candidate.compute(call)[: call.num_new] for call in calls])

    def num_differing(self, candidate: Candidate) -> int:
        """Count positions whose bits change, over all depths, chunkings and thread counts."""
        total = 0
        for start in _STARTS:
            torch.set_num_threads(2)
            reference = self.outputs(candidate, start, 64)
            for num_threads in (1, 2):
                torch.set_num_threads(num_threads)
                for chunk in (*_CHUNKS, _TRAILING_LEN):
                    changed = self.outputs(candidate, start, chunk) != reference
                    total += int(changed.flatten(1).any(1).sum())
        return total

    def times_us(
        self, names: list[str], num_reps: int, num_threads: int
    ) -> dict[str, dict[str, list[float]]]:
        """Time all candidates in turns; returns `{"context × rows": {name: times}}`."""
        torch.set_num_threads(num_threads)
        times: dict[str, dict[str, list[float]]] = {}
        for context_len in CONTEXT_LENS:
            for num_new in ROW_COUNTS:
                cell = times.setdefault(f"{context_len} x {num_new}", {name: [] for name in names})
                calls = {
                    name: self.call(CANDIDATES[name], context_len - num_new, num_new)
                    for name in names
                }
                for rep_idx in range(num_reps + 2):
                    for name, call in calls.items():
                        began_ns = time.perf_counter_ns()
                        CANDIDATES[name].compute(call)
                        spent_us = (time.perf_counter_ns() - began_ns) / 1e3
                        if rep_idx >= 2:  # the first turns warm up
                            cell[name].append(spent_us)
        return times


@torch.inference_mode()
def measure(
    shape: tuple[int, int, int], names: list[str], num_reps: int, num_threads: int
) -> dict[str, object]:
    """Check and time the named candidates; prints a row each."""
    bench = Bench(*shape)
    differing = {name: bench.num_differing(CANDIDATES[name]) for name in names}
    times = bench.times_us(names, num_reps, num_threads)
    print(
        f"{'median us (min) at context x rows':33s} differs  "
        + "  ".join(f"{key:>13s}" for key in times)
    )
    for name in names:
        words = (_shown(cell[name]) for cell in times.values())
        print(f"{name:33s} {differing[name]:7d}  " + "  ".join(f"{word:>13s}" for word in words))
    medians = {
        name: {key: round(statistics.median(cell[name]), 1) for key, cell in times.items()}
        for name in names
    }
    return {
        "shape": list(shape),
        "num_threads": num_threads,
        "num_reps": num_reps,
        "num_differing": differing,
        "median_us": medians,
    }


def _shown(times_us: list[float]) -> str:
    return f"{statistics.median(times_us):6.0f} ({min(times_us):4.0f})"


def main() -> int:
    """Parse, start anew under the waiting policy of stages, measure."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--threads", type=int, default=len(available_cores()))
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--shape", default="3,3,64")
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    asked = parser.parse_args()
    restart_as_stage(_MODULE, asked.threads)
    num_kv_heads, per_head, head_dim = (int(part) for part in asked.shape.split(","))
    shape = (num_kv_heads, per_head, head_dim)
    print(json.dumps(measure(shape, asked.only, asked.reps, asked.threads)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
