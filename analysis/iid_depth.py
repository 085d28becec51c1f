"""`depth_rise`: does acceptance rise with depth in the frame?

Guarantees: given its number of refusals and of accepted drafts, every way to fill a request's
rounds counts the same, so that the p-value holds whatever each request's α is. Must never know
where the rounds come from.

Source: DESIGN section 14, table, `depth_rise`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from analysis.iid_bits import drafted
from analysis.iid_compositions import (
    SMALL_BOUND,
    SMALL_SIZE,
    Shape,
    draw_part_counts,
    exact_pair_laws,
    float_pair_laws,
    small_pair_laws,
    table_cost,
)
from analysis.iid_laws import ExactLaw, FloatLaw, Ints, checked_law, summed_result, unpack_counts
from analysis.iid_result import FLOAT_REFUSALS, IidResult, NotApplicable, Rounds

# ((k, rounds that have it), …), refusals, Σa: what the reference set of a request depends on.
DepthKey = tuple[tuple[tuple[int, int], ...], int, int]

MAX_CELLS = 30_000_000  # numbers in one layer of a float64 table: 240 MB
MAX_ADDS = 10_000_000_000
MAX_EXACT_BYTES = 10_000_000_000  # read by all additions of an exact table
MAX_RAGGED_STEPS = 1_000_000  # of the DP where k differs within a request
MAX_DRAWN_LEN = 512  # K, for draws


def triangle(accepted_len: int) -> int:
    """a(a + 1)/2: the depths 1 … a, added up."""
    return accepted_len * (accepted_len + 1) // 2


def depth_key(rounds: Rounds) -> DepthKey:
    """What a request's reference set depends on."""
    limits = Counter(draft_len for draft_len, _ in rounds)
    refusals = sum(accepted_len < draft_len for draft_len, accepted_len in rounds)
    return tuple(sorted(limits.items())), refusals, sum(accepted for _, accepted in rounds)


def depth_rise(
    requests: Sequence[Rounds], num_draws: int | None = None
) -> IidResult | NotApplicable:
    """Σ a(a + 1)/2 over complete rounds, large.

    Reference set per request: all (a_i) with 0 ≤ a_i ≤ k_i, the same Σa and the same number of
    refusals (a_i < k_i), equally likely; requests convolved.

    Args:
        requests: complete rounds of each request; rounds with k = 0 are ignored.
        num_draws: m where draws are needed; None: DESIGN's.
    """
    rounds = sorted(request for request in map(drafted, requests) if request)
    if not rounds:
        return NotApplicable("no complete round")
    keys = sorted(depth_key(request) for request in rounds)
    family = DepthFamily()
    for limits, refusals, accepted in keys:
        steps = _ragged_steps((limits, refusals, accepted))
        if len(limits) > 1 and steps > MAX_RAGGED_STEPS:
            return NotApplicable("draft lengths differ within a request too large to enumerate")
        if refusals > FLOAT_REFUSALS and len(limits) == 1 and limits[0][0] > MAX_DRAWN_LEN:
            return NotApplicable(f"drafts longer than {MAX_DRAWN_LEN} in a request too large")
    observed = sum(triangle(accepted) for request in rounds for _, accepted in request)
    num_rounds = sum(map(len, rounds))
    num_bits = sum(refusals + accepted for _, refusals, accepted in keys)
    return summed_result(
        "depth_rise", family, keys, observed, num_rounds, rounds, num_bits, num_draws
    )


class DepthFamily:
    """Laws of Σ a(a + 1)/2 per request.

    With one K, full rounds add a constant and the refused ones are a bounded composition of
    u = Σa − (full rounds)·K into `refusals` parts: Σ a(a + 1)/2 = u + Σ a(a − 1)/2.
    """

    def refusals(self, key: DepthKey) -> int:
        """Refusals of a request."""
        return key[1]

    def fits_exact(self, keys: Iterable[DepthKey]) -> bool:
        """Whether the additions of every exact table are affordable."""
        for bound, shapes in _shapes_by_bound(keys).items():
            size_bytes = max(parts for parts, _ in shapes) * math.log2(bound + 1) / 8 + 1
            if table_cost(bound, shapes)[1] * size_bytes > MAX_EXACT_BYTES:
                return False
        return True

    def fits_float(self, key: DepthKey) -> bool:
        """Whether a float64 table that reaches this key is affordable."""
        if len(key[0]) > 1:
            return True
        bound, shape, _ = _parts_of(key)
        cells, adds = table_cost(bound, [shape])
        in_range = shape[0] * math.log10(bound) < 290
        return cells <= MAX_CELLS and adds <= MAX_ADDS and in_range

    def exact_laws(self, keys: set[DepthKey]) -> dict[DepthKey, ExactLaw]:
        """Laws in integers, one table for each K."""
        tables = {
            bound: exact_pair_laws(bound, shapes)
            for bound, shapes in _shapes_by_bound(keys).items()
        }
        laws = {}
        for key in keys:
            if len(key[0]) > 1:
                laws[key] = ragged_law(key)
                continue
            bound, shape, constant = _parts_of(key)
            law = tables[bound][shape]
            laws[key] = ExactLaw(law.offset + constant, law.counts)
        return laws

    def float_laws(self, keys: set[DepthKey]) -> dict[DepthKey, FloatLaw]:
        """Laws in float64, one table for each K; integers divided where k differs."""
        tables = {
            bound: _float_table(bound, shapes) for bound, shapes in _shapes_by_bound(keys).items()
        }
        laws = {}
        for key in keys:
            if len(key[0]) > 1:
                law = ragged_law(key)
                members = sum(law.counts)
                weights = np.array([count / members for count in law.counts])
                laws[key] = checked_law(law.offset, weights)
                continue
            bound, shape, constant = _parts_of(key)
            laws[key] = FloatLaw(
                tables[bound][shape].offset + constant, tables[bound][shape].weights
            )
        return laws

    def draw(self, key: DepthKey, generator: np.random.Generator, num_draws: int) -> Ints:
        """Draws for one K: how many refused rounds have each length, uniformly."""
        bound, (num_parts, total), constant = _parts_of(key)
        counts = draw_part_counts(generator, num_parts, total, bound, num_draws)
        lengths = np.arange(bound)
        drawn: Ints = counts @ (lengths * (lengths - 1) // 2) + constant
        return drawn


def _float_table(bound: int, shapes: set[Shape]) -> Mapping[Shape, FloatLaw]:
    """Laws of these shapes, from the shared table if they are small."""
    if bound <= SMALL_BOUND and all(parts + total <= SMALL_SIZE for parts, total in shapes):
        return small_pair_laws(bound)
    return float_pair_laws(bound, shapes)


def _parts_of(key: DepthKey) -> tuple[int, Shape, int]:
    """K, (refusals, sum of the refused lengths) and the constant part of the statistic."""
    ((bound, num_rounds),), refusals, accepted = key
    num_full = num_rounds - refusals
    total = accepted - num_full * bound
    return bound, (refusals, total), num_full * triangle(bound) + total


def _shapes_by_bound(keys: Iterable[DepthKey]) -> dict[int, set[Shape]]:
    shapes: dict[int, set[Shape]] = {}
    for key in keys:
        if len(key[0]) == 1:
            bound, shape, _ = _parts_of(key)
            shapes.setdefault(bound, set()).add(shape)
    return shapes


def _ragged_steps(key: DepthKey) -> int:
    limits, refusals, accepted = key
    num_rounds = sum(count for _, count in limits)
    longest = max(draft_len for draft_len, _ in limits)
    return num_rounds * (refusals + 1) * (accepted + 1) * (longest + 1)


def ragged_law(key: DepthKey) -> ExactLaw:
    """The law where k differs within a request: DP over (refusals, Σa), statistics packed."""
    limits, refusals, accepted = key
    ways = math.prod((draft_len + 1) ** count for draft_len, count in limits)
    size_bytes = ways.bit_length() // 8 + 1
    states = {(0, 0): 1}
    for draft_len in (k for k, count in limits for _ in range(count)):
        following: dict[tuple[int, int], int] = {}
        for (refused, total), packed in states.items():
            for length in range(min(draft_len, accepted - total) + 1):
                state = (refused + (length < draft_len), total + length)
                if state[0] <= refusals:
                    shifted = packed << (8 * size_bytes * triangle(length))
                    following[state] = following.get(state, 0) + shifted
        states = following
    packed = states[refusals, accepted]
    num_counts = (packed.bit_length() - 1) // (8 * size_bytes) + 1
    return ExactLaw(0, unpack_counts(packed, size_bytes, num_counts))
