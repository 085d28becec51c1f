"""The one attention of this engine: a token's output has the same bits however it was chunked.

Guarantees: the output for a position depends on its own query and on the keys and values up to it,
not on which positions share the call nor on how many masked keys follow. Query rows come in at
least four per key head (below, the batched matmul rounds differently); keys are read up to a
multiple of 128; probabilities times values is summed block by block from position 0. Nothing else
in the engine may multiply queries with keys. Never knows about weights, jobs or tokens.
"""

from __future__ import annotations

import torch

from engine.model.kv_cache import KEY_BLOCK

MIN_QUERY_ROWS = 4


class CausalMasks:
    """Additive masks, cut from one table: a stage that wakes for a frame runs every operation cold,
    and building a mask took seven of them.

    Args:
        context_len: positions that may be asked for; a few rows of padding beyond are allowed.
        rows_per_position: query heads per key head; each position has that many adjacent rows.
    """

    def __init__(self, context_len: int, rows_per_position: int) -> None:
        width = (context_len // KEY_BLOCK + 2) * KEY_BLOCK
        self._rows_per_position = rows_per_position
        # The mask of position t is `width` zeros and `width` -inf, read from width - 1 - t on.
        self._step = torch.cat([torch.zeros(width), torch.full((width,), float("-inf"))])
        offsets = torch.arange(width - 1, -1, -1)
        self._offsets = offsets.repeat_interleave(rows_per_position)

    def mask(self, start: int, num_rows: int, kv_len: int) -> torch.Tensor:
        """The mask that every layer of one forward shares.

        Args:
            start: absolute position of the first row.
            num_rows: T, padding included; a padded row may see every key, its output is dropped.
            kv_len: valid positions in the cache.

        Shapes:
            return: [T * rows_per_position, S], S = `kv_len` rounded up to whole blocks; 0 or -inf
        """
        num_keys = -(-kv_len // KEY_BLOCK) * KEY_BLOCK
        first, last = start * self._rows_per_position, (start + num_rows) * self._rows_per_position
        return self._step.unfold(0, num_keys, 1)[self._offsets[first:last]]


def attention(
    queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor, num_kv_heads: int
) -> torch.Tensor:
    """Attend causally by absolute position.

    Args:
        queries: rotated queries; heads of one key head are adjacent.
        keys_values: a layer's store, keys first, zero beyond the valid length.
        mask: from `CausalMasks`.
        num_kv_heads: G.

    Shapes:
        queries: [T, N, D]
        keys_values: [2 G, capacity, D]
        mask: [T * N / G, S]
        return: [T, N * D]
    """
    num_new, num_heads, head_dim = queries.shape
    num_rows, num_keys = mask.shape
    keys = keys_values[:num_kv_heads, :num_keys]
    values = keys_values[num_kv_heads:]
    # [T, G, N/G, D] -> [G, T * N/G, D]: repeated keys are never materialised
    grouped = (num_new, num_kv_heads, num_heads // num_kv_heads, head_dim)
    rows = queries.view(grouped).transpose(0, 1).reshape(num_kv_heads, num_rows, head_dim)
    scores = torch.baddbmm(mask, rows, keys.transpose(1, 2), alpha=head_dim**-0.5)
    probs = torch.softmax(scores, dim=-1)
    mixed = torch.bmm(probs[:, :, :KEY_BLOCK], values[:, :KEY_BLOCK])
    for first in range(KEY_BLOCK, num_keys, KEY_BLOCK):
        block = slice(first, first + KEY_BLOCK)
        mixed.baddbmm_(probs[:, :, block], values[:, block])
    by_position = mixed.view(num_kv_heads, num_new, num_heads // num_kv_heads, head_dim)
    return by_position.transpose(0, 1).reshape(num_new, num_heads * head_dim)
