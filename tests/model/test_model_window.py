"""Sliding windows: bit for bit one position at a time, whatever the chunks, splits and history."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.defaults import DEPTH_MAX, DRAFT_LEN_MAX
from engine.errors import JobError
from engine.model.span import KEY_BLOCK, PASS_LEN_MAX
from tests.model.windowed_models import (
    RandomAttention,
    config_with,
    random_decoder,
    random_hidden,
    run_in_chunks,
)

MIXED = ("sliding", "full", "sliding", "sliding")
WINDOW = 16
RESTORE_LEN = DEPTH_MAX * (DRAFT_LEN_MAX + 1)
PROMPT_LENS = [1, WINDOW - 1, WINDOW, WINDOW + 8, 3 * WINDOW]
ATTENTION = RandomAttention.draw(config_with(("sliding", "full"), WINDOW, 2000), 1700)


@pytest.fixture(scope="module")
def one_by_one() -> torch.Tensor:
    return ATTENTION.one_by_one(1700)


@pytest.fixture(scope="module")
def decoder():
    return random_decoder(config_with(MIXED, WINDOW), 0, len(MIXED))


@pytest.fixture(scope="module")
def decoder_one_by_one(decoder) -> torch.Tensor:
    return run_in_chunks(decoder, random_hidden(200), [1])


@pytest.mark.parametrize("window_len", [1, 2, 16, 127, 128, 129, 300])
def test_attention_is_right(window_len) -> None:
    drawn = RandomAttention.draw(config_with(("sliding", "full"), window_len), 700)
    ours = drawn.run(drawn.new_cache(), drawn.new_masks(), 0, 700)
    for position in (0, 1, window_len - 1, window_len, 130, 257, 511, 512, 640, 699):
        torch.testing.assert_close(
            ours[:, position].double(), drawn.dense(position), atol=1e-5, rtol=0
        )


@cache
def stepped_attention(window_len: int) -> tuple[RandomAttention, torch.Tensor]:
    drawn = RandomAttention.draw(config_with(("sliding", "full"), window_len), 900)
    return drawn, drawn.one_by_one(900)


@settings(max_examples=60)
@given(
    window_len=st.sampled_from([1, 5, 16, 127, 128, 130, 300, 600]),
    chunk_lens=st.lists(st.sampled_from([1, 2, 3, 7, 9, 65, 128, 512, 700]), min_size=1),
    padding_len=st.integers(0, 7),
)
def test_any_chunks_give_the_same_bits(window_len, chunk_lens, padding_len) -> None:
    drawn, stepped = stepped_attention(window_len)
    kv_cache, masks = drawn.new_cache(), drawn.new_masks()
    start = turn = 0
    while start < 900:
        num_new = min(chunk_lens[turn % len(chunk_lens)], 900 - start)
        ours = drawn.run(kv_cache, masks, start, num_new, padding_len)
        assert torch.equal(ours, stepped[:, start : start + num_new])
        start, turn = start + num_new, turn + 1


@st.composite
def histories(draw) -> list[tuple[int, int]]:
    """Frames (start, num_new) as a ring sends them: on, or back within what may be restored."""
    frames, kv_len, longest = [], 0, 0
    for _ in range(draw(st.integers(1, 12))):
        start = kv_len
        if draw(st.booleans()):
            start = draw(st.integers(max(0, longest - RESTORE_LEN), kv_len))
        num_new = draw(st.sampled_from([0, 1, 2, 9, 65, 128, 256, 512, 600]))
        num_new = min(num_new, 1700 - start)
        frames.append((start, num_new))
        kv_len = start + num_new
        longest = max(longest if start else 0, kv_len)
    return frames


@settings(max_examples=60)
@given(frames=histories())
def test_no_history_leaves_a_trace(one_by_one, frames) -> None:
    """Random chunks and truncations while the store grows, fills and moves its rows."""
    kv_cache, masks = ATTENTION.new_cache(), ATTENTION.new_masks()
    for start, num_new in frames:
        ours = ATTENTION.run(kv_cache, masks, start, num_new)
        assert torch.equal(ours, one_by_one[:, start : start + num_new])
        assert kv_cache.kv_len == start + num_new


def test_wrong_rows_are_forgotten(one_by_one) -> None:
    """Whatever a peer sent in a wrong draft, infinities included, is gone after the truncation."""
    kv_cache, masks = ATTENTION.new_cache(), ATTENTION.new_masks()
    ATTENTION.run(kv_cache, masks, 0, 1000)
    poisoned = ATTENTION.keys_values.clone()
    poisoned[:, 1000:] = float("inf")
    for span in kv_cache.begin(1000, 64):
        for layer_idx, kind in enumerate(ATTENTION.config.layer_kinds):
            kv_cache.write(layer_idx, span.views[kind], poisoned[layer_idx, 1000:1064])
    for start in range(1000, 1064):
        assert torch.equal(
            ATTENTION.run(kv_cache, masks, start, 1), one_by_one[:, start : start + 1]
        )


def test_memory_is_the_window_and_what_may_be_restored() -> None:
    drawn = RandomAttention.draw(config_with(("sliding",), WINDOW, 8192), 3000)
    kv_cache, masks = drawn.new_cache(), drawn.new_masks()
    bound = -(-(WINDOW + RESTORE_LEN) // KEY_BLOCK) * KEY_BLOCK + KEY_BLOCK
    for start in range(0, 3000, 500):
        drawn.run(kv_cache, masks, start, 500)
        assert kv_cache.capacity_len <= bound


def test_going_back_too_far_names_the_limit(one_by_one) -> None:
    kv_cache, masks = ATTENTION.new_cache(), ATTENTION.new_masks()
    ATTENTION.run(kv_cache, masks, 0, 1500)
    kv_cache.truncate(1500 - 100)
    oldest = 1500 - RESTORE_LEN
    with pytest.raises(
        JobError, match=f"{RESTORE_LEN} positions can be taken back, to {oldest}"
    ) as caught:
        kv_cache.truncate(oldest - 1)
    assert caught.value.code == "kv_dropped"
    with pytest.raises(JobError):
        kv_cache.begin(oldest - 1, 1)
    assert kv_cache.kv_len == 1400
    ours = ATTENTION.run(kv_cache, masks, oldest, 30)
    assert torch.equal(ours, one_by_one[:, oldest : oldest + 30])
    with pytest.raises(JobError):  # what was dropped does not come back with fewer positions
        kv_cache.truncate(oldest - 1)


def test_the_next_job_starts_afresh(one_by_one) -> None:
    kv_cache, masks = ATTENTION.new_cache(), ATTENTION.new_masks()
    ATTENTION.run(kv_cache, masks, 0, 1500)
    kv_cache.truncate(0)
    for start in (0, 3):
        ours = ATTENTION.run(kv_cache, masks, start, 300)
        assert torch.equal(ours, one_by_one[:, start : start + 300])
        kv_cache.truncate(200)


def test_while_nothing_is_dropped_every_way_back_is_open() -> None:
    drawn, stepped = stepped_attention(300)
    kv_cache, masks = drawn.new_cache(), drawn.new_masks()
    drawn.run(kv_cache, masks, 0, RESTORE_LEN + 299)
    assert torch.equal(drawn.run(kv_cache, masks, 3, 300), stepped[:, 3:303])
    drawn.run(kv_cache, masks, 303, 900 - 303)
    with pytest.raises(JobError, match="kv_dropped"):
        kv_cache.truncate(3)


def test_rows_behind_the_last_are_zero() -> None:
    """A stale row that is hidden still takes part in sums, where an infinity would spoil them."""
    kv_cache = ATTENTION.new_cache()
    for start in range(0, 1600, 100):
        for span in kv_cache.begin(start, 100):
            view = span.views["sliding"]
            kv_cache.write(0, view, ATTENTION.keys_values[0, start : start + 100])
            (keys_values,) = kv_cache.read(0, view)
            num_held = kv_cache.kv_len - view.segments[0].first
            assert not keys_values[:, num_held:].any()


def test_every_stage_refuses_the_same_truncation() -> None:
    """A stage without a sliding layer could go back further, but a ring is one job."""
    config = config_with(("full", "sliding"), WINDOW)
    for layer_start in (0, 1):
        stage = random_decoder(config, layer_start, layer_start + 1)
        kv_cache = stage.new_cache()
        stage.forward(random_hidden(900), 0, kv_cache)
        with pytest.raises(JobError) as caught:
            kv_cache.truncate(900 - RESTORE_LEN - 1)
        assert caught.value.code == "kv_dropped"


def test_full_layers_alone_go_back_anywhere() -> None:
    stage = random_decoder(config_with(("full",)), 0, 1)
    kv_cache = stage.new_cache()
    whole = stage.forward(random_hidden(900), 0, kv_cache)
    assert torch.equal(stage.forward(random_hidden(900)[5:9], 5, kv_cache), whole[5:9])


@pytest.mark.parametrize("bounds", [(0, 4), (0, 1, 4), (0, 2, 3, 4), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("prompt_len", PROMPT_LENS)
def test_splits_give_the_unsplit_bits(decoder_one_by_one, bounds, prompt_len) -> None:
    """Prefill, continuation prefill, decode, verify with a wrong draft, correction."""
    config = config_with(MIXED, WINDOW)
    stages = [random_decoder(config, *span) for span in pairwise(bounds)]
    caches = [stage.new_cache() for stage in stages]
    hidden = random_hidden(200)
    wrong = random_hidden(200, seed=8)

    def forward(rows: torch.Tensor, start: int) -> torch.Tensor:
        for stage, kv_cache in zip(stages, caches, strict=True):
            rows = stage.forward(rows, start, kv_cache)
        return rows

    ends = [0, prompt_len, prompt_len + 3, prompt_len + 4, prompt_len + 13]
    for start, end in pairwise(ends):
        forward(wrong[start : start + 20], start)
        assert torch.equal(forward(hidden[start:end], start), decoder_one_by_one[start:end])


def test_a_chunk_much_longer_than_the_window(decoder) -> None:
    hidden = random_hidden(2 * PASS_LEN_MAX - 100)
    stepped = run_in_chunks(decoder, hidden, [1])
    assert torch.equal(run_in_chunks(decoder, hidden, [len(hidden)]), stepped)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_rests_of_rows_do_not_depend_on_threads(num_threads, two_threads) -> None:
    """With one key head, two threads share the rows of a product: 5 become 3 and 2, and fewer than
    four rows round differently. Fails if query rows are padded to four but not to multiples."""
    torch.set_num_threads(1)
    stepped = ATTENTION.one_by_one(40)
    torch.set_num_threads(num_threads)
    for num_new in (1, 2, 3, 5, 9, 13, 33):
        kv_cache, masks = ATTENTION.new_cache(), ATTENTION.new_masks()
        ours = ATTENTION.run(kv_cache, masks, 0, num_new)
        assert torch.equal(ours, stepped[:, :num_new])
