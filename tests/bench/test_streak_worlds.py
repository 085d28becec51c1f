"""Worlds of acceptances: their laws by enumeration, what each keeps, what is fitted to them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest

from bench.streak_worlds import (
    MAX_CLUMPING,
    WORLDS,
    Bits,
    chain_rates,
    drawn_order,
    fit_clumping,
    num_runs,
    runs_law,
)
from engine.errors import ConfigError

# Requests of all kinds: mixed, all right, all wrong, one bit, none.
STREAMS: tuple[Bits, ...] = (
    (1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 1),
    (1,) * 7,
    (0,) * 4,
    (0, 1, 1, 1, 0, 0, 0, 0, 0),
    (1,),
    (),
)
OWN, POOLED = ("recorded", "chained", "shuffled"), ("equalised", "pooled")


def generator_of(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def chain_of(generator: np.random.Generator, length: int, rate: float, lag: float) -> Bits:
    """A stationary two-state chain: P(1 after b) = rate · (1 − lag) + lag · b."""
    bits = [int(generator.random() < rate)]
    while len(bits) < length:
        bits.append(int(generator.random() < rate * (1 - lag) + lag * bits[-1]))
    return tuple(bits)


def share_after(streams: list[Bits] | tuple[Bits, ...], before: int) -> float:
    """Of the bits behind a bit of this kind, how many are ones."""
    after = [right for bits in streams for left, right in pairwise(bits) if left == before]
    return sum(after) / len(after)


@pytest.mark.parametrize("clumping", [0.0, 0.7, -0.4])
@pytest.mark.parametrize(("ones", "zeros"), [(1, 1), (3, 2), (2, 4), (4, 4), (1, 5)])
def test_the_law_of_runs_is_that_of_all_orders(ones: int, zeros: int, clumping: float) -> None:
    """Catches a miscounted number of orders, and a weight on the wrong side."""
    orders = set(permutations((1,) * ones + (0,) * zeros))
    weights = Counter[int]()
    for order in orders:
        weights[num_runs(order)] += math.exp(-clumping * num_runs(order))  # type: ignore[assignment]
    law = runs_law(ones, zeros, clumping)
    found = {law.first + idx: weight for idx, weight in enumerate(law.weights) if weight}
    total = sum(weights.values())
    assert found == pytest.approx({runs: weight / total for runs, weight in weights.items()})
    mean = sum(runs * weight for runs, weight in weights.items()) / total
    assert law.mean == pytest.approx(mean)


@pytest.mark.parametrize("clumping", [0.0, 0.8])
def test_an_order_is_drawn_by_its_weight(clumping: float) -> None:
    """Catches orders that are left out, an end that is preferred, and odd runs all of one kind."""
    generator, bits = generator_of(), (1, 1, 1, 0, 0)
    orders = sorted(set(permutations(bits)))
    weights = np.array([math.exp(-clumping * num_runs(order)) for order in orders])
    expected = 20_000 * weights / weights.sum()
    drawn = Counter(drawn_order(generator, bits, clumping) for _ in range(20_000))
    assert set(drawn) == set(orders)
    squares = sum(
        (drawn[order] - mean) ** 2 / mean for order, mean in zip(orders, expected, strict=True)
    )
    assert squares < 27.9  # chi-squared of 9 degrees of freedom, 1 in 1000; the seed is fixed


@pytest.mark.parametrize("world", OWN)
def test_where_rates_are_own_each_request_keeps_its_ones(world: str) -> None:
    """Catches fates that wander from one request to another."""
    made = WORLDS[world](generator_of(), STREAMS, 0.5)
    assert [(len(bits), sum(bits)) for bits in made] == [(len(bits), sum(bits)) for bits in STREAMS]


@pytest.mark.parametrize("world", POOLED)
def test_where_there_is_one_rate_all_requests_together_keep_their_ones(world: str) -> None:
    """Catches a pool that loses a fate, and requests of other lengths."""
    made = WORLDS[world](generator_of(), STREAMS, 0.5)
    assert [len(bits) for bits in made] == [len(bits) for bits in STREAMS]
    assert sum(map(sum, made)) == sum(map(sum, STREAMS))
    sums = {tuple(map(sum, WORLDS[world](generator_of(seed), STREAMS, 0.5))) for seed in range(9)}
    assert len(sums) > 1


def test_what_is_recorded_stays_and_equal_generators_give_equal_worlds() -> None:
    """Catches a recorded world that was drawn, and draws that hang on more than their seed."""
    assert WORLDS["recorded"](generator_of(), STREAMS, 0.5) == list(STREAMS)
    for world in ("chained", "shuffled", *POOLED):
        first, again, other = (
            WORLDS[world](generator_of(seed), STREAMS, 0.5) for seed in (1, 1, 2)
        )
        assert first == again != other


def test_rates_that_differ_are_not_taken_for_streaks() -> None:
    """Catches a fit over all requests together, which finds clumping where there is none."""
    generator = generator_of()
    streams = [chain_of(generator, 80, rate, 0.0) for rate in (0.1, 0.3, 0.7, 0.95) * 25]
    assert share_after(streams, 1) > share_after(streams, 0) + 0.3
    assert abs(fit_clumping(streams)) < 0.05


@pytest.mark.parametrize("lag", [0.3, 0.6])
def test_a_chain_is_fitted_whatever_the_rates_are(lag: float) -> None:
    """Catches a fitted odds ratio that is not the chain's, inverted or halved."""
    generator = generator_of()
    streams = [chain_of(generator, 400, 0.7, lag) for _ in range(60)]
    after_accept, after_refusal = 0.7 * (1 - lag) + lag, 0.7 * (1 - lag)
    odds = after_accept * (1 - after_refusal) / ((1 - after_accept) * after_refusal)
    clumping = fit_clumping(streams)
    assert clumping == pytest.approx(math.log(odds) / 2, abs=0.06)
    rates = chain_rates(sum(map(sum, streams)) / sum(map(len, streams)), clumping)
    assert rates.after_accept == pytest.approx(after_accept, abs=0.02)
    assert rates.after_refusal == pytest.approx(after_refusal, abs=0.03)


@pytest.mark.parametrize(("rate", "clumping"), [(0.5, 0.0), (0.7, 1.1), (0.2, 0.4), (0.9, -0.3)])
def test_the_rates_of_a_chain_have_its_stationary_law_and_its_odds(
    rate: float, clumping: float
) -> None:
    """Catches a root of the equation that is not the chain's."""
    rates = chain_rates(rate, clumping)
    ahead, behind = rates.after_accept, rates.after_refusal
    assert 0 < behind < 1 and 0 < ahead < 1
    assert rate * ahead + (1 - rate) * behind == pytest.approx(rate)
    assert ahead * (1 - behind) / ((1 - ahead) * behind) == pytest.approx(math.exp(2 * clumping))


def test_the_equalised_world_has_the_chains_transitions_and_the_pooled_one_has_none() -> None:
    """Catches streaks of another strength than fitted, and a pool that keeps some."""
    generator = generator_of()
    streams = [chain_of(generator, 90, rate, 0.5) for rate in (0.2, 0.6, 0.9) * 60]
    rate = sum(map(sum, streams)) / sum(map(len, streams))
    clumping = fit_clumping(streams)
    asked = chain_rates(rate, clumping)
    equalised = WORLDS["equalised"](generator, streams, clumping)
    assert share_after(equalised, 1) == pytest.approx(asked.after_accept, abs=0.02)
    assert share_after(equalised, 0) == pytest.approx(asked.after_refusal, abs=0.02)
    pooled = WORLDS["pooled"](generator, streams, clumping)
    assert share_after(pooled, 1) == pytest.approx(rate, abs=0.02)
    assert share_after(pooled, 0) == pytest.approx(rate, abs=0.02)
    chained = WORLDS["chained"](generator, streams, clumping)
    recorded_runs, runs = (sum(map(num_runs, made)) for made in (streams, chained))
    assert runs == pytest.approx(recorded_runs, rel=0.03)


def test_what_cannot_be_fitted_is_refused() -> None:
    """Catches a clumping made up where nothing shows one."""
    with pytest.raises(ConfigError, match="none of 2 requests has both"):
        fit_clumping([(1, 1, 1), (0, 0)])


@pytest.mark.parametrize(
    ("streams", "clumping", "runs"),
    [
        ([(1, 1, 1, 0, 0), (0, 0, 0, 1)], MAX_CLUMPING, 2),
        ([(1, 0, 1, 0, 1), (0, 1, 0)], -MAX_CLUMPING, 6),
    ],
)
def test_as_few_runs_as_can_be_and_as_many_are_the_ends(
    streams: list[Bits], clumping: float, runs: int
) -> None:
    """Catches a search for a root that is not there."""
    assert fit_clumping(streams) == clumping
    assert num_runs(drawn_order(generator_of(), (1, 0, 0, 1, 0, 1), clumping)) == runs
