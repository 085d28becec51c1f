"""Bitwise claims: no output depends on chunking, splitting, trailing keys, history or threads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.decoder import Decoder
from engine.model.linear import (
    DEFAULT_PROBE_SHAPES,
    LinearKernel,
    differing_row_counts,
    linear,
    linear_add,
    linear_kernel,
    pack,
    probe_row_invariance,
)
from engine.model.weights import ModelFiles

SHORT_LEN = 130  # crosses the first key block
LONG_LEN = 1200


def run_in_chunks(decoder: Decoder, ids: torch.Tensor, chunk_lens: Sequence[int]) -> torch.Tensor:
    """Feed ids in chunks, the lengths taken in turn, and return all hidden states."""
    cache = decoder.new_cache()
    pieces, start, turn = [], 0, 0
    while start < len(ids):
        span = ids[start : start + chunk_lens[turn % len(chunk_lens)]]
        pieces.append(decoder.forward(decoder.embed(span), start, cache))
        start, turn = start + len(span), turn + 1
    return torch.cat(pieces)


@pytest.fixture(scope="module")
def one_by_one(decoder: Decoder, passage_ids: torch.Tensor) -> torch.Tensor:
    """Logits of autoregressive decoding."""
    return decoder.logits(run_in_chunks(decoder, passage_ids[:SHORT_LEN], [1]))


@pytest.fixture(scope="module")
def short_one_by_one(short_decoder: Decoder, passage_ids: torch.Tensor) -> torch.Tensor:
    return run_in_chunks(short_decoder, passage_ids, [1])


@pytest.mark.parametrize("chunk", [2, 3, 7, 9, 17, 64, 512])
def test_logits_do_not_depend_on_chunking(decoder, passage_ids, one_by_one, chunk) -> None:
    chunked = run_in_chunks(decoder, passage_ids[:SHORT_LEN], [chunk])
    assert torch.equal(decoder.logits(chunked), one_by_one)


def test_logits_do_not_depend_on_the_rows_beside_them(decoder, passage_ids, one_by_one) -> None:
    hidden = run_in_chunks(decoder, passage_ids[:SHORT_LEN], [9])
    for first, end in ((0, 1), (5, 6), (5, 7), (8, 17), (60, 124)):
        assert torch.equal(decoder.logits(hidden[first:end]), one_by_one[first:end])


@pytest.mark.parametrize("chunk_lens", [[9], [64], [512], [1200], [1, 64, 2, 33, 5]])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_long_contexts_are_exact(
    short_decoder, passage_ids, short_one_by_one, chunk_lens, num_threads, two_threads
) -> None:
    torch.set_num_threads(num_threads)
    assert torch.equal(run_in_chunks(short_decoder, passage_ids, chunk_lens), short_one_by_one)


@settings(max_examples=12, deadline=None)
@given(chunk_lens=st.lists(st.integers(1, 64), min_size=1, max_size=12))
def test_random_chunkings_are_exact(
    short_decoder, passage_ids, short_one_by_one, chunk_lens
) -> None:
    ids = passage_ids[:400]
    assert torch.equal(run_in_chunks(short_decoder, ids, chunk_lens), short_one_by_one[:400])


@pytest.mark.parametrize("kv_len", [1, 3, 63, 127, 128, 129, 191, 257, 600, 1100])
def test_trailing_keys_do_not_matter(short_decoder, passage_ids, short_one_by_one, kv_len) -> None:
    """The first row of a wide frame sees many masked keys behind it."""
    cache = short_decoder.new_cache()
    short_decoder.forward(short_decoder.embed(passage_ids[:kv_len]), 0, cache)
    for num_new in (1, 2, 9, 33, 65):
        span = passage_ids[kv_len : kv_len + num_new]
        hidden = short_decoder.forward(short_decoder.embed(span), kv_len, cache)
        assert torch.equal(hidden, short_one_by_one[kv_len : kv_len + num_new])


def test_rollback_leaves_no_trace(short_decoder, passage_ids, short_one_by_one) -> None:
    """Wrong drafts computed and truncated must not change what follows."""
    cache = short_decoder.new_cache()
    short_decoder.forward(short_decoder.embed(passage_ids[:120]), 0, cache)
    wrong = passage_ids[:64].flip(0)
    short_decoder.forward(short_decoder.embed(wrong), 120, cache)
    hidden = short_decoder.forward(short_decoder.embed(passage_ids[110:140]), 110, cache)
    assert torch.equal(hidden, short_one_by_one[110:140])


@pytest.mark.parametrize("num_stages", [2, 3, 4, 6, 30])
def test_any_split_gives_the_unsplit_bits(
    files: ModelFiles, decoder, passage_ids, one_by_one, num_stages
) -> None:
    num_layers = files.config.num_layers
    bounds = [num_layers * idx // num_stages for idx in range(num_stages + 1)]
    stages = [Decoder.load(files, *span) for span in pairwise(bounds)]
    caches = [stage.new_cache() for stage in stages]
    ids, pieces = passage_ids[:40], []
    for start, end in ((0, 20), (20, 21), (21, 30), (30, 40)):
        hidden = stages[0].embed(ids[start:end])
        for stage, cache in zip(stages, caches, strict=True):
            hidden = stage.forward(hidden, start, cache)
        pieces.append(hidden)
    assert torch.equal(stages[-1].logits(torch.cat(pieces)), one_by_one[:40])


def test_the_default_kernel_is_invariant_here() -> None:
    kernel = linear_kernel()
    if kernel.block_rows == 0:
        for shape in DEFAULT_PROBE_SHAPES:
            assert all(count < kernel.row_floor for count in differing_row_counts(*shape))


def test_probe_falls_back_to_blocks(monkeypatch) -> None:
    monkeypatch.setattr("engine.model.linear.differing_row_counts", lambda *shape: (1, 40))
    kernel = probe_row_invariance(((8, 8),))
    assert kernel.block_rows > 0 and "blocked" in kernel.name
    monkeypatch.setattr("engine.model.linear.differing_row_counts", lambda *shape: (1, 3))
    assert probe_row_invariance(((8, 8),)).row_floor == 4


def test_blocked_kernel_is_exact_and_right() -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(96, 1536, generator=generator)
    rows = torch.randn(70, 1536, generator=generator)
    packed = pack(weight, LinearKernel("blocked", 1, 16))
    with torch.inference_mode():
        whole = linear(rows, packed)
        for count in range(1, 70):
            assert torch.equal(linear(rows[:count], packed), whole[:count])
        torch.testing.assert_close(whole, rows @ weight.T, atol=1e-3, rtol=1e-4)
        assert torch.equal(linear_add(rows, packed, whole), whole + whole)
