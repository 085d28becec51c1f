"""Ways to compute attention in float32, for `bench.studies.kernels` to compare.

Guarantees: every candidate gets the same call and answers the same question. Never knows how it is
checked or timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn import functional

STORE_LEN = 5120


@dataclass(frozen=True, slots=True)
class Call:
    """One call of attention.

    Shapes:
        queries: [T, G, P, D], P query heads per key head
        keys, values: [G, S, D]
        mask: [T * P, S], 0 or -inf
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor
    start: int
    num_new: int

    @property
    def scale(self) -> float:
        """Factor of every score."""
        return self.queries.shape[-1] ** -0.5

    def rows(self) -> torch.Tensor:
        """Queries by key head, [G, T * P, D]."""
        return self.queries.transpose(0, 1).flatten(1, 2)


Compute = Callable[[Call], torch.Tensor]  # returns [T, G, P, D]


def _edges(first: tuple[int, ...], then: int) -> tuple[int, ...]:
    edges = [0, *first]
    while edges[-1] < STORE_LEN:
        edges.append(edges[-1] + then)
    return tuple(edges)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to compute attention; it is handed keys up to the next of `edges`."""

    compute: Compute
    edges: tuple[int, ...] = field(default_factory=lambda: _edges((), 128))


def _by_position(rows: torch.Tensor, num_positions: int) -> torch.Tensor:
    return rows.unflatten(1, (num_positions, -1)).transpose(0, 1)


def in_blocks(edges: tuple[int, ...]) -> Compute:
    """Whole scores and softmax; probabilities times values block by block, in order."""

    def compute(call: Call) -> torch.Tensor:
        scores = torch.baddbmm(call.mask, call.rows(), call.keys.mT, alpha=call.scale)
        probs = torch.softmax(scores, dim=-1)
        mixed = torch.bmm(probs[:, :, : edges[1]], call.values[:, : edges[1]])
        for first, end in itertools.pairwise(edges[1:]):
            if first >= probs.shape[2]:
                break
            mixed.baddbmm_(probs[:, :, first:end], call.values[:, first:end])
        return _by_position(mixed, call.queries.shape[0])

    return compute


def in_one_product(call: Call) -> torch.Tensor:
    """Probabilities times values in a single batched product."""
    scores = torch.baddbmm(call.mask, call.rows(), call.keys.mT, alpha=call.scale)
    mixed = torch.bmm(torch.softmax(scores, dim=-1), call.values)
    return _by_position(mixed, call.queries.shape[0])


def blocks_then_sum(call: Call) -> torch.Tensor:
    """One batched product over all blocks of 128 keys of a head, summed afterwards."""
    scores = torch.baddbmm(call.mask, call.rows(), call.keys.mT, alpha=call.scale)
    probs = torch.softmax(scores, dim=-1).unflatten(2, (-1, 128)).transpose(1, 2)
    heads = [
        torch.bmm(head_probs, head_values.unflatten(0, (-1, 128))).sum(0)
        for head_probs, head_values in zip(probs, call.values, strict=True)
    ]
    return _by_position(torch.stack(heads), call.queries.shape[0])


def by_einsum(call: Call) -> torch.Tensor:
    """Two contractions, no reshaping by hand."""
    scores = torch.einsum("tgpd,gsd->gtps", call.queries, call.keys) * call.scale
    probs = torch.softmax(scores + call.mask.view(scores.shape[1:]), dim=-1)
    return torch.einsum("gtps,gsd->tgpd", probs, call.values)


def _fused(rows: torch.Tensor, call: Call, mask: torch.Tensor | None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        rows, call.keys.unsqueeze(0), call.values.unsqueeze(0), attn_mask=mask
    )


def fused_all(call: Call) -> torch.Tensor:
    """The fused kernel over all rows of a key head."""
    mixed = _fused(call.rows().unsqueeze(0), call, call.mask)
    return _by_position(mixed[0], call.queries.shape[0])


def fused_by_position(call: Call) -> torch.Tensor:
    """The fused kernel once a position, over exactly the keys that it sees."""
    mixed = torch.empty_like(call.queries)
    for idx in range(call.num_new):
        end = call.start + idx + 1
        mixed[idx] = functional.scaled_dot_product_attention(
            call.queries[idx].unsqueeze(0),
            call.keys[:, :end].unsqueeze(0),
            call.values[:, :end].unsqueeze(0),
        )[0]
    return mixed


def fused_batched(call: Call) -> torch.Tensor:
    """The fused kernel with every position a batch entry of its own."""
    num_positions, _, per_head, _ = call.queries.shape
    keys, values = (part.expand(num_positions, *part.shape) for part in (call.keys, call.values))
    mask = call.mask.view(num_positions, 1, per_head, -1)
    return functional.scaled_dot_product_attention(call.queries, keys, values, attn_mask=mask)


def fused_in_row_blocks(call: Call) -> torch.Tensor:
    """The fused kernel over padded blocks of 16 positions, one shape for every call."""
    height, (num_positions, _, per_head, _) = 16, call.queries.shape
    missing = -num_positions % height
    queries = functional.pad(call.queries, (0, 0, 0, 0, 0, 0, 0, missing)).split(height)
    masks = functional.pad(call.mask, (0, 0, 0, missing * per_head)).split(height * per_head)
    blocks = [
        _by_position(_fused(block.transpose(0, 1).flatten(1, 2)[None], call, mask)[0], height)
        for block, mask in zip(queries, masks, strict=True)
    ]
    return torch.cat(blocks)[:num_positions]


def running_softmax(call: Call) -> torch.Tensor:
    """Blocks of 512 keys with a running maximum and a running sum."""
    rows, block = call.rows() * call.scale, 512
    top = torch.full((*rows.shape[:2], 1), -1e30)
    total, mixed = torch.zeros_like(top), torch.zeros_like(rows)
    for first in range(0, call.keys.shape[1], block):
        span = slice(first, first + block)
        scores = torch.baddbmm(call.mask[:, span], rows, call.keys[:, span].mT)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, weights = (top - new_top).exp_(), (scores - new_top).exp_()
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = torch.baddbmm(mixed * shrink, weights, call.values[:, span])
        top = new_top
    return _by_position(mixed / total, call.queries.shape[0])


def _blocks(first: tuple[int, ...], then: int) -> Candidate:
    edges = _edges(first, then)
    return Candidate(in_blocks(edges), edges)


CANDIDATES = {
    "blocks of 128": _blocks((), 128),
    "blocks of 64": _blocks((), 64),
    "blocks of 256": _blocks((), 256),
    "blocks of 512": _blocks((), 512),
    "blocks growing 128 128 256 512": _blocks((128, 256, 512), 512),
    "one product": Candidate(in_one_product),
    "blocks, then sum": Candidate(blocks_then_sum),
    "einsum": Candidate(by_einsum),
    "fused": Candidate(fused_all),
    "fused, a position": Candidate(fused_by_position),
    "fused, batched positions": Candidate(fused_batched),
    "fused, 16 positions, 512 keys": Candidate(fused_in_row_blocks, _edges((), 512)),
    "running softmax, 512 keys": Candidate(running_softmax, _edges((), 512)),
}
