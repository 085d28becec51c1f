"""Worlds of acceptances: fates of drafts as recorded, and with one or both of their orders undone.

A request is a stream of bits, one an output position: whether the drafter's next token there is the
target's. Fates can clump for two reasons: requests have rates of their own (heterogeneity), or
within a request like follows like (streaks). Each world keeps or undoes either:

    world       orders drawn            weight of an order      rates    streaks
    recorded    none                    as it was               own      as they were
    chained     each request's own      exp(−clumping · runs)   own      of the fitted chain
    shuffled    each request's own      1                       own      none
    equalised   of all bits together    exp(−clumping · runs)   one      of the fitted chain
    pooled      of all bits together    1                       one      none

Given its number of ones, a two-state Markov chain gives an order a chance that depends on its runs
alone, but for its ends: exp(2 · clumping) is the odds ratio of its transitions. The clumping is
fitted given each request's ones, so that rates that differ never pass for streaks. Guarantees:
every world has the recorded number of ones, of all requests together and, where rates are own, of
each; equal generators give equal worlds. Must never know policies, rings or receipts.

Source: Wald and Wolfowitz 1940, for the number of orders with so many runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln

from engine.errors import ConfigError

Floats = NDArray[np.float64]
Bits = tuple[int, ...]
Streams = Sequence[Bits]
MAX_CLUMPING = 15.0  # odds of 10¹³ to 1: where it matters, as good as sure


@dataclass(frozen=True, slots=True)
class ChainRates:
    """A two-state chain, by the chance that a draft is accepted."""

    after_accept: float
    after_refusal: float


@dataclass(frozen=True, slots=True, eq=False)
class RunsLaw:
    """The number of runs is first + i with probability `weights[i]`."""

    first: int
    weights: Floats

    @property
    def mean(self) -> float:
        """Expected number of runs."""
        return self.first + float(self.weights @ np.arange(len(self.weights)))


def num_runs(bits: Sequence[int]) -> int:
    """Stretches of equal bits."""
    return sum(left != right for left, right in pairwise(bits)) + (len(bits) > 0)


def runs_law(ones: int, zeros: int, clumping: float) -> RunsLaw:
    """Runs in an order of so many ones and zeros, drawn with weight exp(−clumping · runs).

    Args:
        ones: 1 or more, as zeros: an order of one kind is one run.
    """
    halves = np.arange(1, min(ones, zeros) + 1)
    even = math.log(2) + _log_ways(ones, halves) + _log_ways(zeros, halves)
    odd = np.logaddexp(
        _log_ways(ones, halves + 1) + _log_ways(zeros, halves),
        _log_ways(ones, halves) + _log_ways(zeros, halves + 1),
    )
    logs = np.stack([even, odd], axis=1).ravel() - clumping * np.arange(2 * len(halves))
    weights = np.exp(logs - logs.max())
    return RunsLaw(2, weights / weights.sum())


def _log_ways(total: int, parts: NDArray[np.int64]) -> Floats:
    """ln C(total − 1, parts − 1): ways to cut a row into parts; −∞ where there are none."""
    possible = parts <= total
    kept = np.where(possible, parts, 1)
    logs = gammaln(total) - gammaln(kept) - gammaln(total - kept + 1)
    return np.where(possible, logs, -np.inf)


def fit_clumping(streams: Streams) -> float:
    """The clumping under which the requests' orders have as many runs as they do, in expectation.

    That is its maximum-likelihood estimate given each request's ones, within ± MAX_CLUMPING;
    below 0: unlike follows like.

    Raises:
        ConfigError: no request has both accepted and refused drafts: nothing says how they clump.
    """
    sums = [(sum(bits), len(bits) - sum(bits)) for bits in streams]
    mixed = [(bits, pair) for bits, pair in zip(streams, sums, strict=True) if min(pair)]
    if not mixed:
        raise ConfigError(
            f"none of {len(streams)} requests has both accepted and refused drafts: how they clump "
            "cannot be told; give texts of which some drafts are right"
        )
    observed = sum(num_runs(bits) for bits, _ in mixed)

    def excess(clumping: float) -> float:
        return sum(runs_law(*pair, clumping).mean for _, pair in mixed) - observed

    for end in (MAX_CLUMPING, -MAX_CLUMPING):
        if excess(end) * end >= 0:  # even there it is not reached
            return end
    return float(brentq(excess, -MAX_CLUMPING, MAX_CLUMPING, xtol=1e-10))


def chain_rates(rate: float, clumping: float) -> ChainRates:
    """The chain whose stationary rate and odds ratio exp(2 · clumping) these are.

    With a = P(refused after accepted), b = P(accepted after refused) and r = rate / (1 − rate):
    b = r·a and (odds − 1)·r·a² + (1 + r)·a − 1 = 0.

    Args:
        rate: of accepted drafts, above 0 and below 1.
        clumping: as fitted.
    """
    share, odds = rate / (1 - rate), math.exp(2 * clumping)
    leaves = 2 / (1 + share + math.sqrt((1 + share) ** 2 + 4 * (odds - 1) * share))
    return ChainRates(after_accept=1 - leaves, after_refusal=share * leaves)


def drawn_order(generator: np.random.Generator, bits: Bits, clumping: float) -> Bits:
    """An order of these bits, drawn with weight exp(−clumping · runs); 0: all alike."""
    ones, zeros = sum(bits), len(bits) - sum(bits)
    if not ones or not zeros:
        return bits
    law = runs_law(ones, zeros, clumping)
    cumulative = np.cumsum(law.weights)
    drawn = np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right")
    runs = law.first + min(int(drawn), len(law.weights) - 1)
    half, is_odd = divmod(runs, 2)
    ones_first = generator.random() < 0.5
    if is_odd:  # the first kind is also the last and has a run more
        extra, plain = np.array([half + 1]), np.array([half])
        by_ones = float((_log_ways(ones, extra) + _log_ways(zeros, plain))[0])
        by_zeros = float((_log_ways(ones, plain) + _log_ways(zeros, extra))[0])
        ones_first = generator.random() < 1 / (1 + math.exp(min(700.0, by_zeros - by_ones)))
    first, second = (ones, zeros) if ones_first else (zeros, ones)
    lengths = np.empty(runs, dtype=np.int64)
    lengths[::2] = _drawn_parts(generator, first, half + is_odd)
    lengths[1::2] = _drawn_parts(generator, second, half)
    kinds = np.arange(runs) % 2 == (0 if ones_first else 1)
    return tuple(int(bit) for bit in np.repeat(kinds, lengths))


def _drawn_parts(generator: np.random.Generator, total: int, parts: int) -> NDArray[np.int64]:
    """A row of `total` cut into so many parts of at least 1, every way alike."""
    cuts = np.sort(generator.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def _own_orders(generator: np.random.Generator, streams: Streams, clumping: float) -> list[Bits]:
    return [drawn_order(generator, bits, clumping) for bits in streams]


def _pooled_orders(generator: np.random.Generator, streams: Streams, clumping: float) -> list[Bits]:
    """An order of all bits together, cut into requests of the recorded lengths."""
    whole = drawn_order(generator, tuple(bit for bits in streams for bit in bits), clumping)
    ends = np.cumsum([len(bits) for bits in streams])
    return [whole[end - len(bits) : end] for bits, end in zip(streams, ends, strict=True)]


Maker = Callable[[np.random.Generator, Streams, float], list[Bits]]
RECORDED = "recorded"
WORLDS: Mapping[str, Maker] = {
    RECORDED: lambda generator, streams, clumping: list(streams),
    "chained": _own_orders,
    "shuffled": lambda generator, streams, clumping: _own_orders(generator, streams, 0.0),
    "equalised": _pooled_orders,
    "pooled": lambda generator, streams, clumping: _pooled_orders(generator, streams, 0.0),
}
