"""The KV cache, greedy choice, thread settings and the decoder's refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, JobError, ModelError
from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache
from engine.model.sampling import greedy_ids
from engine.model.threads import openmp_env, set_threads
from engine.model.unsplit import generate_greedy


def rows_of(position: int, num_new: int) -> torch.Tensor:
    """[T, 2 G, D] rows that carry their position."""
    return (torch.arange(position, position + num_new) + 1.0).view(-1, 1, 1).expand(-1, 6, 64)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 300)), max_size=8))
def test_cache_holds_positions_and_zeros(files, steps) -> None:
    cache = KVCache(files.config, 0, 1)
    for fraction, num_new in steps:
        start = int(cache.kv_len * fraction)
        for span in cache.begin(start, num_new):
            view = span.views["full"]
            cache.write(0, view, rows_of(span.start, span.num_new))
            (keys_values,) = cache.read(0, view)
            expected = torch.arange(keys_values.shape[1]) + 1.0
            expected[cache.kv_len :] = 0
            assert torch.equal(keys_values, expected.view(1, -1, 1).expand_as(keys_values))


def test_growth_is_amortised(files) -> None:
    """Capacity doubles, so that a position costs the same however many there are."""
    cache = KVCache(files.config, 0, 1)
    capacities_len = set()
    for start in range(0, files.config.context_len, 64):
        for _ in cache.begin(start, 64):
            capacities_len.add(cache.capacity_len)
    assert len(capacities_len) <= 6
    assert max(capacities_len) == files.config.context_len


def test_gap_is_refused(files) -> None:
    cache = KVCache(files.config, 0, 1)
    list(cache.begin(0, 5))
    for refused in (
        lambda: cache.truncate(6),
        lambda: cache.begin(6, 1),
        lambda: cache.truncate(-1),
    ):
        with pytest.raises(JobError) as caught:
            refused()
        assert caught.value.code == "kv_gap"
    assert cache.kv_len == 5


def test_decoder_reports_a_gap(short_decoder, passage_ids) -> None:
    with pytest.raises(JobError) as caught:
        short_decoder.forward(short_decoder.embed(passage_ids[:2]), 1, short_decoder.new_cache())
    assert caught.value.code == "kv_gap"


def test_overflow_is_one_job_s_error(files) -> None:
    """A refused frame changes nothing and the last position still fits, padding included."""
    config = replace(files.config, context_len=140)
    decoder = Decoder.load(replace(files, config=config), 0, 1)
    cache = decoder.new_cache()
    hidden = torch.randn(141, config.hidden_size)
    decoder.forward(hidden[:139], 0, cache)
    for start in (139, 100):
        with pytest.raises(JobError, match="context of 140; shorten") as caught:
            decoder.forward(hidden[: 141 - start], start, cache)
        assert caught.value.code == "context_overflow"
        assert cache.kv_len == 139
    assert decoder.forward(hidden[139:140], 139, cache).shape == (1, config.hidden_size)


def test_bad_input_is_refused_before_the_cache_counts_it(short_decoder) -> None:
    cache = short_decoder.new_cache()
    with pytest.raises(JobError) as caught:
        short_decoder.forward(torch.zeros(2, 7), 0, cache)
    assert caught.value.code == "bad_shape"
    assert cache.kv_len == 0
    for idx in (-1, short_decoder.config.vocab_size):
        with pytest.raises(JobError) as caught:
            short_decoder.embed(torch.tensor([idx]))
        assert caught.value.code == "bad_token"


def test_an_empty_frame_only_truncates(short_decoder, passage_ids) -> None:
    cache = short_decoder.new_cache()
    short_decoder.forward(short_decoder.embed(passage_ids[:9]), 0, cache)
    assert short_decoder.forward(short_decoder.embed(passage_ids[:0]), 4, cache).shape[0] == 0
    assert cache.kv_len == 4


def test_only_the_ends_embed_and_choose(files) -> None:
    middle = Decoder.load(files, 3, 4)
    with pytest.raises(ModelError, match="first stage"):
        middle.embed(torch.tensor([1]))
    with pytest.raises(ModelError, match="last stage"):
        middle.logits(torch.zeros(1, files.config.hidden_size))


def test_lowest_id_wins_a_tie() -> None:
    logits = torch.zeros(3, 50000)
    logits[0, [7, 40000]] = 2.0
    logits[1, [49999, 123, 124]] = 1.0
    assert greedy_ids(logits) == [7, 123, 0]


def test_generation_stops_at_eos_and_length(decoder, tokenizer) -> None:
    prompt_ids = tokenizer.encode_chat([{"role": "user", "content": "Say hello."}])
    free = generate_greedy(decoder, prompt_ids, 6, ())
    assert len(free) == 6
    assert generate_greedy(decoder, prompt_ids, 6, {free[2]}) == free[: free.index(free[2]) + 1]
    assert generate_greedy(decoder, prompt_ids, 6, (), chunk=5) == free
    with pytest.raises(ConfigError, match="empty prompt"):
        generate_greedy(decoder, [], 6, ())


def test_thread_settings_reach_torch(two_threads) -> None:
    set_threads(1)
    assert torch.get_num_threads() == 1
    environment = openmp_env(3)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
