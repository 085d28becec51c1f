"""The one attention of this engine: a token's output has the same bits however it was chunked.

Guarantees: the output for a position depends on its own query and on the keys and values it sees,
not on which positions share the call nor on which hidden keys lie before, between or behind them.
Two ways to compute it have this property. `attention` has it as far as a processor's products
round alike at the numbers of rows that it pads to, see `num_query_rows`; it sums probabilities
times values in blocks of 128 keys, aligned to position 0, in their order. `attention_by_position`
has it because all its products have one shape, and is slow. Which one a process uses is decided in
`engine.model.attention_kernel`. Nothing else in the engine may multiply queries with keys. Never
knows about weights, jobs or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from engine.model.masks import QUERY_BLOCK_ROWS, num_query_rows
from engine.model.span import KEY_BLOCK

_NO_MASK = torch.zeros(1, 1, 1)
_FEWEST_ROWS = 4  # a matrix of fewer is no matrix to some kernels


def attention(
    queries: torch.Tensor,
    keys_values: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor | None],
    scale: float,
) -> torch.Tensor:
    """Attend by absolute position.

    Args:
        queries: rotated queries; heads of one key head are adjacent.
        keys_values: per segment, keys first; whole blocks, every key finite.
        masks: per segment, from `Masks`.
        scale: factor of every score.

    Shapes:
        queries: [T, N, D]
        keys_values: [2 G, S_i, D]
        masks: [`num_query_rows` of T * N / G, S_i]
        return: [T, N * D]
    """
    num_new, num_heads, head_dim = queries.shape
    num_kv_heads = keys_values[0].shape[0] // 2
    rows = _query_rows(queries, num_kv_heads)
    if rows.shape[1] <= QUERY_BLOCK_ROWS:
        mixed = _mix(_probs(rows, keys_values, masks, scale), keys_values)
    else:
        mixed = torch.empty_like(rows)
        for first in range(0, rows.shape[1], QUERY_BLOCK_ROWS):
            block = slice(first, first + QUERY_BLOCK_ROWS)
            block_masks = [None if mask is None else mask[block] for mask in masks]
            probs = _probs(rows[:, block], keys_values, block_masks, scale)
            mixed[:, block] = _mix(probs, keys_values)
    num_rows = num_new * num_heads // num_kv_heads
    by_position = mixed[:, :num_rows].view(num_kv_heads, num_new, -1, head_dim)
    return by_position.transpose(0, 1).reshape(num_new, num_heads * head_dim)


def _query_rows(queries: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Bring the rows of one key head together: repeated keys are never materialised.

    Shapes:
        queries: [T, N, D] -> [G, `num_query_rows` of T * N / G, D]
    """
    num_new, num_heads, head_dim = queries.shape
    grouped = queries.view(num_new, num_kv_heads, -1, head_dim).transpose(0, 1)
    num_rows = num_new * num_heads // num_kv_heads
    num_padded = num_query_rows(num_rows, num_kv_heads)
    if num_padded == num_rows:
        return grouped.reshape(num_kv_heads, num_rows, head_dim)
    rows = queries.new_zeros(num_kv_heads, num_padded, head_dim)
    rows[:, :num_rows].view(grouped.shape).copy_(grouped)
    return rows


def _probs(
    rows: torch.Tensor,
    keys_values: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor | None],
    scale: float,
) -> torch.Tensor:
    """Softmax over the keys of all segments; a hidden key's probability is exactly 0.

    Shapes:
        rows: [G, R, D] -> [G, R, sum of S_i]
    """
    scores = []
    for segment, mask in zip(keys_values, masks, strict=True):
        keys = segment[: rows.shape[0]].transpose(1, 2)
        if mask is None:
            scores.append(torch.baddbmm(_NO_MASK, rows, keys, beta=0, alpha=scale))
        else:
            scores.append(torch.baddbmm(mask, rows, keys, alpha=scale))
    return torch.softmax(scores[0] if len(scores) == 1 else torch.cat(scores, -1), dim=-1)


def _mix(probs: torch.Tensor, keys_values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum probabilities times values block by block.

    Shapes:
        probs: [G, R, sum of S_i] -> [G, R, D]
    """
    # chunk: a split into blocks in one call, where `split` and slices are several
    value_blocks = [
        block
        for segment in keys_values
        for block in segment[probs.shape[0] :].chunk(segment.shape[1] // KEY_BLOCK, dim=1)
    ]
    prob_blocks = probs.chunk(len(value_blocks), dim=2)
    mixed = torch.bmm(prob_blocks[0], value_blocks[0])
    for block_probs, block in zip(prob_blocks[1:], value_blocks[1:], strict=True):
        mixed.baddbmm_(block_probs, block)
    return mixed


def attention_by_position(
    queries: torch.Tensor,
    keys_values: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor | None],
    scale: float,
) -> torch.Tensor:
    """Attend like `attention`, but a position at a time, with products of one shape only.

    A head's row has the same place in every call and meets 128 keys in every call, so there is
    nothing left by which a kernel could choose another order of summation.

    Shapes:
        as `attention`
    """
    num_new, num_heads, head_dim = queries.shape
    num_kv_heads = keys_values[0].shape[0] // 2
    per_head = num_heads // num_kv_heads
    blocks = [block for segment in keys_values for block in torch.split(segment, KEY_BLOCK, dim=1)]
    mixed = queries.new_empty(num_new, num_kv_heads, per_head, head_dim)
    for idx, rows in enumerate(queries.view(mixed.shape)):
        padded = functional.pad(rows, (0, 0, 0, max(_FEWEST_ROWS - per_head, 0)))
        row_masks = _position_masks(masks, keys_values, idx * per_head)
        mixed[idx] = _mix_position(padded, blocks, row_masks, scale)[:, :per_head]
    return mixed.view(num_new, num_heads * head_dim)


def _position_masks(
    masks: Sequence[torch.Tensor | None], keys_values: Sequence[torch.Tensor], row: int
) -> list[torch.Tensor]:
    """Cut one row of the masks into blocks: all heads of a position see the same keys.

    Shapes:
        return: [1, 1, 128] or [1, 1, 1] for each block of keys
    """
    row_masks: list[torch.Tensor] = []
    for mask, segment in zip(masks, keys_values, strict=True):
        if mask is None:
            row_masks += [_NO_MASK] * (segment.shape[1] // KEY_BLOCK)
        else:
            row_masks += torch.split(mask[row].view(1, 1, -1), KEY_BLOCK, dim=2)
    return row_masks


def _mix_position(
    rows: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    row_masks: Sequence[torch.Tensor],
    scale: float,
) -> torch.Tensor:
    """Softmax and weighted sum of one position, block by block; a hidden block adds exact zeros.

    Shapes:
        rows: [G, R, D]
        blocks: [2 G, 128, D]
        return: [G, R, D]
    """
    num_kv_heads = rows.shape[0]
    scores = [
        torch.baddbmm(mask, rows, block[:num_kv_heads].transpose(1, 2), alpha=scale)
        for block, mask in zip(blocks, row_masks, strict=True)
    ]
    # a maximum is the same in every order; a sum is not, so sums are taken block by block too
    top = torch.stack([block_scores.amax(-1, keepdim=True) for block_scores in scores]).amax(0)
    mixed, total = torch.zeros_like(rows), torch.zeros_like(top)
    for block_scores, block in zip(scores, blocks, strict=True):
        weights = block_scores.sub_(top).exp_()
        total += weights.sum(-1, keepdim=True)
        mixed.baddbmm_(weights, block[num_kv_heads:])
    return mixed.div_(total)
