"""The one linear map of this engine: each output row depends on its input row alone, bit for bit.

Guarantees: for the row counts that a kernel settled on, row i of `linear(rows, packed)` has the
same bits whatever other rows are in the call and whatever the thread count. Ordinary matrix kernels
do not promise this: they pick another summation order for one row than for nine. A matrix is
float32, multiplied by oneDNN's prepacked linear, or packed in 4 bits (`engine.model.linear_int4`).
Both kernels are probed on this host once per process; where a probe fails, rows are computed in
blocks of one fixed height. Nothing else in the engine may multiply by a weight matrix.
Never knows about layers, positions or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch.nn import functional

from engine.errors import unknown_name
from engine.model.attention_kernel import attention_kernel
from engine.model.linear_int4 import (
    Int4Kernel,
    PackedInt4,
    fits_int4,
    pack_int4,
    probe_int4,
    product_int4,
)
from engine.model.row_invariance import (
    PROBED_ROW_COUNTS,
    LinearKernel,
    by_blocks,
    differing_counts,
    settle,
)

# (out, in) of small stand-ins: what selects a kernel is mostly the inner size
DEFAULT_PROBE_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))

_pointwise = torch.ops.mkldnn._linear_pointwise.default
_binary = torch.ops.mkldnn._linear_pointwise.binary
_reorder = torch.ops.mkldnn._reorder_linear_weight.default


@dataclass(frozen=True, slots=True)
class PackedF32:
    """A weight matrix in oneDNN's blocked layout.

    Attributes:
        handle: opaque oneDNN tensor, logically [out, in].
        row_floor: as in the kernel it was packed for; so is the next.
        block_rows: height of fixed row blocks, or 0.
    """

    handle: torch.Tensor
    row_floor: int
    block_rows: int


PackedWeight = PackedF32 | PackedInt4
Kernel = LinearKernel | Int4Kernel


def pack(weight: torch.Tensor, kernel: Kernel) -> PackedWeight:
    """Lay a weight matrix out once for all later calls, in the kernel's own type if it fits.

    Shapes:
        weight: [out, in] float32
    """
    if isinstance(kernel, Int4Kernel) and fits_int4(weight):
        return pack_int4(weight, kernel.block_rows)
    return pack_f32(weight, kernel)


def pack_f32(weight: torch.Tensor, kernel: Kernel) -> PackedF32:
    """Lay out a weight matrix that stays in float32 whatever the kernel.

    Shapes:
        weight: [out, in] float32
    """
    f32 = kernel.f32 if isinstance(kernel, Int4Kernel) else kernel
    # no batch-size hint: the hint for one row chooses a layout that is not row invariant
    return PackedF32(_reorder(weight.contiguous()), f32.row_floor, f32.block_rows)


def linear(rows: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
    """Return `rows · weightᵀ`.

    Shapes:
        rows: [T, in] float32 -> [T, out]
    """
    if isinstance(packed, PackedInt4):
        return product_int4(rows, packed).float()
    if packed.block_rows:
        return _by_blocks(rows, packed)
    if rows.shape[0] < packed.row_floor:
        return linear(_padded(rows, packed), packed)[: rows.shape[0]]
    product: torch.Tensor = _pointwise(rows, packed.handle, None, "none", [], "")
    return product


def linear_add(rows: torch.Tensor, packed: PackedWeight, addend: torch.Tensor) -> torch.Tensor:
    """Return `rows · weightᵀ + addend` in one pass.

    Shapes:
        rows: [T, in] float32
        addend: [T, out] -> [T, out]
    """
    if isinstance(packed, PackedInt4):
        return addend + product_int4(rows, packed)
    if packed.block_rows:
        return _by_blocks(rows, packed) + addend
    if rows.shape[0] < packed.row_floor:
        padded = linear_add(_padded(rows, packed), packed, _padded(addend, packed))
        return padded[: rows.shape[0]]
    total: torch.Tensor = _binary(rows, addend, packed.handle, None, "add")
    return total


def _padded(rows: torch.Tensor, packed: PackedF32) -> torch.Tensor:
    """Add zero rows up to the floor: rows below it would round differently."""
    return functional.pad(rows, (0, 0, 0, packed.row_floor - rows.shape[0]))


def _by_blocks(rows: torch.Tensor, packed: PackedF32) -> torch.Tensor:
    return by_blocks(
        rows,
        packed.block_rows,
        lambda block: _pointwise(block, packed.handle, None, "none", [], ""),
    )


@cache
def linear_kernel() -> LinearKernel:
    """Return the float32 kernel of this host, probing on first use."""
    return probe_row_invariance(DEFAULT_PROBE_SHAPES)


@cache
def int4_kernel() -> Int4Kernel:
    """Return the kernel of 4-bit weights of this host, probing on first use.

    Raises:
        ModelError: as `probe_int4`.
    """
    return probe_int4(DEFAULT_PROBE_SHAPES, linear_kernel())


KERNELS: Mapping[str, Callable[[], Kernel]] = {"f32": linear_kernel, "int4": int4_kernel}


def kernel_for(weights: str) -> Kernel:
    """Return this host's kernel for weights of this name.

    Its own name is followed by that of the attention, which changes bits as a linear map does: a
    stage reports both in one word, and stages compare equal only if they agree in both.

    Raises:
        ConfigError: an unknown name; the valid ones are listed.
        ModelError: as `int4_kernel`.
    """
    if weights not in KERNELS:
        raise unknown_name("kind of weights", weights, KERNELS)
    kernel = KERNELS[weights]()
    return replace(kernel, name=f"{kernel.name}+{attention_kernel().name}")


def weights_of_kernel(kernel_name: str) -> str:
    """Return which weights a kernel is for, by the name that receipts hold."""
    return "int4" if kernel_name.startswith("int4-") else "f32"


def probe_row_invariance(shapes: Sequence[tuple[int, int]]) -> LinearKernel:
    """Find out which row counts give bit-equal rows of the float32 kernel on this host.

    Args:
        shapes: (out, in) of the matrices that will be used.

    Returns:
        The cheapest kernel under which no probed row count changes a bit.
    """
    differing = {count for out_in in shapes for count in differing_row_counts(*out_in)}
    return settle("onednn-f32", differing)


@torch.inference_mode()
def differing_row_counts(num_out: int, num_in: int) -> tuple[int, ...]:
    """Return the probed row counts at which the first or the last rows change bits."""
    generator = torch.Generator().manual_seed(num_out * 31 + num_in)
    weight = torch.randn(num_out, num_in, generator=generator) / num_in**0.5
    rows = torch.randn(max(PROBED_ROW_COUNTS), num_in, generator=generator)
    other = torch.randn(max(PROBED_ROW_COUNTS), num_out, generator=generator)
    packed = pack(weight, LinearKernel("probe", 1, 0))
    return differing_counts(lambda a, b: linear_add(rows[a:b], packed, other[a:b]))
