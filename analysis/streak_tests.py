"""The tests of independence with what differs between requests left in, and taken out by strata.

A reference set of all orders of the pooled drafts takes requests that differ and streaks within
them for one thing; orders within each request leave streaks alone. Guarantees: tests and laws are
those of `analysis.iid_*`; beside each statistic stands its mean over the reference set, so that the
two causes can be set against each other in size, not by p-values that all vanish. Must never know
receipts, files or axes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from analysis.iid_between import TIE_MARGIN, draw_deals
from analysis.iid_bits import Study
from analysis.iid_depth import DepthFamily, depth_key, depth_rise
from analysis.iid_laws import Family
from analysis.iid_orders import serial_product
from analysis.iid_result import (
    Bits,
    HolmRow,
    IidResult,
    NotApplicable,
    Round,
    drawn_result,
    holm,
    seeded_generator,
)
from analysis.iid_streams import FullFamily, full_excess, stream_key, stream_runs
from analysis.streak_spread import Ints, centred_squares, chain_spread, counts_of, within_lag
from engine.errors import ConfigError

POOLED, BY_GROUP, BY_REQUEST = "pooled", "by group", "by request"
CHAIN = "one chain"
BETWEEN = "between_requests"
NUM_DRAWS = 1_999
MEAN_DRAWS = 999  # of a reference set whose mean has no closed form
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class StratifiedTest:
    """One test under one reference set.

    Attributes:
        expected: mean of the statistic over the reference set; NaN where there is no test.
        holm: among the tests of the same reference set.
    """

    strata: str
    test: str
    result: IidResult | NotApplicable
    expected: float
    holm: HolmRow | None


def stratified_tests(
    study: Study,
    results: Mapping[str, IidResult | NotApplicable],
    groups: Sequence[str],
    level: float,
) -> list[StratifiedTest]:
    """Every conditional test by reference set.

    Args:
        study: of an arm of one draft length; requests as `groups`.
        results: of `analysis.iid.run_tests`, which stratifies by request already.
        groups: of each request, what it is counted with.
        level: Holm's, in each reference set.

    Raises:
        ConfigError: draft lengths vary, or the groups are not those of the requests.
    """
    if study.draft_len is None or len(groups) != len(study.bits):
        raise ConfigError(
            f"study of kind {study.kind!r} with {len(study.bits)} requests and {len(groups)} names "
            "of groups; needed: one draft length, a group a request"
        )
    labels: dict[str, Sequence[Hashable]] = {
        POOLED: [POOLED] * len(groups),
        BY_GROUP: list(groups),
        BY_REQUEST: range(len(groups)),
    }
    rows: list[StratifiedTest] = []
    for strata, own in labels.items():
        known = results if strata == BY_REQUEST else {}
        found = dict(_order_tests(study, own, known))
        if strata == POOLED:
            found[BETWEEN] = _centred(results[BETWEEN], study.bits)
        elif strata == BY_GROUP:  # a request's own drafts cannot be dealt to others
            found[BETWEEN] = between_strata(study.bits, own)
        rows += _judged(strata, found, level)
    return [*rows, *_judged(CHAIN, {BETWEEN: between_chains(study.bits)}, level)]


def _judged(
    strata: str, found: Mapping[str, tuple[IidResult | NotApplicable, float]], level: float
) -> list[StratifiedTest]:
    p_values = {test: one.p for test, (one, _) in found.items() if isinstance(one, IidResult)}
    judged = holm(p_values, level)
    return [
        StratifiedTest(
            strata,
            test,
            one,
            expected if isinstance(one, IidResult) else float("nan"),
            judged.get(test),
        )
        for test, (one, expected) in found.items()
    ]


def _order_tests(
    study: Study, labels: Sequence[Hashable], known: Mapping[str, IidResult | NotApplicable]
) -> Iterator[tuple[str, tuple[IidResult | NotApplicable, float]]]:
    """Tests of order, with the requests of a stratum laid end to end as one request."""
    assert study.draft_len is not None, "asked of fixed lengths only"
    draft_len = study.draft_len
    streams = [bits for bits in joined(study.bits, labels) if bits]
    requests = [rounds for rounds in joined(study.rounds, labels) if rounds]
    keys = [stream_key(bits) for bits in streams]
    tests: Mapping[str, Callable[[], IidResult | NotApplicable]] = {
        "depth_rise": lambda: depth_rise(requests, NUM_DRAWS),
        "serial_product": lambda: serial_product(requests, NUM_DRAWS),
        "stream_runs": lambda: stream_runs(streams, NUM_DRAWS),
        "full_excess": lambda: full_excess(streams, draft_len, NUM_DRAWS),
    }
    means = {
        "depth_rise": _drawn_mean(DepthFamily(), map(depth_key, requests)),
        "serial_product": sum(map(_product_mean, requests)),
        "stream_runs": sum(1 + 2 * ones * zeros / (ones + zeros) for ones, zeros in keys),
        "full_excess": _drawn_mean(FullFamily(draft_len), keys),
    }
    for test, run in tests.items():
        yield test, (known[test] if test in known else run(), means[test])


def joined(requests: Sequence[Sequence[Item]], labels: Sequence[Hashable]) -> list[list[Item]]:
    """The requests of each stratum end to end, strata in order of appearance."""
    strata: dict[Hashable, list[Item]] = {}
    for request, label in zip(requests, labels, strict=True):
        strata.setdefault(label, []).extend(request)
    return list(strata.values())


def _product_mean(rounds: Sequence[Round]) -> float:
    """Mean of Σ a_i a_{i+1} over all orders: m − 1 pairs, each of two different rounds."""
    accepted = [each for _, each in rounds]
    return (sum(accepted) ** 2 - sum(each**2 for each in accepted)) / len(accepted)


def _drawn_mean(family: Family[Key], keys: Iterator[Key] | Sequence[Key]) -> float:
    """Mean of a summed statistic over its reference set, from draws seeded by its keys."""
    listed = sorted(keys)  # type: ignore[type-var]
    generator = seeded_generator(type(family).__name__, listed)
    return float(sum(family.draw(key, generator, MEAN_DRAWS).mean() for key in listed))


def _centred(
    known: IidResult | NotApplicable, streams: Sequence[Bits]
) -> tuple[IidResult | NotApplicable, float]:
    """`between_requests` without the constant (Σ x_r)² / Σ n_r: the statistic of all strata."""
    if isinstance(known, NotApplicable):
        return known, float("nan")
    counts = counts_of(streams)
    return replace(known, statistic=float(centred_squares(*counts))), _between_mean(*counts)


def between_strata(
    streams: Sequence[Bits], labels: Sequence[Hashable]
) -> tuple[IidResult | NotApplicable, float]:
    """Σ (x_r − n_r · rate)² / n_r with the stratum's rate; all orders of each stratum's bits."""
    members: dict[Hashable, list[tuple[int, ...]]] = {}
    for bits, label in zip(streams, labels, strict=True):
        members.setdefault(label, []).append(tuple(bits))
    strata = [sorted(own) for own in members.values()]
    counts = [counts_of(sorted(own, key=len)) for own in strata if any(own)]
    if not counts:
        return NotApplicable("no tested bit"), float("nan")
    observed = float(sum(centred_squares(*own) for own in counts))
    generator = seeded_generator(f"{BETWEEN} by strata", [list(map(list, own)) for own in strata])
    drawn = np.zeros(NUM_DRAWS)
    for ones, lengths in counts:
        deals = draw_deals(generator, lengths.tolist(), int(ones.sum()), NUM_DRAWS)
        drawn += np.concatenate([centred_squares(dealt, lengths) for dealt in deals])
    # What the float64 sum of a tie lacks must not make it a loss.
    num_extreme = int(np.count_nonzero(drawn >= observed * (1 - TIE_MARGIN)))
    expected = sum(_between_mean(*own) for own in counts)
    return drawn_result(observed, num_extreme, NUM_DRAWS), expected


def _between_mean(ones: Ints, lengths: Ints) -> float:
    """Mean over all orders: a request's share of the pool has the hypergeometric variance."""
    total, accepted = int(lengths.sum()), int(ones.sum())
    if total < 2:
        return 0.0
    one_draw = accepted / total * (1 - accepted / total)
    return float((one_draw * (total - lengths) / (total - 1)).sum())


def between_chains(streams: Sequence[Bits]) -> tuple[IidResult | NotApplicable, float]:
    """The same statistic where all requests are one two-state chain: do rates differ beyond that?

    The chain has the pooled rate and the autocorrelation within requests.
    """
    if np.isnan(within_lag(streams)):
        return NotApplicable("no request has drafts of both fates"), float("nan")
    drawn = chain_spread(streams, NUM_DRAWS)
    observed = float(centred_squares(*counts_of(streams)))
    num_extreme = int(np.count_nonzero(drawn >= observed * (1 - TIE_MARGIN)))
    return drawn_result(observed, num_extreme, NUM_DRAWS), float(drawn.mean())
