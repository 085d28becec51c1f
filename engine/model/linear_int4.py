"""Matrices kept packed in 4 bits, a scale and a zero for every 32 weights of a row.

Guarantees: as `engine.model.linear`, whose other half this is: a row's bits depend on that row
alone, whatever the row count and the number of threads, as probed on this host. Never knows about
layers, positions or files.

What is exact: a group whose weights lie on 16 or fewer equidistant values keeps them as its codes.
So blocks of Q4_0, Q4_1 and of Q4_K (whose sub-blocks are such groups) keep the file's own codes; of
the default model every code, scale and minimum is that of the file. What is not: scale and zero are
rounded to bf16 (8 bits; the file's have 11), activations are rounded to bf16, sums are taken in f32
and rounded to bf16. Groups that lie on no such grid (other block types, folders) are rounded to the
nearest of 16 values from their least to their largest weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.errors import ModelError
from engine.model.row_invariance import (
    PROBED_ROW_COUNTS,
    LinearKernel,
    by_blocks,
    differing_counts,
    on_threads,
    settle,
)

GROUP_LEN = 32  # weights along a row that share scale and zero: the block of Q4_0 and Q4_1
OUT_MULTIPLE = 16  # the kernel computes outputs by so many
MAX_CODE = 15
_MIDDLE_CODE = 8  # the kernel's weight is (code - 8) * scale + zero
_GRID_TOLERANCE = 2**-10  # of a step: float32 rounding is far below, chance far above
_INNER_K_TILES = 1  # the packing ignores it on a CPU

_to_packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu.default
_product = torch.ops.aten._weight_int4pack_mm_for_cpu.default


@dataclass(frozen=True, slots=True)
class Int4Kernel:
    """How a model with 4-bit weights is computed on this host.

    Attributes:
        name: stable name for receipts; says both kernels.
        row_floor: of the 4-bit product, as in `LinearKernel`; so is the next.
        block_rows: height of fixed row blocks, or 0.
        f32: kernel of the matrices that stay in float32; a call below its floor is padded there.
    """

    name: str
    row_floor: int
    block_rows: int
    f32: LinearKernel


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """A weight matrix in 4 bits.

    Attributes:
        codes: packed, [out, in / 2] uint8.
        scales_zeros: [in / 32, out, 2] bfloat16.
        block_rows: as in the kernel it was packed for.
    """

    codes: torch.Tensor
    scales_zeros: torch.Tensor
    block_rows: int


def fits_int4(weight: torch.Tensor) -> bool:
    """Whether the kernel can multiply by a matrix of this shape."""
    num_out, num_in = weight.shape
    return num_out % OUT_MULTIPLE == 0 and num_in % GROUP_LEN == 0


def pack_int4(weight: torch.Tensor, block_rows: int) -> PackedInt4:
    """Quantise and pack a matrix that `fits_int4`.

    Shapes:
        weight: [out, in] float32
    """
    codes, scales, minima = quantise(weight)
    zeros = minima + _MIDDLE_CODE * scales
    scales_zeros = torch.stack([scales, zeros], dim=-1).transpose(0, 1).contiguous().bfloat16()
    return PackedInt4(_to_packed(codes, _INNER_K_TILES), scales_zeros, block_rows)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find codes, scales and minima such that a weight is near `code * scale + minimum`.

    Shapes:
        weight: [out, in] float32 -> codes [out, in] int32; scales, minima [out, in / 32] float32
    """
    num_out, num_in = weight.shape
    groups = weight.reshape(-1, GROUP_LEN)
    minima = groups.amin(1)
    ranges = groups.amax(1) - minima
    scales, codes = _on_grid(groups, minima, ranges, MAX_CODE)
    on_grid = _grid_distance(groups, minima, scales, codes) <= _GRID_TOLERANCE
    # where not one group lies on 16 values the file was no 4-bit one, and searching is in vain
    num_steps, left = MAX_CODE - 1, torch.where(~on_grid)[0]
    while num_steps and on_grid.any() and len(left):
        chosen = groups[left], minima[left]
        fewer_scales, fewer_codes = _on_grid(*chosen, ranges[left], num_steps)
        fits = _grid_distance(*chosen, fewer_scales, fewer_codes) <= _GRID_TOLERANCE
        scales[left[fits]], codes[left[fits]] = fewer_scales[fits], fewer_codes[fits]
        num_steps, left = num_steps - 1, left[~fits]
    by_row = (num_out, num_in // GROUP_LEN)
    return codes.reshape(num_out, num_in).int(), scales.view(by_row), minima.view(by_row)


def _on_grid(
    groups: torch.Tensor, minima: torch.Tensor, ranges: torch.Tensor, num_steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to the nearest of `num_steps + 1` values from least to largest.

    Shapes:
        groups: [G, 32]; minima, ranges: [G] -> scales [G], codes [G, 32] float32
    """
    scales = ranges / num_steps
    # a group of equal weights has no step; its codes are 0
    steps = torch.where(scales > 0, scales, 1.0)
    return scales, ((groups - minima[:, None]) / steps[:, None]).round_()


def _grid_distance(
    groups: torch.Tensor, minima: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor
) -> torch.Tensor:
    """Largest distance of a group's weights from its grid, in steps.

    Shapes:
        groups, codes: [G, 32]; minima, scales: [G] -> [G]
    """
    steps = torch.where(scales > 0, scales, 1.0)
    return ((groups - minima[:, None]) / steps[:, None] - codes).abs_().amax(1)


def product_int4(rows: torch.Tensor, packed: PackedInt4) -> torch.Tensor:
    """Return `rows · weightᵀ`.

    Shapes:
        rows: [T, in] float32 -> [T, out] bfloat16
    """
    activations = rows.bfloat16()
    if packed.block_rows:
        return by_blocks(
            activations,
            packed.block_rows,
            lambda block: _product(block, packed.codes, GROUP_LEN, packed.scales_zeros),
        )
    product: torch.Tensor = _product(activations, packed.codes, GROUP_LEN, packed.scales_zeros)
    return product


def probe_int4(shapes: Sequence[tuple[int, int]], f32: LinearKernel) -> Int4Kernel:
    """Find out how 4-bit products give bit-equal rows on this host.

    Args:
        shapes: (out, in) of stand-ins for the matrices that will be used.
        f32: kernel of the matrices that stay in float32.

    Raises:
        ModelError: if the number of threads changes bits, which no padding and no block mends.
    """
    for shape in shapes:
        if threads_change_bits(*shape):
            raise ModelError(
                "the 4-bit product of this host rounds differently on another number of threads, "
                "so stages would not agree; use the numeric configuration f32"
            )
    differing = {count for shape in shapes for count in differing_int4_counts(*shape)}
    int4 = settle("int4-bf16", differing)
    return Int4Kernel(f"{int4.name}+{f32.name}", int4.row_floor, int4.block_rows, f32)


@torch.inference_mode()
def differing_int4_counts(num_out: int, num_in: int) -> tuple[int, ...]:
    """Return the probed row counts at which rows change bits, on one thread or on all."""
    rows, packed = _probe_input(num_out, num_in)
    differing: set[int] = set()
    for num_threads in {1, torch.get_num_threads()}:
        with on_threads(num_threads):
            differing.update(differing_counts(lambda a, b: product_int4(rows[a:b], packed)))
    return tuple(sorted(differing))


@torch.inference_mode()
def threads_change_bits(num_out: int, num_in: int) -> bool:
    """Whether one thread computes other bits than all of them."""
    rows, packed = _probe_input(num_out, num_in)
    on_all = product_int4(rows, packed)
    with on_threads(1):
        return not torch.equal(product_int4(rows, packed), on_all)


def _probe_input(num_out: int, num_in: int) -> tuple[torch.Tensor, PackedInt4]:
    generator = torch.Generator().manual_seed(num_out * 31 + num_in)
    weight = torch.randn(num_out, num_in, generator=generator) / num_in**0.5
    rows = torch.randn(max(PROBED_ROW_COUNTS), num_in, generator=generator)
    return rows, pack_int4(weight, 0)
