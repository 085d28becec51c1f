"""Laws of integer statistics, and the tail of a sum over independent requests.

Guarantees: exact counts stay integers to the last; float64 laws come from non-negative adds and
are checked to sum to 1 before and after they are merged. Must never know which statistic it is.

Source: DESIGN section 14, "Sizes".
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from analysis.iid_result import (
    EXACT_REFUSALS,
    EXACT_ROUNDS,
    FLOAT_REFUSALS,
    SUM_TOLERANCE,
    IidResult,
    drawn_result,
    draws_for,
    exact_result,
    float_result,
    seeded_generator,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DIRECT_LEN = 128  # below it, convolving directly is as quick as by FFT
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ExactLaw:
    """`counts[i]` members of the reference set have statistic offset + i."""

    offset: int
    counts: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class FloatLaw:
    """The statistic is offset + i with probability `weights[i]`."""

    offset: int
    weights: Floats


class Family(Protocol[Key]):
    """The laws of one statistic, by what its reference set depends on."""

    def refusals(self, key: Key) -> int:
        """Refusals of a request with this key."""

    def fits_exact(self, keys: Iterable[Key]) -> bool:
        """Whether integers are affordable, within the limits of DESIGN section 14."""

    def fits_float(self, key: Key) -> bool:
        """Whether float64 is affordable, within the limits of DESIGN section 14."""

    def exact_laws(self, keys: set[Key]) -> dict[Key, ExactLaw]:
        """Laws in integers."""

    def float_laws(self, keys: set[Key]) -> dict[Key, FloatLaw]:
        """Laws in float64."""

    def draw(self, key: Key, generator: np.random.Generator, num_draws: int) -> Ints:
        """Independent draws of the statistic; Shapes: [num_draws]."""


def summed_result(
    test: str,
    family: Family[Key],
    keys: Sequence[Key],
    observed: int,
    num_rounds: int,
    canonical: object,
    num_bits: int,
    num_draws: int | None,
) -> IidResult:
    """P(statistic summed over independent requests ≥ observed), by the method that sizes allow.

    Args:
        keys: sorted, one a request, so that the order of requests changes nothing.
        canonical: the requests, sorted, as the test takes them: what draws are seeded with.
        num_draws: m of a Monte Carlo p-value; None: DESIGN's.
    """
    most = max(family.refusals(key) for key in keys)
    distinct = set(keys)
    if num_rounds <= EXACT_ROUNDS and most <= EXACT_REFUSALS and family.fits_exact(distinct):
        exact_laws = family.exact_laws(distinct)
        return exact_result(observed, exact_tail([exact_laws[key] for key in keys], observed))
    small = [
        key for key in keys if family.refusals(key) <= FLOAT_REFUSALS and family.fits_float(key)
    ]
    float_laws = family.float_laws(set(small))
    merged = merge_floats([float_laws[key] for key in small])
    if len(small) == len(keys):
        return float_result(observed, float_tail(merged, observed))
    num_draws = draws_for(num_bits) if num_draws is None else num_draws
    generator = seeded_generator(test, canonical)
    drawn = draw_from(merged, generator, num_draws)
    for key in keys:
        if key not in float_laws:
            drawn += family.draw(key, generator, num_draws)
    return drawn_result(observed, int(np.count_nonzero(drawn >= observed)), num_draws)


def negated(law: ExactLaw) -> ExactLaw:
    """The law of −statistic, which turns 'few' into 'large'."""
    return ExactLaw(-(law.offset + len(law.counts) - 1), law.counts[::-1])


def convolve_counts(left: list[int], right: list[int]) -> list[int]:
    """Exact convolution: both packed into one integer each, multiplied, unpacked (Kronecker)."""
    if min(len(left), len(right)) == 1:
        scale = left[0] if len(left) == 1 else right[0]
        return [scale * count for count in (right if len(left) == 1 else left)]
    size_bytes = (sum(left) * sum(right)).bit_length() // 8 + 1
    product = pack_counts(left, size_bytes) * pack_counts(right, size_bytes)
    return unpack_counts(product, size_bytes, len(left) + len(right) - 1)


def pack_counts(counts: list[int], size_bytes: int) -> int:
    """Σ counts[i] · 256^(i · size_bytes)."""
    return int.from_bytes(b"".join(c.to_bytes(size_bytes, "little") for c in counts), "little")


def unpack_counts(packed: int, size_bytes: int, num_counts: int) -> list[int]:
    """Inverse of `pack_counts`."""
    body = packed.to_bytes(size_bytes * num_counts, "little")
    starts = range(0, size_bytes * num_counts, size_bytes)
    return [int.from_bytes(body[start : start + size_bytes], "little") for start in starts]


def exact_tail(laws: Sequence[ExactLaw], at_least: int) -> Fraction:
    """P(Σ statistics ≥ at_least), one law a request."""
    queue = sorted(laws, key=lambda law: len(law.counts)) or [ExactLaw(0, [1])]
    total = math.prod(sum(law.counts) for law in queue)
    while len(queue) > 2:
        left, right = queue.pop(0), queue.pop(0)
        merged = convolve_counts(left.counts, right.counts)
        queue.append(ExactLaw(left.offset + right.offset, merged))
        queue.sort(key=lambda law: len(law.counts))
    last = queue.pop()
    first = queue.pop() if queue else ExactLaw(0, [1])
    tails = [0] * (len(last.counts) + 1)
    for idx in range(len(last.counts) - 1, -1, -1):
        tails[idx] = tails[idx + 1] + last.counts[idx]
    needed = at_least - first.offset - last.offset
    reached = sum(
        count * tails[min(max(needed - idx, 0), len(last.counts))]
        for idx, count in enumerate(first.counts)
    )
    return Fraction(reached, total)


def checked_law(offset: int, weights: Floats) -> FloatLaw:
    """A float64 law whose weights must sum to 1.

    Raises:
        AssertionError: they do not.
    """
    total = float(weights.sum())
    assert abs(total - 1) < SUM_TOLERANCE, f"law sums to {total!r}"
    return FloatLaw(offset, weights)


def merge_floats(laws: Sequence[FloatLaw]) -> FloatLaw:
    """The law of the sum of independent statistics: neighbours merged, then their mergers, …"""
    level = list(laws) or [FloatLaw(0, np.ones(1))]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        odd = level[-1:] if len(level) % 2 else []
        level = [_merged(left, right) for left, right in pairs] + odd
    return checked_law(level[0].offset, level[0].weights)


def _merged(left: FloatLaw, right: FloatLaw) -> FloatLaw:
    if min(len(left.weights), len(right.weights)) <= DIRECT_LEN:
        weights = np.convolve(left.weights, right.weights)
    else:
        full_len = len(left.weights) + len(right.weights) - 1
        size = fft.next_fast_len(full_len, real=True)
        product = fft.rfft(left.weights, size) * fft.rfft(right.weights, size)
        weights = np.maximum(fft.irfft(product, size)[:full_len], 0.0)
    return FloatLaw(left.offset + right.offset, weights)


def float_tail(law: FloatLaw, at_least: int) -> float:
    """P(statistic ≥ at_least)."""
    return float(law.weights[max(0, at_least - law.offset) :].sum())


def draw_from(law: FloatLaw, generator: np.random.Generator, num_draws: int) -> Ints:
    """Draws by inversion; Shapes: [num_draws]."""
    if len(law.weights) == 1:
        return np.full(num_draws, law.offset, dtype=np.int64)
    cumulative = np.cumsum(law.weights)
    chosen = np.searchsorted(cumulative, generator.random(num_draws) * cumulative[-1], side="right")
    drawn: Ints = np.minimum(chosen, len(cumulative) - 1).astype(np.int64) + law.offset
    return drawn
