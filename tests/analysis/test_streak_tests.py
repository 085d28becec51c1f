"""Pooled against stratified: known causes, laws by enumeration, the study's own results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from analysis.iid import IidResult, NotApplicable, Study, given_study, run_tests
from analysis.iid_between import between_requests
from analysis.iid_bits import parse_rounds
from analysis.iid_orders import adjacent_products
from analysis.iid_streams import num_runs
from analysis.streak_tests import (
    BETWEEN,
    BY_GROUP,
    BY_REQUEST,
    CHAIN,
    POOLED,
    StratifiedTest,
    between_chains,
    between_strata,
    joined,
    stratified_tests,
)
from engine.errors import ConfigError

ORDER_TESTS = {"depth_rise", "serial_product", "stream_runs", "full_excess"}
DRAFT_LEN = 4


def bits_of(rates: Sequence[float], lag: float, length: int, seed: int = 1) -> list[list[int]]:
    """A chain a rate: P(1 after b) = rate · (1 − lag) + lag · b."""
    generator, streams = np.random.default_rng(seed), []
    for rate in rates:
        bits = [int(generator.random() < rate)]
        while len(bits) < length:
            bits.append(int(generator.random() < rate * (1 - lag) + lag * bits[-1]))
        streams.append(bits)
    return streams


def study_of(streams: Sequence[Sequence[int]]) -> Study:
    """A study of these bits at K = 4; one round, for `context_e`, which is not asked about."""
    rounds = [parse_rounds(bits, DRAFT_LEN) for bits in streams]
    return Study("fixed", streams, rounds, [[(DRAFT_LEN, 2)]], DRAFT_LEN)


def found_in(
    streams: Sequence[Sequence[int]], groups: Sequence[str] = ()
) -> dict[tuple[str, str], StratifiedTest]:
    study = study_of(streams)
    results = run_tests(study, 1_999)
    named = list(groups) or ["one"] * len(streams)
    rows = stratified_tests(study, results, named, 0.01)
    return {(row.strata, row.test): row for row in rows}


def is_rejected(row: StratifiedTest) -> bool:
    assert row.holm is not None
    return row.holm.rejected


def test_requests_that_differ_are_taken_out_by_strata() -> None:
    """Catches strata that leave what they are there to take out, or that take streaks."""
    rates = (0.2, 0.5, 0.8, 0.95) * 8
    found = found_in(bits_of(rates, 0.0, 60), [f"{rate}" for rate in rates])
    assert all(is_rejected(found[POOLED, test]) for test in {*ORDER_TESTS, BETWEEN})
    for strata in (BY_GROUP, BY_REQUEST):
        assert not any(is_rejected(found[strata, test]) for test in ORDER_TESTS)
    assert not is_rejected(found[BY_GROUP, BETWEEN])
    assert is_rejected(found[CHAIN, BETWEEN])


def test_streaks_are_left_by_every_strata_and_explain_the_spread() -> None:
    """Catches a test that calls over-dispersion what streaks alone give."""
    found = found_in(bits_of((0.6,) * 40, 0.6, 60))
    for strata in (POOLED, BY_GROUP, BY_REQUEST):
        assert is_rejected(found[strata, "stream_runs"])
        assert is_rejected(found[strata, "full_excess"])
    assert is_rejected(found[POOLED, BETWEEN])
    assert not is_rejected(found[CHAIN, BETWEEN])


def test_the_rows_are_every_test_of_every_reference_set() -> None:
    """Catches a test that is lost, or a request's drafts dealt to others."""
    found = found_in(bits_of((0.6,) * 6, 0.3, 30))
    asked = {(strata, test) for strata in (POOLED, BY_GROUP, BY_REQUEST) for test in ORDER_TESTS}
    asked |= {(POOLED, BETWEEN), (BY_GROUP, BETWEEN), (CHAIN, BETWEEN)}
    assert set(found) == asked
    levels = sorted(found[POOLED, test].holm.level for test in {*ORDER_TESTS, BETWEEN})  # type: ignore[union-attr]
    assert levels[0] == pytest.approx(0.01 / 5)


def test_within_requests_and_between_them_the_results_are_the_studys() -> None:
    """Catches a second p for what the study has printed already."""
    streams = bits_of((0.3, 0.9) * 8, 0.3, 40)
    study = study_of(streams)
    results = run_tests(study, 999)
    rows = stratified_tests(study, results, ["one"] * 16, 0.01)
    for row in rows:
        if row.strata == BY_REQUEST:
            assert row.result == results[row.test]
        if (row.strata, row.test) == (POOLED, BETWEEN):
            assert isinstance(row.result, IidResult)
            known = results[BETWEEN]
            assert isinstance(known, IidResult) and row.result.p == known.p
            ones, lengths = [sum(map(sum, streams)), sum(map(len, streams))]
            gap = float(known.statistic) - float(row.result.statistic)
            assert gap == pytest.approx(ones**2 / lengths)


def test_a_stratum_is_its_requests_end_to_end() -> None:
    """Catches requests of two strata in one, and an order that is not the plan's."""
    assert joined([[1], [2, 3], [], [4]], ["a", "b", "b", "a"]) == [[1, 4], [2, 3]]
    found = found_in([[1, 1, 0], [1, 1, 1, 1], [0, 1]], ["a", "a", "b"])
    assert float(found[POOLED, "stream_runs"].result.statistic) == 5  # type: ignore[union-attr]
    assert float(found[BY_GROUP, "stream_runs"].result.statistic) == 5  # type: ignore[union-attr]
    assert float(found[BY_REQUEST, "stream_runs"].result.statistic) == 5  # type: ignore[union-attr]
    assert float(found[POOLED, "full_excess"].result.statistic) == 1  # type: ignore[union-attr]


def test_means_are_those_of_all_orders() -> None:
    """Catches a mean of another reference set than the p-value's."""
    streams = [[1, 1, 0, 1], [0, 1, 0]]
    found = found_in(streams)
    orders = [set(permutations(bits)) for bits in (*streams, streams[0] + streams[1])]
    runs = [np.mean([num_runs(order) for order in each]) for each in orders]
    assert found[BY_REQUEST, "stream_runs"].expected == pytest.approx(runs[0] + runs[1])
    assert found[POOLED, "stream_runs"].expected == pytest.approx(runs[2])
    rounds = [[(4, 2), (4, 0), (4, 3)], [(4, 1), (4, 4)]]
    study = given_study(rounds)
    rows = stratified_tests(study, run_tests(study), ["a", "b"], 0.01)
    expected = {(row.strata, row.test): row.expected for row in rows}
    products = [
        np.mean([adjacent_products(order) for order in permutations(lengths)])
        for lengths in ((2, 0, 3), (1, 4), (2, 0, 3, 1, 4))
    ]
    assert expected[BY_REQUEST, "serial_product"] == pytest.approx(products[0] + products[1])
    assert expected[POOLED, "serial_product"] == pytest.approx(products[2])
    # Three refusals of five rounds, Σa = 10: mean of Σ a(a + 1)/2 over all such rounds.
    members = [
        made
        for made in np.ndindex(*(5,) * 5)
        if sum(made) == 10 and sum(accepted < 4 for accepted in made) == 4
    ]
    mean = np.mean([sum(a * (a + 1) // 2 for a in made) for made in members])
    assert expected[POOLED, "depth_rise"] == pytest.approx(mean, rel=0.02)


def test_between_by_strata_is_between_requests_within_each() -> None:
    """Catches deals from one stratum to another, and a mean that is not their reference set's."""
    streams = bits_of((0.5,) * 12, 0.4, 20, seed=7)
    (alone, _), known = between_strata(streams, ["one"] * 12), between_requests(streams, 9_999)
    assert isinstance(alone, IidResult) and isinstance(known, IidResult)
    assert alone.p == pytest.approx(known.p, abs=0.03)
    small = [[1, 1, 0], [0, 0], [1, 0, 0]]
    statistics = []
    for order in set(permutations(range(8))):
        pool = [bit for bits in small for bit in bits]
        dealt = [pool[place] for place in order]
        parts = [dealt[:3], dealt[3:5], dealt[5:]]
        rate = sum(pool) / 8
        statistics.append(sum((sum(part) - len(part) * rate) ** 2 / len(part) for part in parts))
    _, expected = between_strata(small, ["one"] * 3)
    assert expected == pytest.approx(np.mean(statistics))
    _, apart = between_strata([*small, *small], ["a"] * 3 + ["b"] * 3)
    assert apart == pytest.approx(2 * expected)


def test_ties_count_and_a_stratum_may_be_one_bit() -> None:
    """Catches ties that are lost to rounding, and a mean that is none."""
    tied = [[0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1], [0, 1, 1], [0, 1, 0]]
    (found, _), known = between_strata(tied, ["one"] * 7), between_requests(tied)
    assert isinstance(found, IidResult) and isinstance(known, IidResult)
    assert known.p_exact is not None and known.p > 0.9
    assert found.p == pytest.approx(known.p, abs=0.03)
    (_, alone), (_, rest) = (
        between_strata([[1], [1, 0, 1], [0, 1]], ["a", "b", "b"]),
        between_strata([[1, 0, 1], [0, 1]], ["b", "b"]),
    )
    assert alone == pytest.approx(rest)


def test_a_study_without_a_bit_has_no_test() -> None:
    """Catches a p of nothing, and a mean beside no test."""
    study = Study("fixed", [[], []], [[], []], [[(DRAFT_LEN, 2)]], DRAFT_LEN)
    rows = stratified_tests(study, run_tests(study), ["a", "b"], 0.01)
    assert all(isinstance(row.result, NotApplicable) and row.holm is None for row in rows)
    assert len(rows) == 15 and all(np.isnan(row.expected) for row in rows)


def test_between_chains_draws_what_streaks_give() -> None:
    """Catches a chain with the lag of the pool, which holds the differing rates too."""
    rates = (0.1, 0.9) * 20
    differing, _ = between_chains(bits_of(rates, 0.0, 60))
    assert isinstance(differing, IidResult) and differing.p == pytest.approx(1 / 2_000)
    alike, expected = between_chains(bits_of((0.5,) * 40, 0.7, 60))
    assert isinstance(alike, IidResult) and alike.p > 0.02
    assert expected > 3 * 0.25 * 39
    assert isinstance(between_chains([[1, 1], [0]])[0], NotApplicable)


def test_what_cannot_be_stratified_is_refused() -> None:
    """Catches draft lengths that vary, and groups of other requests."""
    study = study_of(bits_of((0.5,) * 4, 0.0, 20))
    with pytest.raises(ConfigError, match="a group a request"):
        stratified_tests(study, {}, ["one"] * 3, 0.01)
    with pytest.raises(ConfigError, match="one draft length"):
        stratified_tests(replace(study, draft_len=None), {}, ["one"] * 4, 0.01)
