"""Jobs longer than the cache's first capacity, one after another, as a stage runs them."""

from __future__ import annotations

import pytest
import torch

from engine.model.decoder import Decoder
from engine.model.key_store import FIRST_CAPACITY_LEN
from engine.model.weights import prepare_model
from engine.stage.executor import DecoderExecutor


@pytest.fixture(scope="module")
def executor() -> DecoderExecutor:
    files = prepare_model()
    return DecoderExecutor(Decoder.load(files, 0, 2), files.model_digest)


def run_job(executor: DecoderExecutor, ids: torch.Tensor) -> torch.Tensor:
    executor.reset()
    parts = [
        executor.forward(executor.embed(ids[start : start + 256].tolist()), start)
        for start in range(0, len(ids), 256)
    ]
    # A divergence: the tail is truncated and computed again.
    cut = len(ids) - 3
    parts[-1][cut % 256 :] = executor.forward(executor.embed(ids[cut:].tolist()), cut)
    return torch.cat([part.clone() for part in parts])


def test_a_grown_cache_serves_the_next_job(executor: DecoderExecutor) -> None:
    """Catches a cache whose growth makes tensors that a later reset may not touch, which ended the
    stage process at the first job behind one of more than 512 positions."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(10, 40_000, (FIRST_CAPACITY_LEN + 200,), generator=generator)
    with torch.inference_mode():
        long_first = run_job(executor, ids)
        short = run_job(executor, ids[:300])
        long_again = run_job(executor, ids)
    executor.reset()  # outside inference mode, as the stage process calls it
    assert torch.equal(long_first, long_again)
    assert torch.equal(short, long_first[:300])
