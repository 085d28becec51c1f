"""`serial_product`: do long rounds follow long rounds?

Guarantees: given a request's complete rounds, every order of them counts the same. Must never know
where the rounds come from.

Source: DESIGN section 14, table, `serial_product`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from analysis.iid_bits import drafted
from analysis.iid_laws import ExactLaw, Ints, exact_tail, unpack_counts
from analysis.iid_result import (
    EXACT_ROUNDS,
    IidResult,
    NotApplicable,
    Rounds,
    drawn_until,
    draws_for,
    exact_result,
    seeded_generator,
)

MAX_EXACT_STEPS = 50_000  # of the DP over all requests
BATCH_LEN = 2_000_000  # rounds shuffled at once

Lengths = tuple[int, ...]


def adjacent_products(lengths: Sequence[int]) -> int:
    """Σ a_i a_{i+1}."""
    return sum(left * right for left, right in pairwise(lengths))


def serial_product(
    requests: Sequence[Rounds], num_draws: int | None = None, enough: int | None = None
) -> IidResult | NotApplicable:
    """Σ a_i a_{i+1} over neighbouring complete rounds, large.

    Reference set per request: all orders of its complete rounds; exact where small, else drawn.

    Args:
        requests: complete rounds of each request; rounds with k = 0 are ignored.
        num_draws: m where draws are needed; None: DESIGN's.
        enough: see `drawn_until`.
    """
    rounds = sorted(request for request in map(drafted, requests) if request)
    if not rounds:
        return NotApplicable("no complete round")
    lengths = [tuple(accepted for _, accepted in request) for request in rounds]
    observed = sum(map(adjacent_products, lengths))
    # The order of a request's rounds is what is tested; its reference set knows their values only.
    keys = sorted(tuple(sorted(request)) for request in lengths)
    num_rounds = sum(map(len, keys))
    if num_rounds <= EXACT_ROUNDS and sum(map(_exact_steps, keys)) <= MAX_EXACT_STEPS:
        laws = {key: orders_law(key) for key in set(keys)}
        return exact_result(observed, exact_tail([laws[key] for key in keys], observed))
    if num_draws is None:
        num_draws = draws_for(sum(a + (a < k) for request in rounds for k, a in request))
    generator = seeded_generator("serial_product", rounds)
    matrices = list(_equal_lengths(keys))

    def num_extreme(num_now: int) -> int:
        drawn = np.zeros(num_now, dtype=np.int64)
        for rows in matrices:
            drawn += draw_products(rows, generator, num_now)
        return int(np.count_nonzero(drawn >= observed))

    return drawn_until(observed, num_extreme, num_draws, enough)


def orders_law(lengths: Lengths) -> ExactLaw:
    """Σ a_i a_{i+1} over all distinct orders, counted: DP over (values left, last value)."""
    values, totals = zip(*sorted(Counter(lengths).items()), strict=True)
    orders = math.factorial(len(lengths)) // math.prod(map(math.factorial, totals))
    size_bytes = orders.bit_length() // 8 + 1
    states: dict[tuple[tuple[int, ...], int], int] = {(totals, 0): 1}
    for _ in lengths:
        following: dict[tuple[tuple[int, ...], int], int] = {}
        for (left, last), packed in states.items():
            for idx, value in enumerate(values):
                if left[idx]:
                    state = ((*left[:idx], left[idx] - 1, *left[idx + 1 :]), value)
                    shifted = packed << (8 * size_bytes * last * value)
                    following[state] = following.get(state, 0) + shifted
        states = following
    packed = sum(states.values())
    num_counts = (packed.bit_length() - 1) // (8 * size_bytes) + 1
    return ExactLaw(0, unpack_counts(packed, size_bytes, num_counts))


def draw_products(rows: Ints, generator: np.random.Generator, num_draws: int) -> Ints:
    """Σ a_i a_{i+1} of independently shuffled requests, summed.

    Shapes: rows [requests, rounds]; returns [num_draws].
    """
    num_requests, num_rounds = rows.shape
    drawn = np.zeros(num_draws, dtype=np.int64)
    if num_rounds < 2 or not rows.any():
        return drawn
    at_once = max(1, BATCH_LEN // rows.size)
    for start in range(0, num_draws, at_once):
        num_now = min(at_once, num_draws - start)
        shuffled = generator.permuted(np.tile(rows, (num_now, 1)), axis=1)
        products = np.einsum("ij,ij->i", shuffled[:, :-1], shuffled[:, 1:])
        drawn[start : start + num_now] = products.reshape(num_now, num_requests).sum(axis=1)
    return drawn


def _equal_lengths(keys: Sequence[Lengths]) -> Iterator[Ints]:
    """Requests with equally many rounds as one matrix, shorter ones first."""
    groups: dict[int, list[Lengths]] = {}
    for key in keys:
        groups.setdefault(len(key), []).append(key)
    for num_rounds in sorted(groups):
        yield np.array(groups[num_rounds], dtype=np.int64)


def _exact_steps(lengths: Lengths) -> int:
    totals = Counter(lengths).values()
    return math.prod(total + 1 for total in totals) * len(totals) ** 2
