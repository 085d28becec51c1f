"""Requests that differ, or like that follows like: over-dispersion and what is left of streaks.

A request's number of accepted drafts varies more than a binomial's either because requests have
rates of their own or because fates within a request cling together. Guarantees: dependence within
requests is measured given each request's number of ones, so that rates that differ never pass for
it; draws are seeded by the counts they are of. Must never know receipts, files or axes.

Source: Skellam 1948, the beta-binomial; Self and Liang 1987, likelihood ratios at a boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.special import betaln, expit, gammaln, logit

from analysis.iid_result import Bits, seeded_generator
from engine.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST_RHO, MOST_RHO = 1e-6, 1 - 1e-6
LOGIT_BOUND = 13.0
USUAL_RHO = 0.2  # where the search begins
FIT_DRAWS = 199
# Of the log-likelihood, at the ends of a 95 % interval.
HALF_DROP = float(stats.chi2.ppf(0.95, 1)) / 2


@dataclass(frozen=True, slots=True)
class BetaFit:
    """Rates of requests follow a beta law with this mean and intraclass correlation.

    Attributes:
        rho: 1 / (1 + a + b); 0: the likelihood falls from the binomial on.
        low, high: 95 % likelihood-ratio interval of rho.
        ratio_p: of the binomial, by the likelihood ratio; rho 0 lies on the edge.
        fit_p: of the beta-binomial, by parametric bootstrap.
    """

    mean: float
    rho: float
    low: float
    high: float
    ratio_p: float
    fit_p: float


def within_lag(streams: Sequence[Bits]) -> float:
    """Lag-1 autocorrelation within requests, their own rates taken out.

    Σ_r (n11 − s(s − 1)/n) / Σ_r s(n − s)/n with s ones of n bits and n11 pairs of neighbouring
    ones: s(s − 1)/n is the mean of n11 over all orders of the bits, s(n − s)/n what it is above
    that, but for the ends, if all the ones stand together. NaN: no request has bits of both kinds.
    """
    excess, most = 0.0, 0.0
    for bits in streams:
        ones, length = sum(bits), len(bits)
        if 0 < ones < length:
            excess += sum(left and right for left, right in pairwise(bits))
            excess -= ones * (ones - 1) / length
            most += ones * (length - ones) / length
    return excess / most if most else float("nan")


def centred_squares(ones: Ints, lengths: Ints) -> Floats:
    """Σ_r (x_r − n_r·rate)² / n_r with the pool's own rate; Shapes: ones [..., requests]."""
    total: Floats = np.square(ones) @ (1 / lengths) - np.square(ones.sum(axis=-1)) / lengths.sum()
    return total


def dispersion(ones: Ints, lengths: Ints) -> float:
    """Variance of the requests' accepted drafts over a binomial's: 1 where one rate is all."""
    rate = ones.sum() / lengths.sum()
    return float(centred_squares(ones, lengths) / (rate * (1 - rate)) / (len(ones) - 1))


def draw_chains(
    generator: np.random.Generator, rate: float, lag: float, lengths: Ints, num_draws: int
) -> Ints:
    """Ones of requests of one rate whose bits are a two-state chain; Shapes: [draws, requests].

    Args:
        lag: autocorrelation at lag 1, 0 or more; each request starts from the stationary law.
    """
    state = generator.random((num_draws, len(lengths))) < rate
    ones = np.where(lengths > 0, state, False).astype(np.int64)
    for place in range(1, int(lengths.max())):
        chance = rate * (1 - lag) + lag * state
        state = generator.random(state.shape) < chance
        ones += np.where(lengths > place, state, False)
    return ones


def chain_spread(streams: Sequence[Bits], num_draws: int) -> Floats:
    """`centred_squares` where streaks are all: requests of one rate with the lag that is within.

    A parametric bootstrap, seeded by the bits; a lag below 0 counts as none: a chain that
    alternates spreads less than one rate does. Shapes: returns [draws].

    Raises:
        ConfigError: no request has bits of both kinds.
    """
    ordered = sorted(map(list, streams))  # draws hang on no order of requests
    ones, lengths = counts_of(ordered)
    lag = within_lag(ordered)
    if np.isnan(lag):
        raise ConfigError(
            f"none of {len(lengths)} requests has both accepted and refused drafts: there is no "
            "dependence within requests to draw"
        )
    generator = seeded_generator("chains of one rate", ordered)
    rate = float(ones.sum() / lengths.sum())
    return centred_squares(draw_chains(generator, rate, max(0.0, lag), lengths, num_draws), lengths)


def counts_of(streams: Sequence[Bits]) -> tuple[Ints, Ints]:
    """Ones and lengths of the requests that have a bit."""
    used = [bits for bits in streams if len(bits)]
    ones, lengths = [sum(bits) for bits in used], [len(bits) for bits in used]
    return np.array(ones, dtype=np.int64), np.array(lengths, dtype=np.int64)


def log_likelihood(ones: Ints, lengths: Ints, mean: float, rho: float) -> float:
    """Of a beta-binomial, without the binomial coefficients; rho 0: of a binomial."""
    if rho < LEAST_RHO:
        total = ones.sum() * np.log(mean) + (lengths - ones).sum() * np.log1p(-mean)
        return float(total)
    first, second = _shape(mean, rho)
    return float((betaln(ones + first, lengths - ones + second) - betaln(first, second)).sum())


def _shape(mean: float, rho: float) -> tuple[float, float]:
    scale = (1 - rho) / rho
    return mean * scale, (1 - mean) * scale


def fit_point(ones: Ints, lengths: Ints) -> tuple[float, float]:
    """The mean and rho of greatest likelihood.

    Raises:
        ConfigError: all drafts met one fate, or there is one request: no spread to fit.
    """
    if len(ones) < 2 or ones.sum() in (0, lengths.sum()):
        raise ConfigError(
            f"{len(ones)} requests, {ones.sum()} of {lengths.sum()} drafts accepted; needed: two "
            "requests and drafts of both fates"
        )
    rate = float(ones.sum() / lengths.sum())

    def loss(point: Floats) -> float:
        mean, rho = expit(point)
        return -log_likelihood(ones, lengths, float(mean), float(rho))

    begin = np.array([logit(rate), logit(USUAL_RHO)])
    precision = {"xatol": 1e-4, "fatol": 1e-6}
    limits = [(-LOGIT_BOUND, LOGIT_BOUND)] * 2
    found = optimize.minimize(loss, begin, method="Nelder-Mead", bounds=limits, options=precision)
    mean, rho = (float(value) for value in expit(found.x))
    if -found.fun <= log_likelihood(ones, lengths, rate, 0.0):
        return rate, 0.0
    return mean, rho


def fit_beta(ones: Ints, lengths: Ints, num_draws: int = FIT_DRAWS) -> BetaFit:
    """Maximum likelihood, its interval, the binomial beside it and whether it fits.

    Raises:
        ConfigError: see `fit_point`.
    """
    mean, rho = fit_point(ones, lengths)
    best = log_likelihood(ones, lengths, mean, rho)
    rate = float(ones.sum() / lengths.sum())
    ratio = max(0.0, 2 * (best - log_likelihood(ones, lengths, rate, 0.0)))
    low, high = _interval(ones, lengths, rho, best)
    # On the edge the ratio is 0 half the time and chi-squared else.
    ratio_p = float(stats.chi2.sf(ratio, 1) / 2) if ratio else 1.0
    return BetaFit(mean, rho, low, high, ratio_p, _fit_p(ones, lengths, mean, rho, num_draws))


def _interval(ones: Ints, lengths: Ints, rho: float, best: float) -> tuple[float, float]:
    """Where the profile of rho has dropped by HALF_DROP."""

    def drop(candidate: float) -> float:
        found = optimize.minimize_scalar(
            lambda at: -log_likelihood(ones, lengths, float(expit(at)), candidate),
            bounds=(-LOGIT_BOUND, LOGIT_BOUND),
            method="bounded",
        )
        return best + float(found.fun) - HALF_DROP

    def end(inner: float, outer: float) -> float:
        return float(optimize.brentq(drop, inner, outer, xtol=1e-6))

    start = max(rho, LEAST_RHO)
    low = 0.0 if drop(0.0) <= 0 else end(LEAST_RHO, start)
    high = 1.0 if drop(MOST_RHO) <= 0 else end(start, MOST_RHO)
    return low, high


def _fit_p(ones: Ints, lengths: Ints, mean: float, rho: float, num_draws: int) -> float:
    """How often data of the fitted law, fitted anew, lie at least as far from their fit."""
    counts = sorted(zip(lengths.tolist(), ones.tolist(), strict=True))
    generator = seeded_generator("beta-binomial fit", counts)
    observed = misfit(ones, lengths, mean, rho)
    lengths = np.sort(lengths)  # draws hang on no order of requests
    num_extreme = 0
    for _ in range(num_draws):
        rates = generator.beta(*_shape(mean, rho), size=len(lengths)) if rho else mean
        drawn = generator.binomial(lengths, rates)
        if drawn.sum() in (0, lengths.sum()):
            num_extreme += 1  # nothing to fit: p errs on the side of the fit
            continue
        num_extreme += misfit(drawn, lengths, *fit_point(drawn, lengths)) >= observed
    return (num_extreme + 1) / (num_draws + 1)


def misfit(ones: Ints, lengths: Ints, mean: float, rho: float) -> float:
    """Cramér–von Mises distance of the requests' mid-P places in the law from even ones."""
    values = np.arange(int(lengths.max()) + 1)
    left = np.maximum(lengths[:, np.newaxis] - values, 0)
    ways = gammaln(lengths + 1)[:, np.newaxis] - gammaln(values + 1) - gammaln(left + 1)
    if rho < LEAST_RHO:
        logs = ways + values * np.log(mean) + left * np.log1p(-mean)
    else:
        first, second = _shape(mean, rho)
        logs = ways + betaln(values + first, left + second) - betaln(first, second)
    weights = np.where(values <= lengths[:, np.newaxis], np.exp(logs), 0.0)
    rows = np.arange(len(ones))
    places = np.sort(weights.cumsum(axis=1)[rows, ones] - weights[rows, ones] / 2)
    even = (2 * np.arange(1, len(ones) + 1) - 1) / (2 * len(ones))
    return float(np.square(places - even).sum() + 1 / (12 * len(ones)))
