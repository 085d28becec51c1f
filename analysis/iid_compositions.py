"""Bounded compositions: R numbers from 0 … K − 1 with a given sum, all equally likely.

Guarantees: counted exactly; the law of Σ a(a − 1)/2 over them in integers or in float64 by
non-negative adds, one table for every (R, sum) that is asked for; drawn exactly at any size. Must
never know rounds or requests.

Source: DESIGN section 14, `depth_rise` and `full_excess`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np
from scipy import optimize, stats

from analysis.iid_laws import ExactLaw, FloatLaw, Floats, Ints, checked_law, unpack_counts

# (number of parts R, their sum)
Shape = tuple[int, int]
SMALL_SIZE, SMALL_BOUND = 128, 16  # of the shared table: R + sum, and K


def num_compositions(num_parts: int, total: int, bound: int) -> int:
    """N_q(u) = Σ_j (−1)^j C(q, j) C(u − jK + q − 1, q − 1): q parts in 0 … K − 1 that sum to u."""
    if num_parts == 0 or total < 0 or total > num_parts * (bound - 1):
        return int(num_parts == 0 and total == 0)
    return sum(
        (-1) ** idx
        * math.comb(num_parts, idx)
        * math.comb(total - idx * bound + num_parts - 1, num_parts - 1)
        for idx in range(min(num_parts, total // bound) + 1)
    )


def pair_count(part: int) -> int:
    """a(a − 1)/2."""
    return part * (part - 1) // 2


def pair_extremes(num_parts: int, total: int, bound: int) -> tuple[int, int]:
    """Least and greatest Σ a(a − 1)/2: parts as even, and as uneven, as can be."""
    if num_parts == 0 or bound == 1:
        return 0, 0
    even, num_larger = divmod(total, num_parts)
    num_full, rest = divmod(total, bound - 1)
    least = num_parts * pair_count(even) + num_larger * even
    return least, num_full * pair_count(bound - 1) + pair_count(rest)


def table_cost(bound: int, shapes: Iterable[Shape]) -> tuple[int, int]:
    """(numbers in one layer, additions in all layers) of the table for these shapes, at most."""
    num_parts = max((parts for parts, _ in shapes), default=0)
    total = max((total for _, total in shapes), default=0)
    width = 1 + pair_extremes(num_parts, total, bound)[1]
    cells = (total + 1) * width // 2 + width
    return cells, cells * num_parts * min(bound, total + 1)


def exact_pair_laws(bound: int, shapes: set[Shape]) -> dict[Shape, ExactLaw]:
    """Σ a(a − 1)/2 over all bounded compositions, counted.

    Each row of the table, one a (parts, sum), is one integer that holds its counts side by side.
    """
    most = max((parts for parts, _ in shapes), default=0)
    size_bytes = (bound**most).bit_length() // 8 + 1
    rows, laws = {0: (0, 1)}, {}
    for num_parts, totals in _layers(bound, shapes):
        layer = {}
        for total in totals:
            offset = pair_extremes(num_parts, total, bound)[0]
            packed = 0
            for part in range(min(bound, total + 1)):
                if total - part in rows:
                    start, row = rows[total - part]
                    packed += row << (8 * size_bytes * (start + pair_count(part) - offset))
            layer[total] = (offset, packed)
        rows = layer
        for total in rows.keys() & {total for parts, total in shapes if parts == num_parts}:
            least, greatest = pair_extremes(num_parts, total, bound)
            counts = unpack_counts(rows[total][1], size_bytes, greatest - least + 1)
            assert sum(counts) == num_compositions(num_parts, total, bound)
            laws[num_parts, total] = ExactLaw(least, counts)
    return laws | {shape: ExactLaw(0, [1]) for shape in shapes if shape[0] == 0}


def float_pair_laws(bound: int, shapes: set[Shape]) -> dict[Shape, FloatLaw]:
    """As `exact_pair_laws`, in float64; every law is checked against the exact number of members.

    Rows hold count / K^R, so that nothing overflows.
    """
    rows, laws = {0: (0, np.ones(1))}, {}
    for num_parts, totals in _layers(bound, shapes):
        layer = {}
        for total in totals:
            least, greatest = pair_extremes(num_parts, total, bound)
            row = np.zeros(greatest - least + 1)
            for part in range(min(bound, total + 1)):
                if total - part in rows:
                    start, previous = rows[total - part]
                    start += pair_count(part) - least
                    row[start : start + len(previous)] += previous
            row /= bound
            layer[total] = (least, row)
        rows = layer
        for total in rows.keys() & {total for parts, total in shapes if parts == num_parts}:
            members = num_compositions(num_parts, total, bound) / bound**num_parts
            laws[num_parts, total] = checked_law(rows[total][0], rows[total][1] / members)
    return laws | {shape: FloatLaw(0, np.ones(1)) for shape in shapes if shape[0] == 0}


@lru_cache(maxsize=4)
def small_pair_laws(bound: int) -> Mapping[Shape, FloatLaw]:
    """The laws of every shape whose parts and sum are SMALL_SIZE together, at most.

    One table for all studies of requests so short: simulations look thousands of them up.
    """
    shapes = {
        (num_parts, total)
        for num_parts in range(SMALL_SIZE + 1)
        for total in range(min(num_parts * (bound - 1), SMALL_SIZE - num_parts) + 1)
    }
    return float_pair_laws(bound, shapes)


def _layers(bound: int, shapes: set[Shape]) -> Iterator[tuple[int, range]]:
    """For each number of parts, the sums from which a shape that is asked for can be reached."""
    most = max((parts for parts, _ in shapes), default=0)
    spans = []
    low, high = most * bound, 0
    for num_parts in range(most, 0, -1):
        asked = [total for parts, total in shapes if parts == num_parts]
        low = max(0, min([low - (bound - 1), *asked]))
        high = max([high, *asked])
        spans.append((num_parts, range(low, min(high, num_parts * (bound - 1)) + 1)))
    yield from reversed(spans)


def composition_rows(bound: int, num_parts: int, max_total: int) -> list[Floats]:
    """`rows[q][u]` = N_q(u) / K^q for q ≤ num_parts, u ≤ max_total, by non-negative adds."""
    rows = [np.ones(1)]
    for _ in range(num_parts):
        rows.append(np.convolve(rows[-1], np.full(bound, 1 / bound))[: max_total + 1])
    return rows


def tilted_weights(bound: int, mean: float) -> Floats:
    """Weights x^a / Σ x^a over a = 0 … K − 1 with the given mean, 0 < mean ≤ (K − 1)/2."""
    parts = np.arange(bound)

    def excess(log_ratio: float) -> float:
        weights = np.exp(log_ratio * parts)
        return float(weights @ parts / weights.sum() - mean)

    log_ratio = optimize.brentq(excess, math.log(mean / (1 + mean)) - 1e-9, 1e-9)
    weights: Floats = np.exp(log_ratio * parts)
    weights /= weights.sum()
    return weights


def draw_part_counts(
    generator: np.random.Generator, num_parts: int, total: int, bound: int, num_draws: int
) -> Ints:
    """How many parts equal 0, 1, …, K − 1 in uniformly drawn bounded compositions.

    Given (R, sum), independent parts with tilted weights are uniform compositions. The number M
    of parts below 2 is drawn first, then the others; the sum leaves one value for the number of
    ones, kept with probability Bin(M, ρ)(ones) / max Bin(M, ρ). M is drawn from
    Bin(R, ·)(M) · max Bin(M, ρ), so that what is kept has exactly the conditional law.

    Shapes: returns [num_draws, bound].

    Source: DeSalvo 2018, probabilistic divide-and-conquer, deterministic second half.
    """
    if 2 * total > num_parts * (bound - 1):  # mirror: a ↔ K − 1 − a
        mirrored = num_parts * (bound - 1) - total
        return draw_part_counts(generator, num_parts, mirrored, bound, num_draws)[:, ::-1]
    kept = np.zeros((num_draws, bound), dtype=np.int64)
    kept[:, 0] = num_parts - total
    if bound > 1:
        kept[:, 1] = total
    if total == 0 or bound <= 2:
        return kept
    weights = tilted_weights(bound, total / num_parts)
    low_share, one_share = weights[0] + weights[1], weights[1] / (weights[0] + weights[1])
    lows = np.arange(num_parts + 1)
    best = stats.binom.pmf(np.floor((lows + 1) * one_share).clip(max=lows), lows, one_share)
    cumulative = np.cumsum(stats.binom.pmf(lows, num_parts, low_share) * best)
    num_kept, batch = 0, max(1_000, num_draws)
    while num_kept < num_draws:
        uniform = generator.random(batch) * cumulative[-1]
        low = np.searchsorted(cumulative, uniform, side="right").clip(max=num_parts)
        high = generator.multinomial(num_parts - low, weights[2:] / weights[2:].sum())
        ones = total - high @ np.arange(2, bound)
        chance = stats.binom.pmf(ones, low, one_share) / best[low]
        good = np.flatnonzero(generator.random(batch) < chance)[: num_draws - num_kept]
        block = np.column_stack([low - ones, ones, high])[good]
        kept[num_kept : num_kept + len(block)] = block
        num_kept += len(block)
    return kept
