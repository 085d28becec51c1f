"""Over-dispersion and dependence within requests: known laws, known answers."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from scipy import stats

from analysis.streak_spread import (
    Ints,
    centred_squares,
    chain_spread,
    counts_of,
    dispersion,
    draw_chains,
    fit_beta,
    fit_point,
    log_likelihood,
    misfit,
    within_lag,
)
from engine.errors import ConfigError

LENGTHS = np.array([60, 70, 80, 90] * 40)


def generator_of(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def beta_counts(mean: float, rho: float, seed: int = 1) -> Ints:
    """Ones of requests whose rates are drawn from a beta law of this intraclass correlation."""
    generator, scale = generator_of(seed), (1 - rho) / rho
    rates = generator.beta(mean * scale, (1 - mean) * scale, size=len(LENGTHS))
    return generator.binomial(LENGTHS, rates)


@pytest.mark.parametrize("bits", [(1, 1, 1, 0, 0), (1, 0, 0, 0, 0, 0), (1, 1, 1, 1, 0, 0, 0)])
def test_over_all_orders_the_lag_is_none(bits: tuple[int, ...]) -> None:
    """Catches the bias of a correlation about the request's own mean, −1/(n − 1)."""
    orders = [within_lag([order]) for order in set(permutations(bits))]
    assert sum(orders) / len(orders) == pytest.approx(0.0, abs=1e-12)
    plain = [sum(left * right for left, right in pairwise(order)) for order in orders_of(bits)]
    assert sum(plain) / len(plain) == pytest.approx(sum(bits) * (sum(bits) - 1) / len(bits))


def orders_of(bits: tuple[int, ...]) -> set[tuple[int, ...]]:
    return set(permutations(bits))


def test_the_lag_is_within_requests() -> None:
    """Catches rates that differ taken for dependence, and bits of other requests as neighbours."""
    generator = generator_of()
    streams = [
        tuple(int(bit) for bit in generator.random(90) < rate) for rate in (0.1, 0.6, 0.95) * 80
    ]
    assert abs(within_lag(streams)) < 0.02
    clumped = [tuple(sorted(bits)) for bits in streams]
    assert within_lag(clumped) > 0.9
    assert np.isnan(within_lag([(1, 1), (0, 0, 0), ()]))


@pytest.mark.parametrize("lag", [0.0, 0.5])
def test_chains_have_the_rate_the_lag_and_the_lengths_asked_for(lag: float) -> None:
    """Catches a chain that drifts from its rate, and ones behind a request's end."""
    lengths = np.array([0, 1, 2, 40])
    ones = draw_chains(generator_of(), 0.7, lag, lengths, 40_000)
    assert ones.shape == (40_000, 4) and (ones <= lengths).all()
    assert ones.mean(axis=0) == pytest.approx(0.7 * lengths, rel=0.01)
    both = np.mean(ones[:, 2] == 2)
    assert both == pytest.approx(0.7 * (0.7 + 0.3 * lag), abs=0.01)
    steps = np.arange(1, 40)
    spread = 0.21 * (40 + 2 * np.sum((40 - steps) * lag**steps))
    assert ones[:, 3].var() == pytest.approx(spread, rel=0.03)


def test_the_dispersion_of_one_rate_is_one() -> None:
    """Catches a variance about each request's own rate, or over the wrong number."""
    generator = generator_of()
    drawn = [dispersion(generator.binomial(LENGTHS, 0.6), LENGTHS) for _ in range(300)]
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.03)
    ones, lengths = np.array([3, 1]), np.array([4, 4])
    assert centred_squares(ones, lengths) == pytest.approx((1 + 1) / 4)
    assert dispersion(ones, lengths) == pytest.approx(0.5 / 0.25)
    assert dispersion(beta_counts(0.6, 0.3), LENGTHS) > 15


def test_the_likelihood_is_the_beta_binomials() -> None:
    """Catches shapes that are not the mean's and correlation's."""
    ones, mean, rho = beta_counts(0.6, 0.2), 0.55, 0.25
    first, second = mean * (1 - rho) / rho, (1 - mean) * (1 - rho) / rho
    law = stats.betabinom.logpmf(ones, LENGTHS, first, second).sum()
    binomial = stats.binom.logpmf(ones, LENGTHS, mean).sum()
    gap = log_likelihood(ones, LENGTHS, mean, rho) - log_likelihood(ones, LENGTHS, mean, 0.0)
    assert gap == pytest.approx(law - binomial)
    assert log_likelihood(ones, LENGTHS, mean, 1.1e-6) == pytest.approx(
        log_likelihood(ones, LENGTHS, mean, 0.0), rel=1e-3
    )


@pytest.mark.parametrize("rho", [0.05, 0.3])
def test_a_known_correlation_is_found(rho: float) -> None:
    """Catches an interval that does not hold it, or that any value is in."""
    found = fit_beta(beta_counts(0.65, rho), LENGTHS, 39)
    assert found.low < rho < found.high < 1.6 * found.rho and found.low > 0.6 * found.rho
    assert found.mean == pytest.approx(0.65, abs=0.05)
    assert found.ratio_p < 1e-6 and found.fit_p > 0.05
    best = log_likelihood(beta_counts(0.65, rho), LENGTHS, found.mean, found.rho)
    for step in (0.98, 1.02):
        aside = log_likelihood(beta_counts(0.65, rho), LENGTHS, found.mean, found.rho * step)
        assert aside < best


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Catches a drop of the likelihood that is no 95 % interval's."""
    held = [
        found.low <= 0.2 <= found.high
        for found in (fit_beta(beta_counts(0.6, 0.2, seed), LENGTHS, 0) for seed in range(100))
    ]
    assert 88 <= sum(held) <= 99


def test_one_rate_has_no_correlation() -> None:
    """Catches a likelihood ratio that makes a mixture of chance, and an edge that is none."""
    generator, found = generator_of(3), []
    for _ in range(40):
        found.append(fit_beta(generator.binomial(LENGTHS, 0.6), LENGTHS, 0))
    assert all(fit.rho < 0.02 and fit.low < 0.004 for fit in found)
    edge = [fit for fit in found if fit.rho == 0.0]
    assert 8 <= len(edge) <= 32 and all(fit.low == 0 and fit.ratio_p == 1.0 for fit in edge)
    assert sum(fit.ratio_p < 0.05 for fit in found) <= 6
    assert all(fit.high < 0.05 for fit in found)


def test_a_mixture_that_is_no_beta_law_does_not_fit() -> None:
    """Catches a bootstrap that lets everything pass, or nothing."""
    generator = generator_of()
    rates = np.where(np.arange(len(LENGTHS)) % 2, 0.45, 0.8)
    two = fit_beta(generator.binomial(LENGTHS, rates), LENGTHS, 59)
    assert two.fit_p == pytest.approx(1 / 60) and two.rho > 0.05
    fits = [fit_beta(beta_counts(0.6, 0.2, seed), LENGTHS, 19).fit_p for seed in range(8)]
    assert min(fits) > 0.05 - 1e-9 and max(fits) > 0.4


def test_the_bootstrap_is_seeded_by_its_counts() -> None:
    """Catches a p that changes from run to run, or with the order of requests."""
    ones = beta_counts(0.6, 0.2)
    again = fit_beta(ones[::-1], LENGTHS[::-1], 29)
    assert fit_beta(ones, LENGTHS, 29).fit_p == again.fit_p


def test_the_misfit_is_that_of_mid_p_places() -> None:
    """Catches places of another law, and a distance that is no Cramér–von Mises one."""
    ones, lengths = np.array([3, 9, 0]), np.array([10, 12, 5])
    for rho in (0.0, 0.3):
        scale = (1 - rho) / rho if rho else 1.0
        law = (
            stats.betabinom(lengths, 0.4 * scale, 0.6 * scale) if rho else stats.binom(lengths, 0.4)
        )
        places = np.sort(law.cdf(ones) - law.pmf(ones) / 2)
        statistic = stats.cramervonmises(places, "uniform").statistic
        assert misfit(ones, lengths, 0.4, rho) == pytest.approx(statistic)


def test_counts_at_the_edge_of_the_law_are_fitted() -> None:
    """Catches a search beyond ρ = 1, and draws of one fate that there is nothing to fit to."""
    lengths = np.full(6, 9)
    whole = fit_beta(np.array([9, 0, 9, 0, 9, 9]), lengths, 0)
    assert whole.high == 1.0 and whole.rho > 0.9 and whole.low > 0.3
    few = fit_beta(np.array([1, 0]), np.array([1, 1]), 60)
    assert few.fit_p > 0.4 and (few.low, few.high) == (0.0, 1.0)


def test_streaks_alone_spread_as_their_lag_says() -> None:
    """Catches a chain of the pool's lag, one that alternates, and draws that hang on an order."""
    streams = [[1, 1, 0] * 20, [0, 1, 1] * 20] * 10
    assert within_lag(streams) < -0.3
    spread = chain_spread(streams, 4_000)
    assert spread.mean() == pytest.approx(2 / 9 * 19, rel=0.05)
    clumped = [[1] * 20 + [0] * 10, [0] * 5 + [1] * 10 + [0] * 5, [1] * 9]
    assert chain_spread(clumped, 500).tolist() == chain_spread(clumped[::-1], 500).tolist()
    ones, lengths = counts_of(clumped)
    assert (ones.tolist(), lengths.tolist()) == ([20, 10, 9], [30, 20, 9])
    one_rate = 39 / 59 * 20 / 59 * 2
    assert chain_spread(clumped, 500).mean() > 3 * one_rate
    with pytest.raises(ConfigError, match="none of 2 requests has both"):
        chain_spread([[1, 1], [0], []], 10)


@pytest.mark.parametrize("ones", [np.zeros(4, dtype=int), np.full(4, 9), np.array([3])])
def test_counts_without_spread_are_refused(ones: Ints) -> None:
    """Catches a correlation made up of nothing."""
    with pytest.raises(ConfigError, match="two requests and drafts of both fates"):
        fit_point(ones, np.full(len(ones), 9))
