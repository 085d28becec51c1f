"""The one linear map of this engine: each output row depends on its input row alone, bit for bit.

Guarantees: for the row counts `linear_kernel` settled on, row i of `linear(rows, packed)` has the
same bits whatever other rows are in the call and whatever the thread count. Ordinary matrix kernels
do not promise this: they pick another summation order for one row than for nine. The kernel is
oneDNN's prepacked linear, probed on this host once per process; where the probe fails, rows are
computed in blocks of one fixed height. Nothing else in the engine may multiply by a weight matrix.
Never knows about layers, positions or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

# rows are compared at these counts; 65 and up are prefill chunks
PROBED_ROW_COUNTS = (*range(1, 65), 96, 128, 255, 256, 512)
BLOCK_ROWS = 16  # height of the fall-back's fixed blocks
MAX_ROW_FLOOR = 8
_FLOORS = (1, 2, 4, MAX_ROW_FLOOR)

# (out, in) of small stand-ins: what selects a kernel is mostly the inner size
DEFAULT_PROBE_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))

_pointwise = torch.ops.mkldnn._linear_pointwise.default
_binary = torch.ops.mkldnn._linear_pointwise.binary
_reorder = torch.ops.mkldnn._reorder_linear_weight.default


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """How rows are computed on this host.

    Attributes:
        name: stable name for receipts.
        row_floor: fewest rows a call may have; callers pad with zero rows.
        block_rows: height of fixed row blocks, or 0 where any row count gives equal bits.
    """

    name: str
    row_floor: int
    block_rows: int


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight matrix in oneDNN's blocked layout.

    Attributes:
        handle: opaque oneDNN tensor, logically [out, in].
        block_rows: as in the kernel it was packed for.
    """

    handle: torch.Tensor
    block_rows: int


def pack(weight: torch.Tensor, kernel: LinearKernel) -> PackedWeight:
    """Reorder a weight matrix once for all later calls.

    Shapes:
        weight: [out, in] float32
    """
    # no batch-size hint: the hint for one row chooses a layout that is not row invariant
    return PackedWeight(_reorder(weight.contiguous()), kernel.block_rows)


def linear(rows: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
    """Return `rows · weightᵀ`.

    Shapes:
        rows: [T, in] float32 -> [T, out]
    """
    if packed.block_rows:
        return _by_blocks(rows, packed, None)
    return _pointwise(rows, packed.handle, None, "none", [], "")


def linear_add(rows: torch.Tensor, packed: PackedWeight, addend: torch.Tensor) -> torch.Tensor:
    """Return `rows · weightᵀ + addend` in one pass.

    Shapes:
        rows: [T, in] float32
        addend: [T, out] -> [T, out]
    """
    if packed.block_rows:
        return _by_blocks(rows, packed, addend)
    return _binary(rows, addend, packed.handle, None, "add")


def _by_blocks(
    rows: torch.Tensor, packed: PackedWeight, addend: torch.Tensor | None
) -> torch.Tensor:
    """Compute in blocks of one fixed height, so that every call of the kernel has one shape."""
    num_rows = rows.shape[0]
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -num_rows % packed.block_rows))
    blocks = [
        _pointwise(block, packed.handle, None, "none", [], "")
        for block in padded.split(packed.block_rows)
    ]
    product = torch.cat(blocks)[:num_rows]
    return product if addend is None else product + addend


@cache
def linear_kernel() -> LinearKernel:
    """Return the kernel of this host, probing on first use."""
    return probe_row_invariance(DEFAULT_PROBE_SHAPES)


def probe_row_invariance(shapes: Sequence[tuple[int, int]]) -> LinearKernel:
    """Find out which row counts give bit-equal rows on this host.

    Args:
        shapes: (out, in) of the matrices that will be used.

    Returns:
        The cheapest kernel under which no probed row count changes a bit.
    """
    differing = {count for out_in in shapes for count in differing_row_counts(*out_in)}
    for floor in _FLOORS:
        if all(count < floor for count in differing):
            return LinearKernel(f"onednn-f32-floor{floor}", floor, 0)
    return LinearKernel(f"onednn-f32-blocked{BLOCK_ROWS}", 1, BLOCK_ROWS)


@torch.inference_mode()
def differing_row_counts(num_out: int, num_in: int) -> tuple[int, ...]:
    """Return the probed row counts at which the first or the last rows change bits."""
    generator = torch.Generator().manual_seed(num_out * 31 + num_in)
    weight = torch.randn(num_out, num_in, generator=generator) / num_in**0.5
    rows = torch.randn(max(PROBED_ROW_COUNTS), num_in, generator=generator)
    other = torch.randn(max(PROBED_ROW_COUNTS), num_out, generator=generator)
    packed = pack(weight, LinearKernel("probe", 1, 0))
    reference = linear_add(rows[:64], packed, other[:64])
    differing = []
    for count in PROBED_ROW_COUNTS:
        kept = min(count, 64)
        head = linear_add(rows[:count], packed, other[:count])[:kept]
        tail_start = 64 - kept
        tail_end = tail_start + count
        tail = linear_add(rows[tail_start:tail_end], packed, other[tail_start:tail_end])[:kept]
        equal = torch.equal(head, reference[:kept]) and torch.equal(tail, reference[tail_start:])
        if not equal:
            differing.append(count)
    return tuple(differing)
