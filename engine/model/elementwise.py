"""Norms and activations whose every element has the same bits wherever it stands.

Guarantees: an element's result depends on its own row alone. A vectorised kernel computes the last
few elements of a run with scalar code, and for `silu`, `gelu` and complex products that code rounds
differently; where a run ends depends on the number of rows and threads. So activations are built
from operations that are alike in both (measured: exp, tanh; by IEEE 754: + - * /). Never knows
layers, positions or files.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

_GELU_LINEAR = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715

# Kernels split a tensor over threads, also within a row, from this many elements on.
_SERIAL_ELEMENTS = 32768


def rms_norm(rows: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Divide every row by its root mean square and multiply by the weight, if any.

    Shapes:
        rows: [..., D], weight: [D] -> [..., D]
    """
    return functional.rms_norm(rows, rows.shape[-1:], weight, eps)


def silu(gate: torch.Tensor) -> torch.Tensor:
    """Return `gate / (1 + exp(-gate))`."""
    divisor = torch.neg(gate).exp_().add_(1.0)
    return torch.div(gate, divisor, out=divisor)


def gelu_tanh(gate: torch.Tensor) -> torch.Tensor:
    """Return the Gaussian error linear unit in its tanh form.

    Source:
        Hendrycks and Gimpel 2016, section 2.
    """
    argument = (gate * gate).mul_(_GELU_CUBIC).add_(1.0).mul_(gate).mul_(_GELU_LINEAR)
    return argument.tanh_().add_(1.0).mul_(gate).mul_(0.5)


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


def rotate(heads: torch.Tensor, rotations: torch.Tensor) -> None:
    """Rotate interleaved pairs in place.

    Few enough rows at a time that one thread takes them all: the pairs of a head then always form
    one run.

    Shapes:
        heads: [T, heads, D], at least two heads
        rotations: [T, 1, D/2] complex64
    """
    pairs = torch.view_as_complex(heads.unflatten(2, (-1, 2)))
    num_rows = max((_SERIAL_ELEMENTS - 1) // pairs[0].numel(), 1)
    if len(pairs) <= num_rows:
        pairs.mul_(rotations)
        return
    for piece, factors in zip(pairs.split(num_rows), rotations.split(num_rows), strict=True):
        piece.mul_(factors)
