"""Masks hide exactly what the rule hides, are never built in vain and never large."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.model.kv_cache import KVCache
from engine.model.masks import Masks, num_query_rows
from engine.model.span import MASK_LEN_MAX, NO_LIMITS, CacheLimits
from tests.model.windowed_models import (
    config_with,
    random_decoder,
    random_hidden,
    visible_keys,
)

ROWS_PER_POSITION = 3
MASKS = Masks(ROWS_PER_POSITION, 1)


def columns_of(view) -> list[int]:
    """Absolute positions of the keys of all segments."""
    return [
        position
        for segment in view.segments
        for position in range(segment.first, segment.first + segment.num_keys)
    ]


@given(
    start=st.integers(0, 699),
    num_new=st.integers(1, 80),
    padding_len=st.integers(0, 7),
    window_len=st.sampled_from([None, 1, 16, 127, 128, 300]),
    max_kv_size=st.sampled_from([None, 5, 8, 20, 132, 150, 400]),
)
def test_a_row_sees_exactly_its_keys(start, num_new, padding_len, window_len, max_kv_size) -> None:
    """Catches a table read one position off, a window edge one off, a pinned key lost or kept."""
    config = config_with(("full",) if window_len is None else ("sliding",), window_len)
    kv_cache = KVCache(config, 0, 1, CacheLimits(max_kv_size))
    for _ in kv_cache.begin(0, start):
        pass
    (span,) = kv_cache.begin(start, num_new)
    (view,) = span.views.values()
    columns = columns_of(view)
    masks = MASKS.of(span, view, num_new + padding_len)
    num_rows = num_query_rows((num_new + padding_len) * ROWS_PER_POSITION, 1)
    shown = [
        torch.zeros(num_rows, segment.num_keys) if mask is None else mask
        for mask, segment in zip(masks, view.segments, strict=True)
    ]
    whole = torch.cat(shown, dim=1)
    assert whole.shape == (num_rows, len(columns))
    for row in range(num_new * ROWS_PER_POSITION):
        seen = [columns[idx] for idx in (whole[row] == 0).nonzero().flatten()]
        wanted = visible_keys(start + row // ROWS_PER_POSITION, window_len, max_kv_size)
        assert seen == list(wanted)
    assert set(whole.unique().tolist()) <= {0.0, float("-inf")}
    assert (whole == 0).any(dim=1).all()  # padded rows too: softmax over nothing is not a number


@pytest.mark.parametrize("rows_per_position", [1, 16, 32])
def test_no_mask_is_larger_than_allowed(rows_per_position) -> None:
    config = config_with(("full", "sliding"), 4300, 6000, (rows_per_position, 1))
    for limits in (NO_LIMITS, CacheLimits(5000)):
        kv_cache, masks = KVCache(config, 0, 2, limits), Masks(rows_per_position, 1)
        for span in kv_cache.begin(0, 6000):
            for view in span.views.values():
                for mask in masks.of(span, view, span.num_new):
                    assert mask is None or max(mask.shape) <= MASK_LEN_MAX


def test_a_stage_without_a_sliding_layer_builds_no_sliding_mask() -> None:
    config = config_with(("full", "sliding"), 16)
    hidden = random_hidden(250)
    for layer_idx, num_windowed in ((0, 0), (1, 7)):
        stage = random_decoder(config, layer_idx, layer_idx + 1)
        kv_cache = stage.new_cache()
        stage.forward(hidden, 0, kv_cache)
        for start in range(230, 236):
            stage.forward(hidden[start : start + 9], start, kv_cache)
        assert stage.masks.num_windowed == num_windowed
        assert stage.masks.num_causal + stage.masks.num_windowed == 7  # one for all rows of a frame


def test_keys_that_every_query_sees_need_no_mask() -> None:
    """Beyond 4096 keys the mask of the first segment would be all zeros."""
    config = config_with(("full",), context_len=6000)
    kv_cache, masks = KVCache(config, 0, 1), Masks(ROWS_PER_POSITION, 1)
    for _ in kv_cache.begin(0, 5000):
        pass
    (span,) = kv_cache.begin(5000, 9)
    first, second = masks.of(span, span.views["full"], 9)
    assert first is None
    assert second is not None
    assert masks.num_causal == 1


def test_the_table_is_made_once(monkeypatch) -> None:
    """A mask costs one operation on a stage that wakes cold: nothing is computed but the cut."""
    masks = Masks(ROWS_PER_POSITION, 1)
    kv_cache = KVCache(config_with(("full",)), 0, 1)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a table was rebuilt for a frame")

    for name in ("arange", "cat", "full", "zeros"):
        monkeypatch.setattr(torch, name, refuse)
    for span in kv_cache.begin(0, 40):
        assert masks.of(span, span.views["full"], 40)[0] is not None
