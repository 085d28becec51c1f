"""Ids against one's own scores: rounding may swap neighbours, nothing else may."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.sampling import SamplingParams, sample_ids
from engine.trust.answer_check import fault_of
from engine.trust.limits import LIMITS

VOCAB = 49152  # the packaged model's: lengths of rows grow with it, gaps between the best do not
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=3)
FIRST = 7
POSITIONS = range(FIRST, FIRST + 3)
F32 = LIMITS["f32"].score


def scores(num: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(num, VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("limit", [it.score for it in LIMITS.values()])
def test_an_id_that_scores_far_less_is_a_fault(limit: float, params: SamplingParams) -> None:
    """Catches a tolerance that, in a large vocabulary, lets any id pass."""
    logits = scores(3, 1)
    ids = sample_ids(logits, POSITIONS, params)
    assert fault_of(logits, ids, POSITIONS, params, limit) == ""
    ids[1] = int(logits[1].topk(100).indices[-1])
    assert f"position {FIRST + 1} with {ids[1]}" in fault_of(logits, ids, POSITIONS, params, limit)


@given(seed=st.integers(0, 2**32), share=st.floats(0.0, 0.25))
@settings(max_examples=40)
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.8, seed=3)])
@pytest.mark.parametrize("limit", [it.score for it in LIMITS.values()])
def test_ids_chosen_from_scores_that_are_off_by_little_pass(
    limit: float, params: SamplingParams, seed: int, share: float
) -> None:
    """Catches a tolerance below what honest hardware shows."""
    logits = scores(2, seed)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed + 1))
    error = limit * share
    noise *= error * logits.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
    ids = sample_ids(logits + noise, POSITIONS[:2], params)
    assert fault_of(logits, ids, POSITIONS[:2], params, limit) == ""


@pytest.mark.parametrize("wrong", [-1, VOCAB, 10**9])
def test_an_id_outside_the_vocabulary_is_a_fault(wrong: int) -> None:
    assert "position 7" in fault_of(scores(1, 2), [wrong], [FIRST], GREEDY, F32)


def test_an_id_that_is_no_candidate_is_a_fault() -> None:
    """Catches noise that carries an id over which top-k has decided."""
    params = SamplingParams(temperature=2.0, top_k=2, seed=3)
    logits = torch.tensor([[5.0, 4.0, 3.9] + [0.0] * 40])
    for seed in range(20):
        asked = SamplingParams(params.temperature, params.top_k, 1.0, seed)
        assert fault_of(logits, [2], [FIRST], asked, F32)
        assert not fault_of(logits, sample_ids(logits, [FIRST], asked), [FIRST], asked, F32)
