"""Make texts until there are enough: what `python -m bench.train texts` runs.

Guarantees: shard `i` is made from the target, the seed and `i` alone, so a run that was stopped
goes on where it was, and the number of processes changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from bench.train.shards import Shards
from bench.train.target import TAP_LAYERS, BatchedTarget
from bench.train.texts import ProposedPrompts, answer, bench_runs
from engine.model.threads import available_cores
from engine.model.tokenizer import Tokenizer
from engine.model.weights import prepare_model


class _Maker:
    """One process' target. Processes of one thread each do not wait for each other."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        files = prepare_model()
        tokenizer = Tokenizer.load(files)
        self._target = BatchedTarget(files, TAP_LAYERS)
        self._proposed = ProposedPrompts(self._target, tokenizer, bench_runs(tokenizer))

    def make(self, shards: Shards, idx: int, seed: int) -> str:
        before = time.monotonic()
        prompts = self._proposed.of((seed << 32) + idx)
        texts = answer(self._target, prompts, set(self._target.config.eos_ids))
        num_tokens = shards.write(idx, texts)
        rate = num_tokens / (time.monotonic() - before)
        return f"shard {idx}: {len(texts)} texts, {num_tokens} tokens answered, {rate:.0f} a second"


_makers: list[_Maker] = []  # this process' one


def _begin() -> None:
    _makers.append(_Maker())


def _make(folder: Path, seed: int, idx: int) -> str:
    return _makers[0].make(Shards(folder), idx, seed)


def make_texts(shards: Shards, num_shards: int, seed: int, tell: Callable[[str], None]) -> None:
    """Write the shards that are missing of the first `num_shards`."""
    missing = [idx for idx in range(num_shards) if not shards.path(idx).is_file()]
    num_processes = min(len(available_cores()), len(missing))
    if not missing:
        return
    with ProcessPoolExecutor(num_processes, get_context("spawn"), _begin) as pool:
        jobs = [pool.submit(partial(_make, shards.folder, seed), idx) for idx in missing]
        for job in as_completed(jobs):
            tell(job.result())
