"""Front trims: `max_kv_size` is a rule of the query position, on every kind of layer and stage."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, JobError
from engine.model.masks import Masks, num_query_rows
from engine.model.span import KEY_BLOCK, CacheLimits
from tests.model.windowed_models import (
    RandomAttention,
    config_with,
    random_decoder,
    random_hidden,
    run_in_chunks,
)

KINDS = ("full", "sliding", "full")
WINDOW = 16
TRIMMED = CacheLimits(max_kv_size=8)
NUM_POSITIONS = 900
# around the pinned block, around a block's edge, and below, at and above the window
SIZES = [5, 8, WINDOW + 3, WINDOW + 4, WINDOW + 5, 131, 132, 133, 300]
WINDOWS = [2, WINDOW, 200]


@cache
def stepped_attention(
    window_len: int, max_kv_size: int
) -> tuple[RandomAttention, CacheLimits, torch.Tensor]:
    drawn = RandomAttention.draw(config_with(("full", "sliding"), window_len), NUM_POSITIONS)
    limits = CacheLimits(max_kv_size, restore_len=65)
    return drawn, limits, drawn.one_by_one(NUM_POSITIONS, limits)


@pytest.mark.parametrize("window_len", WINDOWS)
@pytest.mark.parametrize("max_kv_size", SIZES)
def test_trimmed_attention_is_right(window_len, max_kv_size) -> None:
    drawn, limits, stepped = stepped_attention(window_len, max_kv_size)
    for position in (0, 3, 4, 7, 15, 16, 130, 140, 203, 257, 511, 640, 899):
        torch.testing.assert_close(
            stepped[:, position].double(), drawn.dense(position, limits), atol=1e-5, rtol=0
        )


@settings(max_examples=80)
@given(
    window_len=st.sampled_from(WINDOWS),
    max_kv_size=st.sampled_from(SIZES),
    moves=st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 9, 65, 128, 300, 512]), st.integers(0, 65)), max_size=14
    ),
    padding_len=st.integers(0, 7),
)
def test_any_chunks_and_truncations_give_the_same_bits(
    window_len, max_kv_size, moves, padding_len
) -> None:
    """Trimming per frame instead of per query position would show at every chunk of two."""
    drawn, limits, stepped = stepped_attention(window_len, max_kv_size)
    kv_cache, masks = drawn.new_cache(limits), drawn.new_masks()
    start = longest = 0
    for chunk_len, back_len in moves:
        num_new = min(chunk_len, NUM_POSITIONS - start)
        ours = drawn.run(kv_cache, masks, start, num_new, padding_len)
        assert torch.equal(ours, stepped[:, start : start + num_new])
        longest = max(longest, start + num_new)
        start = max(start + num_new - back_len, longest - limits.restore_len, 0)


def stages_of(bounds: tuple[int, ...]) -> list:
    config = config_with(KINDS, WINDOW)
    return [random_decoder(config, *span) for span in pairwise(bounds)]


def run_frames(stages: list, ends: list[int]) -> list[torch.Tensor]:
    """Feed frames up to each end through all stages; every stage has the same limits."""
    caches = [stage.new_cache(TRIMMED) for stage in stages]
    hidden, outputs = random_hidden(NUM_POSITIONS), []
    for start, end in pairwise([0, *ends]):
        rows = hidden[start:end]
        for stage, kv_cache in zip(stages, caches, strict=True):
            rows = stage.forward(rows, start, kv_cache)
        outputs.append(rows)
    return outputs


@pytest.fixture(scope="module")
def one_by_one() -> torch.Tensor:
    return run_in_chunks(stages_of((0, 3))[0], random_hidden(200), [1], TRIMMED)


@pytest.mark.parametrize("bounds", [(0, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("prompt_len", [12, 1, WINDOW - 1, WINDOW, WINDOW + 8, 3 * WINDOW], ids=str)
def test_splits_give_the_unsplit_bits_after_a_trim(one_by_one, bounds, prompt_len) -> None:
    """With 12 positions the trim drops 4; then a continuation of 3 and one step."""
    outputs = run_frames(stages_of(bounds), [prompt_len, prompt_len + 3, prompt_len + 4])
    assert torch.equal(torch.cat(outputs), one_by_one[: prompt_len + 4])


class OffsetMasks(Masks):
    """The mistake this room must not make: as many columns as the offset says."""

    def of(self, span, view, num_positions):
        num_rows = num_positions * self._rows_per_position
        num_rows = num_query_rows(num_rows, 1)
        queries = span.start + torch.arange(num_rows).unsqueeze(1) // self._rows_per_position
        hidden = torch.arange(self.width(span, view)) > queries
        return [torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))]

    def width(self, span, view) -> int:
        return span.start + span.num_new


class CutOffsetMasks(OffsetMasks):
    """The same, cut to the number of keys, so that the sizes agree and the keys do not."""

    def width(self, span, view) -> int:
        return sum(segment.num_keys for segment in view.segments)


def test_masks_sized_by_the_offset_are_found_out(one_by_one) -> None:
    stages = stages_of((0, 3))
    stages[0].masks = OffsetMasks(3, 1)
    with pytest.raises(RuntimeError, match="size"):
        run_frames(stages, [12, 15, 16])
    stages[0].masks = CutOffsetMasks(3, 1)
    outputs = torch.cat(run_frames(stages, [12, 15, 16]))
    assert torch.equal(outputs[:5], one_by_one[:5])  # nothing is hidden yet
    assert not torch.equal(outputs[12:], one_by_one[12:16])


def test_masks_are_as_wide_as_the_keys_returned() -> None:
    drawn, limits, _ = stepped_attention(WINDOW, 8)
    kv_cache, masks = drawn.new_cache(limits), drawn.new_masks()
    drawn.run(kv_cache, masks, 0, 700)
    for span in kv_cache.begin(700, 9):
        for layer_idx, kind in enumerate(drawn.config.layer_kinds):
            view = span.views[kind]
            widths = [keys.shape[1] for keys in kv_cache.read(layer_idx, view)]
            assert [mask.shape[1] for mask in masks.of(span, view, 9)] == widths
            # not 709: the block around the last keys, and the pinned one unless a window hides it
            assert sum(widths) == KEY_BLOCK * {"full": 2, "sliding": 1}[kind]


def test_the_offset_never_falls() -> None:
    decoder = random_decoder(config_with(KINDS, WINDOW), 0, 3)
    kv_cache = decoder.new_cache(TRIMMED)
    for end, live_start, live_len in ((5, 0, 5), (8, 0, 8), (12, 4, 8), (15, 7, 8), (16, 8, 8)):
        decoder.forward(random_hidden(end - kv_cache.offset), kv_cache.offset, kv_cache)
        assert kv_cache.offset == kv_cache.kv_len == end
        assert (kv_cache.live_start, kv_cache.live_len) == (live_start, live_len)


def test_memory_is_bounded_by_the_limits() -> None:
    drawn = RandomAttention.draw(config_with(("full", "sliding"), WINDOW, 8192), 3000)
    for max_kv_size in (8, 300, 1000):
        limits = CacheLimits(max_kv_size)
        kv_cache, masks = drawn.new_cache(limits), drawn.new_masks()
        bound = -(-(max_kv_size + limits.restore_len) // KEY_BLOCK) * KEY_BLOCK + 2 * KEY_BLOCK
        for start in range(0, 3000, 500):
            drawn.run(kv_cache, masks, start, 500)
            assert kv_cache.capacity_len <= bound


def test_a_trim_bounds_the_way_back() -> None:
    drawn, limits, stepped = stepped_attention(WINDOW, 300)
    kv_cache, masks = drawn.new_cache(limits), drawn.new_masks()
    drawn.run(kv_cache, masks, 0, 800)
    with pytest.raises(JobError, match="last 65 positions can be taken back, to 735") as caught:
        kv_cache.truncate(734)
    assert caught.value.code == "kv_dropped"
    assert torch.equal(drawn.run(kv_cache, masks, 735, 9), stepped[:, 735:744])


@pytest.mark.parametrize("max_kv_size", [4, 0, -1])
def test_sizes_that_leave_a_query_blind_are_refused(max_kv_size) -> None:
    with pytest.raises(ConfigError, match=f"max_kv_size {max_kv_size} .* at least 5"):
        CacheLimits(max_kv_size)


def test_a_way_back_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="restore_len 0"):
        CacheLimits(restore_len=0)
