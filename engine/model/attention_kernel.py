"""Which attention this host uses: the fast one, where a probe finds that it keeps its bits.

Guarantees: decided once per process, before the first layer runs; a call of the attention settled
on gave a position the same bits in every probed company, or has them because all its products have
one shape. Never knows weights, jobs or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from engine.model.attention import attention, attention_by_position
from engine.model.masks import Masks
from engine.model.row_invariance import on_threads
from engine.model.span import KeyRule, KeyView, Segment, Span, block_ceil

# Key heads, query heads per key head, head size: of SmolLM2, Gemma 3, Qwen 2 and, with fewer of its
# key heads, Qwen 3. What selects a kernel is mostly the head size and the number of rows.
DEFAULT_HEAD_SHAPES = ((3, 3, 64), (1, 4, 256), (2, 7, 64), (2, 2, 128))

_COMPARED_LEN = 40
# Lengths of calls by the position they are compared at: frames of every length where keys are few
# and calls cheap; prefill chunks, which also put hidden keys behind the compared positions, some
# across an edge between blocks.
PROBED_CALLS = {
    60: (*range(1, _COMPARED_LEN + 1), 96),
    110: (1, 2, 9, 17, 256),
    250: (1, 2, 9, 96),
    900: (1, 9, 128),
}
_DRAWN_LEN, _NUM_REPEATS = 320, 4  # drawing every position would take longer than computing

Attend = Callable[
    [torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor | None], float], torch.Tensor
]


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """How attention is computed on this host.

    Attributes:
        name: stable name for receipts.
        attend: see `engine.model.attention`.
    """

    name: str
    attend: Attend


@cache
def attention_kernel() -> AttentionKernel:
    """Return the attention of this host, probing on first use."""
    return probe_attention(DEFAULT_HEAD_SHAPES)


def probe_attention(head_shapes: Sequence[tuple[int, int, int]]) -> AttentionKernel:
    """Find out whether the fast attention keeps its bits on this host.

    Args:
        head_shapes: key heads, query heads per key head, head size of stand-ins for the models
            that will be used. The same for every model, so that all stages say the same.
    """
    if any(next(differing_calls(attention, *shape), None) for shape in head_shapes):
        return AttentionKernel("attention-by-position", attention_by_position)
    return AttentionKernel("attention-floor4", attention)


@torch.inference_mode()
def differing_calls(
    attend: Attend, num_kv_heads: int, per_head: int, head_dim: int
) -> Iterator[tuple[int, int]]:
    """Yield start and length of the probed calls in which a position has other bits.

    Where a process has several threads, a call of the same shape on one thread is compared too:
    stages with other numbers of threads compute the same tokens.
    """
    call = _calls(attend, num_kv_heads, per_head, head_dim)
    for start, lengths in PROBED_CALLS.items():
        reference = call(start, _COMPARED_LEN)
        for length in lengths:
            # a frame's last positions: there a position is elsewhere among the rows of its call
            skipped = max(_COMPARED_LEN - length, 0)
            if not torch.equal(call(start + skipped, length)[:_COMPARED_LEN], reference[skipped:]):
                yield start + skipped, length
        if torch.get_num_threads() > 1:
            with on_threads(1):
                is_equal = torch.equal(call(start, _COMPARED_LEN), reference)
            if not is_equal:
                yield start, _COMPARED_LEN


def _calls(
    attend: Attend, num_kv_heads: int, per_head: int, head_dim: int
) -> Callable[[int, int], torch.Tensor]:
    """Return what computes so many positions from a start, over one fixed text.

    Shapes:
        return: of the function, [T, N * D]
    """
    generator = torch.Generator().manual_seed(num_kv_heads * 31 + head_dim)
    num_heads = num_kv_heads * per_head
    queries = torch.randn(_DRAWN_LEN, num_heads, head_dim, generator=generator)
    queries = queries.repeat(_NUM_REPEATS, 1, 1)
    stored = torch.randn(2 * num_kv_heads, _DRAWN_LEN, head_dim, generator=generator)
    stored = stored.repeat(1, _NUM_REPEATS, 1)
    masks = Masks(num_heads, num_kv_heads)

    def call(start: int, num_new: int) -> torch.Tensor:
        end = start + num_new
        slots = slice(0, block_ceil(end))
        view = KeyView(KeyRule(), slice(start, end), (Segment(0, slots),))
        call_masks = masks.of(Span(start, num_new, {}), view, num_new)
        return attend(queries[start:end], [stored[:, slots]], call_masks, head_dim**-0.5)

    return call
