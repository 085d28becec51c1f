"""`between_requests`: do requests differ in α?

Guarantees: given the pooled bits and how many each request has, every order of the pool counts the
same. Must never know where the bits come from.

Source: DESIGN section 14, table, `between_requests`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from scipy import stats

from analysis.iid_laws import Ints
from analysis.iid_result import (
    Bits,
    IidResult,
    NotApplicable,
    drawn_until,
    draws_for,
    exact_result,
    seeded_generator,
)

EXACT_BITS = 200
MAX_EXACT_STEPS = 1_000_000  # of the DP; lengths without a common factor have many statistics
TIE_MARGIN = 1e-9  # relative; draws this close below the observed statistic count as ties
BATCH_LEN = 12_000_000  # numbers drawn at once


def between_requests(
    requests: Sequence[Bits], num_draws: int | None = None, enough: int | None = None
) -> IidResult | NotApplicable:
    """Σ_r x_r² / n_r, x_r the ones among the n_r bits of request r, large.

    Reference set: all orders of the pooled bits, dealt to requests of these lengths. Up to 200
    bits by DP over Σx and the statistic, unless its values are too many; else drawn.

    Args:
        requests: bits of each request, 1 accepted, 0 refused.
        num_draws: m where draws are needed; None: DESIGN's.
        enough: see `drawn_until`.
    """
    streams = sorted((list(bits) for bits in requests if len(bits)), key=_by_length)
    pairs = [(len(bits), sum(bits)) for bits in streams]
    if not pairs:
        return NotApplicable("no tested bit")
    lengths, ones = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    num_bits, num_ones = sum(lengths), sum(ones)
    scale = math.lcm(*lengths)
    scaled = sum(x * x * (scale // n) for n, x in pairs)
    if len(pairs) == 1 or num_ones in (0, num_bits):  # one member, or all alike
        return exact_result(Fraction(scaled, scale), Fraction(1))
    if num_bits <= EXACT_BITS:
        tail = exact_between_tail(lengths, num_ones, scale, scaled)
        if tail is not None:
            return exact_result(Fraction(scaled, scale), tail)
    num_draws = draws_for(num_bits) if num_draws is None else num_draws
    generator = seeded_generator("between_requests", sorted(streams))
    observed = scaled / scale
    inverse = 1 / np.array(lengths)

    def num_extreme(num_now: int) -> int:
        count = 0
        for drawn in draw_deals(generator, lengths, num_ones, num_now):
            reached = np.square(drawn, dtype=np.float64) @ inverse
            count += int(np.count_nonzero(reached >= observed * (1 - TIE_MARGIN)))
        return count

    return drawn_until(observed, num_extreme, num_draws, enough)


def _by_length(bits: Bits) -> tuple[int, Bits]:
    return len(bits), bits


def exact_between_tail(
    lengths: Sequence[int], num_ones: int, scale: int, scaled: int
) -> Fraction | None:
    """P(Σ x_r² · scale / n_r ≥ scaled); None: too many different statistics.

    One DP over each half of the requests, joined where their ones add up to the pool's.
    """
    halves = [_dealt_states(half, num_ones, scale) for half in (lengths[::2], lengths[1::2])]
    if halves[0] is None or halves[1] is None:
        return None
    # Of the second half, by its ones: statistics in order, and ways to reach at least each.
    reached: dict[int, list[int]] = {}
    ways_from: dict[int, list[int]] = {}
    for dealt, statistic in sorted(halves[1], reverse=True):
        statistics = reached.setdefault(dealt, [])
        tails = ways_from.setdefault(dealt, [0])
        statistics.append(-statistic)
        tails.append(tails[-1] + halves[1][dealt, statistic])
    extreme = 0
    for (dealt, statistic), count in halves[0].items():
        others = reached.get(num_ones - dealt)
        if others is not None:
            num_extreme = bisect_right(others, statistic - scaled)
            extreme += count * ways_from[num_ones - dealt][num_extreme]
    return Fraction(extreme, math.comb(sum(lengths), num_ones))


def _dealt_states(
    lengths: Sequence[int], num_ones: int, scale: int
) -> dict[tuple[int, int], int] | None:
    """(ones dealt, statistic so far) -> ways, Π C(n_r, x_r); None: too many."""
    states: dict[tuple[int, int], int] = {(0, 0): 1}
    num_steps = 0
    for length in lengths:
        num_steps += len(states) * (length + 1)
        if num_steps > MAX_EXACT_STEPS:
            return None
        following: dict[tuple[int, int], int] = {}
        for x in range(length + 1):
            ways, more = math.comb(length, x), x * x * (scale // length)
            for (dealt, statistic), count in states.items():
                if dealt + x <= num_ones:
                    state = (dealt + x, statistic + more)
                    following[state] = following.get(state, 0) + count * ways
        states = following
    return states


def draw_deals(
    generator: np.random.Generator, lengths: Sequence[int], num_ones: int, num_draws: int
) -> Iterator[Ints]:
    """Ones per request when the pooled bits are dealt in random order.

    Independent bits are drawn first; then bits picked at random are turned over until the pool has
    its number of ones. Given its size a random set of ones is uniform, and stays so when a random
    member leaves or a random other bit joins.

    Args:
        lengths: sorted.

    Shapes: yields [draws at once, requests].
    """
    num_bits = sum(lengths)
    rate = num_ones / num_bits
    # Requests of one length stand side by side and are drawn together.
    groups = [(n, lengths.index(n), lengths.count(n)) for n in sorted(set(lengths))]
    laws = [stats.binom.cdf(np.arange(n + 1), n, rate) for n, _, _ in groups]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    sizes = np.array(lengths)
    at_once = max(1, BATCH_LEN // len(lengths))
    for start in range(0, num_draws, at_once):
        num_now = min(at_once, num_draws - start)
        drawn = np.empty((num_now, len(lengths)), dtype=np.int64)
        for (length, first, count), law in zip(groups, laws, strict=True):
            uniform = generator.random((num_now, count)) * law[-1]
            ones = np.searchsorted(law, uniform, side="right").clip(max=length)
            drawn[:, first : first + count] = ones
        _turn_over(generator, drawn, num_ones, owner, sizes)
        yield drawn


def _turn_over(
    generator: np.random.Generator,
    drawn: Ints,
    num_ones: int,
    owner: Ints,
    sizes: Ints,
) -> None:
    """Turn random bits of each row of `drawn` over, in place, until it has `num_ones` ones."""
    surplus = drawn.sum(axis=1, dtype=np.int64) - num_ones
    rows = np.flatnonzero(surplus)
    while len(rows):
        picked = owner[generator.integers(len(owner), size=len(rows))]
        is_one = generator.random(len(rows)) * sizes[picked] < drawn[rows, picked]
        step = np.sign(surplus[rows]) * (is_one == (surplus[rows] > 0))
        drawn[rows, picked] -= step.astype(drawn.dtype)
        surplus[rows] -= step
        rows = rows[surplus[rows] != 0]
