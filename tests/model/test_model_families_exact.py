"""Bitwise claims for every family: no chunking, split, history or thread count changes a bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.decoder import Decoder
from engine.model.linear import PackedF32
from engine.model.linear_int4 import PackedInt4
from engine.model.moe import PackedExperts
from engine.model.weights import ModelFiles, prepare_model
from tests.model.tiny_models import CASES, INT4_CASES, VOCAB, make_peer, write_gguf

NUM_IDS = 150  # beyond the first key block, and six windows of the sliding layers
FAMILY_CASES = ("llama-llama3", "qwen2", "qwen3", "gemma3", "qwen3moe")


class Model:
    """A tiny model, its layers loaded one by one so that any split is a matter of joining them."""

    def __init__(self, files: ModelFiles, weights: str) -> None:
        self.num_layers = files.config.num_layers
        self.files, self.weights = files, weights
        self.whole = Decoder.load(files, 0, self.num_layers, weights)
        generator = torch.Generator().manual_seed(7)
        self.ids = torch.randint(3, VOCAB, (NUM_IDS,), generator=generator)
        self.one_by_one = self.run([self.whole], [1] * NUM_IDS)
        self._stages: dict[tuple[int, int], Decoder] = {(0, self.num_layers): self.whole}

    def split(self, bounds: Sequence[int]) -> list[Decoder]:
        """Stages between bounds, each loaded once."""
        for span in pairwise(bounds):
            if span not in self._stages:
                self._stages[span] = Decoder.load(self.files, *span, self.weights)
        return [self._stages[span] for span in pairwise(bounds)]

    def run(self, stages: Sequence[Decoder], chunk_lens: Sequence[int]) -> torch.Tensor:
        """Logits of all ids, fed in chunks; what the chunks do not cover is the last one."""
        caches = [stage.new_cache() for stage in stages]
        pieces, start = [], 0
        while start < NUM_IDS:
            end = start + (chunk_lens[len(pieces)] if len(pieces) < len(chunk_lens) else NUM_IDS)
            hidden = stages[0].embed(self.ids[start:end])
            for stage, cache in zip(stages, caches, strict=True):
                hidden = stage.forward(hidden, start, cache)
            pieces.append(stages[-1].logits(hidden))
            start = end
        return torch.cat(pieces)


@pytest.fixture(scope="module", params=[*FAMILY_CASES, *INT4_CASES])
def model(request, tmp_path_factory) -> Model:
    case = {**CASES, **INT4_CASES}[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGHAUL_CACHE", str(folder / "cache"))
        files = prepare_model(write_gguf(make_peer(case, seed=3), case, folder / "model.gguf"))
    return Model(files, "int4" if request.param in INT4_CASES else "f32")


@settings(max_examples=20)
@given(draw=st.data())
def test_any_chunking_and_split_gives_the_same_bits(model, draw) -> None:
    lens = st.lists(st.one_of(st.integers(1, 9), st.integers(1, NUM_IDS)), max_size=20)
    cuts = st.sets(st.integers(1, model.num_layers - 1))
    chunk_lens = draw.draw(lens, label="chunks")
    bounds = [0, *sorted(draw.draw(cuts, label="cuts")), model.num_layers]
    assert torch.equal(model.run(model.split(bounds), chunk_lens), model.one_by_one)


def test_threads_change_no_bit(model, two_threads) -> None:
    assert torch.equal(model.run([model.whole], [64, 1, 33]), model.one_by_one)


def test_4_bit_models_hold_4_bit_weights(model) -> None:
    """Catches 4-bit cases that all stay float32 because no size fits, and routers that do not."""
    layer = model.whole._layers[0]
    assert isinstance(layer.query_key_value, PackedInt4) == (model.weights == "int4")
    if isinstance(layer.mlp, PackedExperts):
        assert isinstance(layer.mlp.router, PackedF32)
        assert isinstance(layer.mlp.down[0], PackedInt4) == (model.weights == "int4")


def test_one_layer_a_stage(model) -> None:
    stages = model.split(range(model.num_layers + 1))
    assert torch.equal(model.run(stages, [64, 1, 2, 33]), model.one_by_one)


@settings(max_examples=10)
@given(kept=st.integers(1, 100), wrong_len=st.integers(1, 40), num_new=st.integers(1, 50))
def test_rollback_leaves_no_trace(model, kept, wrong_len, num_new) -> None:
    """Wrong drafts, computed and truncated, must not change what follows."""
    cache, decoder = model.whole.new_cache(), model.whole
    decoder.forward(decoder.embed(model.ids[:kept]), 0, cache)
    decoder.forward(decoder.embed(model.ids[:wrong_len].flip(0)), kept, cache)
    hidden = decoder.forward(decoder.embed(model.ids[kept : kept + num_new]), kept, cache)
    assert torch.equal(decoder.logits(hidden), model.one_by_one[kept : kept + num_new])
