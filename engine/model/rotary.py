"""Rotary positions: one table of factors per kind of layer.

Guarantees: every known scaling of the frequencies is expressed as one divisor per pair, so that a
checkpoint folder and a GGUF file of one model rotate with the same bits; an unknown scaling is
refused by name. Never knows about layers, caches or files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from engine.errors import ModelError
from engine.model.config import Rope

SCALINGS = ("none", "default", "linear", "llama3", "yarn")


def scaled_rope(kind: str, theta: float, head_dim: int, terms: Mapping[str, Any]) -> Rope:
    """Turn a checkpoint's rope scaling into a `Rope`.

    Args:
        kind: name of the scaling.
        theta: base of the frequencies.
        head_dim: D.
        terms: the scaling's numbers, named as in a Hugging Face config.

    Raises:
        ModelError: for a scaling this engine does not know or one that lacks a number.
    """
    try:
        match kind:
            case "none" | "default":
                return Rope(theta)
            case "linear":
                return Rope(theta, _as_float32([terms["factor"]] * (head_dim // 2)))
            case "llama3":
                return Rope(theta, _as_float32(_llama3_factors(theta, head_dim, terms)))
            case "yarn":
                return _yarn(theta, head_dim, terms)
    except KeyError as error:
        raise ModelError(f"rope scaling {kind!r} lacks {error.args[0]}") from error
    raise ModelError(f"rope scaling {kind!r} is not supported; allowed: {', '.join(SCALINGS)}")


def rotations(rope: Rope, head_dim: int, num_positions: int) -> torch.Tensor:
    """Tabulate the rotary factors of every position.

    Shapes:
        return: [num_positions, D/2] complex64

    Source:
        Rotary embedding: angle of pair i at position t is t * theta^(-2 i / D).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.factors:
        frequencies /= torch.tensor(rope.factors)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return torch.complex(angles.cos() * rope.magnitude, angles.sin() * rope.magnitude)


def interleave(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Put the two halves of every rotary pair side by side, so that one complex product rotates.

    Scores do not change: queries and keys are permuted alike.

    Shapes:
        weight: [heads * D] or [heads * D, H] -> the same
    """
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def rotate_halves(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + D/2), as checkpoints lay them out.

    For weights that were never interleaved; layers of the target rotate in place.

    Shapes:
        heads: [..., D]; cos, sin: [..., D/2], broadcast over heads
    """
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _llama3_factors(theta: float, head_dim: int, terms: Mapping[str, Any]) -> list[float]:
    """Slow pairs by `factor`, leave fast ones, blend between.

    Source:
        Llama 3.1's model card: wavelengths are compared with the context it was first trained on.
    """
    factor, old_len = float(terms["factor"]), float(terms["original_max_position_embeddings"])
    low, high = float(terms["low_freq_factor"]), float(terms["high_freq_factor"])
    factors = []
    for exponent in range(0, head_dim, 2):
        turns = old_len / (2 * math.pi * theta ** (exponent / head_dim))  # within the old context
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1.0 / ((1.0 - kept) / factor + kept))
    return factors


def _yarn(theta: float, head_dim: int, terms: Mapping[str, Any]) -> Rope:
    """Like llama3 with a ramp over the pair's index, and longer vectors.

    Source:
        Peng et al. 2023, YaRN, sections 3.2 to 3.4, with bounds rounded outwards to whole pairs.
    """
    factor, old_len = float(terms["factor"]), float(terms["original_max_position_embeddings"])
    refused = sorted({"mscale", "mscale_all_dim"} & {key for key in terms if terms[key]})
    if refused or terms.get("truncate") is False:
        raise ModelError(f"rope scaling 'yarn' with {refused or 'truncate'} is not supported")

    def pair_with_turns(num_turns: float) -> float:
        return head_dim * math.log(old_len / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair_with_turns(float(terms.get("beta_fast") or 32))), 0)
    last = min(math.ceil(pair_with_turns(float(terms.get("beta_slow") or 1))), head_dim - 1)
    factors = []
    for pair_idx in range(head_dim // 2):
        slowed = min(max((pair_idx - first) / max(last - first, 0.001), 0.0), 1.0)
        factors.append(1.0 / (slowed / factor + 1.0 - slowed))
    default = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    magnitude = float(terms.get("attention_factor") or default)
    return Rope(theta, _as_float32(factors), magnitude)


def _as_float32(factors: list[Any]) -> tuple[float, ...]:
    """Round to what a GGUF file can hold."""
    return tuple(np.array(factors, dtype=np.float32).tolist())
