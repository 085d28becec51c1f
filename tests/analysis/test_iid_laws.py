"""Float64 laws, merging and draws against exact integers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.iid import (
    IidResult,
    NotApplicable,
    between_requests,
    depth_rise,
    full_excess,
    serial_product,
    stream_runs,
)
from analysis.iid_between import draw_deals, exact_between_tail
from analysis.iid_compositions import (
    draw_part_counts,
    exact_pair_laws,
    float_pair_laws,
    num_compositions,
)
from analysis.iid_depth import DepthFamily, DepthKey
from analysis.iid_laws import (
    ExactLaw,
    Family,
    FloatLaw,
    checked_law,
    convolve_counts,
    draw_from,
    exact_tail,
    float_tail,
    merge_floats,
    summed_result,
)
from analysis.iid_orders import draw_products, orders_law
from analysis.iid_result import FLOAT_METHOD, draws_for, seeded_generator
from analysis.iid_streams import FullFamily, RunsFamily, StreamKey

laws = st.builds(
    ExactLaw,
    st.integers(-20, 20),
    st.lists(st.integers(0, 2**70), min_size=1, max_size=12).filter(any),
)


def as_float(law: ExactLaw) -> FloatLaw:
    members = sum(law.counts)
    return checked_law(law.offset, np.array([count / members for count in law.counts]))


def drawn_share_fits(draws: np.ndarray, law: ExactLaw) -> bool:
    """Whether drawn frequencies fit a law: chi-square at 1e-6 over cells with ≥ 10 expected."""
    members = sum(law.counts)
    seen = Counter(draws.tolist())
    pooled_seen = pooled_expected = chi = 0.0
    cells = 0
    assert all(0 <= value - law.offset < len(law.counts) for value in seen)
    for idx, count in enumerate(law.counts):
        expected = len(draws) * count / members
        found = seen[law.offset + idx]
        assert count or not found
        if expected < 10:
            pooled_seen, pooled_expected = pooled_seen + found, pooled_expected + expected
            continue
        chi += (found - expected) ** 2 / expected
        cells += 1
    if pooled_expected > 10:
        chi += (pooled_seen - pooled_expected) ** 2 / pooled_expected
        cells += 1
    return cells < 2 or bool(stats.chi2.sf(chi, cells - 1) > 1e-6)


@given(st.lists(laws, min_size=1, max_size=4), st.integers(-60, 90))
def test_merging_is_convolving(many: list[ExactLaw], at_least: int) -> None:
    """Catches a merge that is not the law of the sum, exact or in float64."""
    counts, offset = [1], 0
    for law in many:
        merged = [0] * (len(counts) + len(law.counts) - 1)
        for left, right in itertools.product(range(len(counts)), range(len(law.counts))):
            merged[left + right] += counts[left] * law.counts[right]
        counts, offset = merged, offset + law.offset
    reached = sum(count for idx, count in enumerate(counts) if offset + idx >= at_least)
    expected = Fraction(reached, sum(counts))
    assert exact_tail(many, at_least) == expected
    merged_floats = merge_floats([as_float(law) for law in many])
    assert float_tail(merged_floats, at_least) == pytest.approx(float(expected), abs=1e-12)


@given(st.integers(1, 400), st.integers(129, 400), st.integers(0, 2**32))
@settings(max_examples=30)
def test_fft_merging_is_convolving(left_len: int, right_len: int, seed: int) -> None:
    """Catches a wrapped or shifted FFT product."""
    generator = np.random.default_rng(seed)
    left, right = generator.random(left_len), generator.random(right_len)
    left, right = left / left.sum(), right / right.sum()
    merged = merge_floats([FloatLaw(3, left), FloatLaw(-5, right)])
    assert merged.offset == -2
    assert np.allclose(merged.weights, np.convolve(left, right), rtol=0, atol=1e-14)


def test_large_counts_convolve_exactly() -> None:
    """Catches digits of neighbouring counts that run into each other."""
    left, right = [2**200, 0, 3], [7, 2**100]
    assert convolve_counts(left, right) == [7 * 2**200, 2**300, 21, 3 * 2**100]
    assert convolve_counts([5], left) == [5 * count for count in left]


def test_a_law_that_lost_mass_is_refused() -> None:
    """Catches the assertion of DESIGN section 14 gone missing."""
    with pytest.raises(AssertionError, match="sums to"):
        checked_law(0, np.array([0.5, 0.5 - 1e-9]))


def test_compositions_are_counted_and_summed() -> None:
    """Catches a wrong N_q(u) or a wrong law of Σ a(a − 1)/2, exact and in float64."""
    for bound, num_parts in itertools.product((1, 2, 3, 5), range(5)):
        listed: dict[int, Counter[int]] = {}
        for parts in itertools.product(range(bound), repeat=num_parts):
            pairs = sum(part * (part - 1) // 2 for part in parts)
            listed.setdefault(sum(parts), Counter())[pairs] += 1
        shapes = {(num_parts, total) for total in listed}
        exact, floats = exact_pair_laws(bound, shapes), float_pair_laws(bound, shapes)
        assert num_compositions(num_parts, max(listed) + 1, bound) == 0
        for total, law in listed.items():
            found = exact[num_parts, total]
            assert num_compositions(num_parts, total, bound) == law.total()
            assert found.counts == [law[found.offset + idx] for idx in range(len(found.counts))]
            assert sum(found.counts) == law.total()
            weights = floats[num_parts, total].weights * law.total()
            assert weights == pytest.approx(found.counts)


def test_one_table_serves_every_request() -> None:
    """Catches a shared table that is pruned below what another request needs."""
    shapes = {(1, 7), (3, 0), (9, 30), (20, 4), (20, 140), (24, 90), (2, 3)}
    shared = exact_pair_laws(8, shapes)
    assert shared.keys() == shapes
    for shape in shapes:
        assert shared[shape] == exact_pair_laws(8, {shape})[shape]


DEPTH_KEYS: list[DepthKey] = [
    (((8, 60),), 40, 260),
    (((8, 60),), 60, 200),
    (((16, 30),), 29, 200),
    (((4, 5), (8, 6)), 7, 50),
]
STREAM_KEYS: list[StreamKey] = [(200, 90), (90, 90), (3, 60), (0, 4), (700, 30), (5, 0)]


@pytest.mark.parametrize("key", DEPTH_KEYS)
def test_float_depth_laws(key: DepthKey) -> None:
    """Catches float64 laws that differ from the integers."""
    family = DepthFamily()
    exact, found = family.exact_laws({key})[key], family.float_laws({key})[key]
    assert found.offset == exact.offset
    assert np.allclose(found.weights, as_float(exact).weights, rtol=1e-11, atol=0)


@pytest.mark.parametrize("family", [RunsFamily(), FullFamily(1), FullFamily(4), FullFamily(16)])
def test_float_stream_laws(family: Family[StreamKey]) -> None:
    """Catches float64 laws that differ from the integers."""
    exact, found = family.exact_laws(set(STREAM_KEYS)), family.float_laws(set(STREAM_KEYS))
    for key in STREAM_KEYS:
        assert found[key].offset == exact[key].offset
        assert np.allclose(found[key].weights, as_float(exact[key]).weights, rtol=1e-11, atol=0)


@pytest.mark.parametrize("key", DEPTH_KEYS[:3])
def test_depth_draws(key: DepthKey) -> None:
    """Catches draws that are not uniform over the reference set."""
    family = DepthFamily()
    draws = family.draw(key, np.random.default_rng(5), 20_000)
    assert drawn_share_fits(draws, family.exact_laws({key})[key])


@pytest.mark.parametrize("total", [0, 1, 4, 9, 13, 17, 18])
def test_compositions_are_drawn_uniformly(total: int) -> None:
    """Catches a biased sampler: every count vector of 6 parts in 0 … 3 against its multiplicity."""
    draws = draw_part_counts(np.random.default_rng(total), 6, total, 4, 20_000)
    assert (draws.sum(axis=1) == 6).all()
    assert (draws @ np.arange(4) == total).all()
    assert (draws >= 0).all()
    codes = draws @ (7 ** np.arange(4))
    ways: Counter[int] = Counter()
    for counts in itertools.product(range(7), repeat=4):
        if sum(counts) == 6 and sum(a * n for a, n in enumerate(counts)) == total:
            orders = math.factorial(6) // math.prod(map(math.factorial, counts))
            ways[sum(n * 7**a for a, n in enumerate(counts))] = orders
    law = ExactLaw(0, [ways[code] for code in range(max(ways) + 1)])
    assert drawn_share_fits(codes, law)


@pytest.mark.parametrize("family", [RunsFamily(), FullFamily(1), FullFamily(4), FullFamily(16)])
def test_stream_draws(family: Family[StreamKey]) -> None:
    """Catches draws that are not uniform over the orders of a stream."""
    for key, law in family.exact_laws(set(STREAM_KEYS)).items():
        draws = family.draw(key, np.random.default_rng(sum(key)), 5_000)
        assert len(draws) == 5_000
        assert drawn_share_fits(draws, law), key


def test_order_draws() -> None:
    """Catches shuffles that are not uniform, or shared by requests."""
    requests = [(0, 1, 2, 8), (1, 1, 3, 5)]
    law_pair = [orders_law(request) for request in requests]
    counts = convolve_counts(law_pair[0].counts, law_pair[1].counts)
    draws = draw_products(np.array(requests), np.random.default_rng(1), 20_000)
    assert drawn_share_fits(draws, ExactLaw(0, counts))


@pytest.mark.parametrize("num_ones", [3, 14, 27])
def test_deal_draws(num_ones: int) -> None:
    """Catches deals that are not multivariate hypergeometric, corrected up or down."""
    lengths = [5, 10, 15]
    deals = np.concatenate(list(draw_deals(np.random.default_rng(2), lengths, num_ones, 20_000)))
    assert (deals.sum(axis=1) == num_ones).all()
    for idx, length in enumerate(lengths):
        ways = [
            math.comb(length, x) * math.comb(30 - length, num_ones - x) if x <= num_ones else 0
            for x in range(length + 1)
        ]
        assert drawn_share_fits(deals[:, idx], ExactLaw(0, ways))


def test_draws_by_inversion() -> None:
    """Catches values of a merged law that are shifted when drawn."""
    law = ExactLaw(-3, [1, 0, 5, 2])
    assert drawn_share_fits(draw_from(as_float(law), np.random.default_rng(0), 5_000), law)


def test_methods_follow_sizes() -> None:
    """Catches limits that moved: 24 refusals, 500 rounds, 100 refusals, then draws."""

    def method(num_requests: int, num_rounds: int) -> str:
        request = [(2, 0), (2, 1)] * (num_rounds // 2) + [(2, 0)] * (num_rounds % 2)
        found = depth_rise([request] * num_requests, num_draws=99)
        assert isinstance(found, IidResult)
        assert found.p_exact is None or found.method == "exact integers"
        return found.method

    assert method(1, 24) == "exact integers"
    assert method(1, 25) == FLOAT_METHOD
    assert method(25, 20) == "exact integers"
    assert method(25, 21) == FLOAT_METHOD
    assert method(1, 100) == FLOAT_METHOD
    assert method(1, 101) == "Monte Carlo, m = 99"
    assert draws_for(100_000) == 99_999
    assert draws_for(100_001) == 9_999


def test_float_p_is_exact_p_and_its_margin() -> None:
    """Catches a margin left out, or a tail cut at the wrong place."""
    keys = sorted([*DEPTH_KEYS[:3], DEPTH_KEYS[0]])
    family = DepthFamily()
    exact = [family.exact_laws({key})[key] for key in keys]
    mean = sum(
        sum((law.offset + idx) * count for idx, count in enumerate(law.counts)) / sum(law.counts)
        for law in exact
    )
    for observed in (int(mean) - 50, int(mean) + 60, int(mean) + 400):
        found = summed_result("depth_rise", family, keys, observed, 210, [], 10**4, None)
        assert found.method == FLOAT_METHOD
        assert found.p == pytest.approx(float(exact_tail(exact, observed)) + 1e-9, abs=1e-12)


def test_a_float_p_below_1e_6_is_hidden() -> None:
    """Catches digits printed that the margin hides."""
    found = depth_rise([[(8, 7), (8, 0)] * 40])
    assert isinstance(found, IidResult)
    assert found.method == FLOAT_METHOD
    assert 1e-9 <= found.p < 1e-6
    assert found.as_json()["p"] == "< 1e-6"


def test_drawn_p_agrees_with_exact_p() -> None:
    """Catches drawn p-values beside the truth; requests below and above 100 refusals mixed."""
    generator = np.random.default_rng(8)
    streams = [(generator.random(size) < 0.5).astype(int).tolist() for size in (40, 240, 60)]
    runs, full = RunsFamily(), FullFamily(2)
    for test, family, found in (
        ("runs", runs, stream_runs(streams)),
        ("full", full, full_excess(streams, 2)),
    ):
        assert isinstance(found, IidResult), test
        assert found.method == "Monte Carlo, m = 99999"
        keys = [(sum(one), len(one) - sum(one)) for one in streams]
        exact = [family.exact_laws({key})[key] for key in keys]
        sign = -1 if test == "runs" else 1
        expected = float(exact_tail(exact, sign * int(found.statistic)))
        assert found.p == pytest.approx(expected, abs=5 * (expected / 1e5) ** 0.5)


def test_drawn_deals_agree_with_the_dp() -> None:
    """Catches Monte Carlo p-values beside the truth."""
    streams = [[1] * 60 + [0] * 40, [1] * 70 + [0] * 30, [1] * 48 + [0] * 52]
    found = between_requests(streams)
    exact = exact_between_tail([100] * 3, 178, 100, 60**2 + 70**2 + 48**2)
    assert isinstance(found, IidResult)
    assert found.method == "Monte Carlo, m = 99999"
    assert exact is not None
    assert found.p == pytest.approx(float(exact), abs=5 * (float(exact) / 1e5) ** 0.5)


def test_too_many_statistics_are_drawn() -> None:
    """Catches a DP that never ends where lengths have no common factor."""
    lengths = (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 23)
    assert sum(lengths) <= 200
    found = between_requests([[1] * (n // 2) + [0] * (n - n // 2) for n in lengths], 199)
    assert isinstance(found, IidResult)
    assert found.method == "Monte Carlo, m = 199"


def test_seed_is_of_test_and_canonical_study() -> None:
    """Catches tests that share random numbers, and studies seeded alike."""
    first = seeded_generator("serial_product", [[8, 1]]).random()
    assert first == seeded_generator("serial_product", [(8, 1)]).random()
    assert first != seeded_generator("stream_runs", [[8, 1]]).random()
    assert first != seeded_generator("serial_product", [[8, 2]]).random()


def test_too_large_is_said_not_guessed() -> None:
    """Catches an endless enumeration of rounds with different k, and of endless drafts."""
    mixed = [(4, 1), (8, 5)] * 200
    assert isinstance(depth_rise([mixed]), NotApplicable)
    assert isinstance(depth_rise([[(9_999, 1)] * 200]), NotApplicable)
    assert isinstance(full_excess([[1, 0]], 9_999), NotApplicable)
    assert isinstance(serial_product([mixed], 99), IidResult)
