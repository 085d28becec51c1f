"""Whether a product's rows depend on each other on this host, and the way out where they do.

Guarantees: a kernel settled on here gives row i the same bits at every probed row count. Never
knows what a product multiplies by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

# rows are compared at these counts; 65 and up are prefill chunks
PROBED_ROW_COUNTS = (*range(1, 65), 96, 128, 255, 256, 512)
BLOCK_ROWS = 16  # height of the fall-back's fixed blocks
MAX_ROW_FLOOR = 8
_FLOORS = (1, 2, 4, MAX_ROW_FLOOR)
_COMPARED_ROWS = 64


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """How rows are computed on this host.

    Attributes:
        name: stable name for receipts.
        row_floor: fewest rows that are computed; a shorter call is padded with zero rows, best once
            for many products, by whoever makes them.
        block_rows: height of fixed row blocks, or 0 where any row count gives equal bits.
    """

    name: str
    row_floor: int
    block_rows: int


def differing_counts(product: Callable[[int, int], torch.Tensor]) -> tuple[int, ...]:
    """Return the probed row counts at which the first or the last rows change bits.

    Args:
        product: given (start, end), the outputs of these rows of one fixed input, computed in one
            call; it has as many rows as the largest probed count.
    """
    reference = product(0, _COMPARED_ROWS)
    differing = []
    for count in PROBED_ROW_COUNTS:
        kept = min(count, _COMPARED_ROWS)
        head = product(0, count)[:kept]
        tail_start = _COMPARED_ROWS - kept
        tail = product(tail_start, tail_start + count)[:kept]
        equal = torch.equal(head, reference[:kept]) and torch.equal(tail, reference[tail_start:])
        if not equal:
            differing.append(count)
    return tuple(differing)


def settle(name: str, differing: Collection[int]) -> LinearKernel:
    """Return the cheapest kernel under which no probed row count changes a bit.

    Args:
        name: of the product; how rows are computed is added to it.
        differing: row counts at which rows changed bits.
    """
    for floor in _FLOORS:
        if all(count < floor for count in differing):
            return LinearKernel(f"{name}-floor{floor}", floor, 0)
    return LinearKernel(f"{name}-blocked{BLOCK_ROWS}", 1, BLOCK_ROWS)


def by_blocks(
    rows: torch.Tensor, block_rows: int, product: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Compute in blocks of one fixed height, so that every call of the product has one shape.

    Shapes:
        rows: [T, in] -> [T, out]
    """
    num_rows = rows.shape[0]
    padded = functional.pad(rows, (0, 0, 0, -num_rows % block_rows))
    return torch.cat([product(block) for block in torch.split(padded, block_rows)])[:num_rows]


@contextmanager
def on_threads(num_threads: int) -> Iterator[None]:
    """Compute on so many threads, then on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
