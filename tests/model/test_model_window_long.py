"""Contexts of thousands of keys, beyond the widest mask: the same bits in chunks and one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.model.span import MASK_LEN_MAX, NO_LIMITS, CacheLimits
from tests.model.windowed_models import RandomAttention, config_with

NUM_POSITIONS = 8300
# around the first mask's end and the second's, and where a window or a trim passes a block
PROBED = (127, 128, 1000, 4095, 4096, 4097, 4224, 5000, 6143, 8191, 8192, 8299)
CASES = {
    "full": (("full",), None, NO_LIMITS),
    "wide window": (("full", "sliding"), MASK_LEN_MAX + 400, NO_LIMITS),
    "wide trim": (("full", "sliding"), MASK_LEN_MAX + 400, CacheLimits(MASK_LEN_MAX + 200)),
    "narrow": (("full", "sliding"), 512, CacheLimits(1024)),
}


@pytest.mark.parametrize(
    ("case", "heads"),
    [("full", (9, 3, 64)), *((case, (3, 1, 16)) for case in CASES)],
    ids=str,
)
def test_long_contexts_are_exact(case, heads, two_threads) -> None:
    kinds, window_len, limits = CASES[case]
    config = config_with(kinds, window_len, NUM_POSITIONS, heads[:2])
    drawn = RandomAttention.draw(replace(config, head_dim=heads[2]), NUM_POSITIONS)
    stepped_cache, chunked_cache = drawn.new_cache(limits), drawn.new_cache(limits)
    masks, start = drawn.new_masks(), 0
    for position in PROBED:
        torch.set_num_threads(2)
        chunked = drawn.run(chunked_cache, masks, start, position + 1 - start)
        torch.set_num_threads(1)
        drawn.run(stepped_cache, masks, start, position - start)
        stepped = drawn.run(stepped_cache, masks, position, 1)
        assert torch.equal(chunked[:, -1], stepped[:, 0])
        torch.testing.assert_close(
            stepped[:, 0].double(), drawn.dense(position, limits), atol=1e-5, rtol=0
        )
        # in the middle of a frame with keys behind it
        if position + 9 <= NUM_POSITIONS:
            behind = drawn.run(stepped_cache, masks, position - 2, 9)
            assert torch.equal(behind[:, 2], stepped[:, 0])
            stepped_cache.truncate(position + 1)
        start = position + 1
