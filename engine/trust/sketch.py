"""Short random projections of hidden states: enough to compare two computations of a position.

A position's sketch is its states times a matrix of random signs, over the square root of the number
of signs. Sketches are linear, and the mean square of one is the squared length of what it is of, so
the length of a difference of sketches estimates that of the states' difference, whichever of them
differ: nothing hides between sampled coordinates. Guarantees: signs depend on a secret seed, the
stage and the absolute position only, and are the same on every machine and in every chunking.
Must never know frames or layers.

Source: D. Achlioptas, "Database-friendly random projections", JCSS 66 (2003): of signs, the upper
tail is no heavier than a normal projection's, and E exp(-hX²) ≤ 1 - h + 3h²/2 bounds the lower one.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch

NUM_SIGNS = 128  # numbers of a position's sketch; the two bounds below are for so many
SEED_LEN = 32
_DOMAIN = b"longhaul-sketch/1"
_BITS = 8

Floats = npt.NDArray[np.float64]


def sketch(states: torch.Tensor, seed: bytes, stage_idx: int, start: int) -> Floats:
    """Project every position with signs of its own.

    Args:
        states: what a stage sent, of consecutive positions.
        start: absolute position of the first row.

    Shapes:
        states: [T, H] float32 -> [T, NUM_SIGNS]
    """
    rows = states.to(torch.float64).numpy()
    projected = [
        _signs(seed, stage_idx, start + idx, row.size) @ row for idx, row in enumerate(rows)
    ]
    return np.array(projected).reshape(len(rows), NUM_SIGNS) / math.sqrt(NUM_SIGNS)


def relative_errors(claimed: Floats, own: Floats, own_states: torch.Tensor) -> Floats:
    """How far claimed states are from one's own, over the length of one's own, each position.

    Shapes:
        claimed, own: [T, NUM_SIGNS]; own_states: [T, H] -> [T]; not finite where a claim is not
    """
    lengths = own_states.to(torch.float64).norm(dim=1).numpy()
    distances = np.linalg.norm(claimed - own, axis=1)
    with np.errstate(over="ignore"):  # to infinity, which is no pass
        ratios = distances / np.maximum(lengths, np.finfo(np.float64).tiny)
    return np.where(distances == 0, 0.0, ratios)


def false_alarm_bound(ratio: float) -> float:
    """Chance, at most, that a true error shows as `ratio` > 1 times itself or more."""
    square = ratio * ratio
    return math.exp(-NUM_SIGNS / 2 * (square - 1 - math.log(square)))


def miss_bound(ratio: float) -> float:
    """Chance, at most, that a true error shows as one `ratio` > 1 times smaller or more."""
    square = 1 / (ratio * ratio)
    h = _best_h(square)
    return (math.exp(h * square) * (1 - h + 1.5 * h * h)) ** NUM_SIGNS


def _best_h(square: float) -> float:
    """Where exp(h square) (1 - h + 3h²/2) is least: the smaller root of its derivative."""
    # square (1 - h + 1.5 h²) - 1 + 3h = 0
    a, b, c = 1.5 * square, 3 - square, square - 1
    return (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)


def _signs(seed: bytes, stage_idx: int, position: int, width: int) -> Floats:
    """[NUM_SIGNS, width] of ±1, from an extendable hash: no generator of any library or device."""
    place = stage_idx.to_bytes(4, "big") + position.to_bytes(8, "big")
    stream = hashlib.shake_256(_DOMAIN + seed + place).digest(-(-NUM_SIGNS * width // _BITS))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8))[: NUM_SIGNS * width]
    return bits.reshape(NUM_SIGNS, width).astype(np.float64) * 2 - 1
