"""The masks that are cut from a table are the causal ones."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.model.attention import CausalMasks
from engine.model.kv_cache import KEY_BLOCK

CONTEXT_LEN = 700
MASKS = CausalMasks(CONTEXT_LEN, rows_per_position=3)


@given(start=st.integers(0, CONTEXT_LEN - 1), num_new=st.integers(1, 80), padding=st.integers(0, 7))
def test_a_row_sees_exactly_the_keys_up_to_its_position(
    start: int, num_new: int, padding: int
) -> None:
    """Catches a table read one position off, at either end of the context."""
    kv_len = min(start + num_new, CONTEXT_LEN)
    num_rows = kv_len - start + padding
    mask = MASKS.mask(start, num_rows, kv_len)
    num_keys = -(-kv_len // KEY_BLOCK) * KEY_BLOCK
    assert mask.shape == (3 * num_rows, num_keys)
    for row in range(3 * num_rows):
        position = start + row // 3
        expected = torch.full((num_keys,), float("-inf"))
        expected[: position + 1] = 0.0
        assert torch.equal(mask[row], expected)
