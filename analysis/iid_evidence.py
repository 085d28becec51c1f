"""`context_e` and `match_e`: evidence against one α that holds at any stopping time.

Guarantees: an e-value, whose expectation under the null is at most 1 for any stopping rule and any
draft length that is decided before the draft is tested; no reference set, no sizes. Must never know
where the rounds come from.

Source: DESIGN section 14, `context_e`, `match_e`; Krichevsky and Trofimov 1981 for the mixtures.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from scipy.special import betaln, xlogy

from analysis.iid_bits import drafted
from analysis.iid_result import EVIDENCE_METHOD, IidResult, NotApplicable, Round, Rounds

CONCENTRATIONS = (2, 8, 32, 128)  # ν
# (round's draft_len, accepted_len, length of the drafter's match)
MatchedRound = tuple[int, int, int]
Counts = tuple[int, int]  # ones, zeros
DEPTH_STARTS = (1, 2, 3, 5)  # first draft index, from 1, of each context; the last is open
MATCH_STARTS = (0, 1, 3, 8)


def context_e(requests: Sequence[Rounds]) -> IidResult | NotApplicable:
    """E = mean of E_depth, E_last, E_request: is α one, over depth, last round and request?

    Each is a numerator over the largest likelihood of one α, (S/n)^S (R/n)^R, 0⁰ = 1.
    depth and last: Π_c Be(n_c1 + ½, n_c0 + ½) / Be(½, ½) over contexts: draft index {1}, {2},
    {3, 4}, {≥ 5}; previous round of the request {none, a = 0, 0 < a < k, a = k}.
    request: Π_r ¼ Σ_ν Be(νμ_r + s_r, ν(1 − μ_r) + R_r) / Be(νμ_r, ν(1 − μ_r)), ν = 2, 8, 32, 128,
    μ_r = (½ + Σ_{q<r} s_q) / (1 + Σ_{q<r} (s_q + R_q)).

    Args:
        requests: all rounds of each request, in plan order; rounds with k = 0 are ignored.
    """
    rounds = [drafted(request) for request in requests]
    per_request = [
        (sum(a for _, a in request), sum(a < k for k, a in request)) for request in rounds
    ]
    pooled = _add(per_request)
    if not sum(pooled):
        return NotApplicable("no tested bit")
    ceiling = log_best_likelihood(*pooled)
    logs = {
        "depth": log_mixture(depth_counts(rounds)) - ceiling,
        "last": log_mixture(last_counts(rounds)) - ceiling,
        "request": log_request_mixture(per_request) - ceiling,
    }
    return _evidence(logs)


def match_e(requests: Sequence[Sequence[MatchedRound]]) -> IidResult | NotApplicable:
    """Does match length predict acceptance? The e-value of contexts {0}, {1, 2}, {3 … 7}, {≥ 8}.

    Args:
        requests: (k, a, match length) of all rounds of each request.
    """
    counts: dict[int, Counts] = {}
    for request in requests:
        for draft_len, accepted_len, match_len in request:
            context = sum(match_len >= start for start in MATCH_STARTS)
            found = _counts((draft_len, accepted_len))
            counts[context] = _add([counts.get(context, (0, 0)), found])
    pooled = _add(counts.values())
    if not sum(pooled):
        return NotApplicable("no tested bit")
    return _evidence({"match": log_mixture(counts) - log_best_likelihood(*pooled)})


def depth_counts(requests: Iterable[Rounds]) -> dict[int, Counts]:
    """Ones and zeros by context of the draft index in its frame."""
    ones = dict.fromkeys(range(len(DEPTH_STARTS)), 0)
    zeros = dict(ones)
    stops = (*DEPTH_STARTS[1:], sys.maxsize)
    alike = Counter(chain.from_iterable(requests))  # few kinds of round, whatever the log's length
    for (draft_len, accepted_len), times in alike.items():
        for context, (start, stop) in enumerate(zip(DEPTH_STARTS, stops, strict=True)):
            ones[context] += times * max(0, min(accepted_len, stop - 1) - start + 1)
            is_refused_here = start <= accepted_len + 1 < stop
            zeros[context] += times * (accepted_len < draft_len and is_refused_here)
    return {context: (ones[context], zeros[context]) for context in ones}


def last_counts(requests: Iterable[Rounds]) -> dict[str, Counts]:
    """Ones and zeros by what became of the previous round of the request."""
    alike: Counter[tuple[Round | None, Round]] = Counter()
    for request in requests:
        alike.update(zip([None, *request[:-1]], request, strict=False))
    counts: dict[str, Counts] = {}
    for (previous, (draft_len, accepted_len)), times in alike.items():
        ones, zeros = counts.get(_fate(previous), (0, 0))
        refused = accepted_len < draft_len
        counts[_fate(previous)] = (ones + times * accepted_len, zeros + times * refused)
    return counts


def _fate(one_round: Round | None) -> str:
    if one_round is None:
        return "none"
    draft_len, accepted_len = one_round
    if accepted_len == draft_len:
        return "all"
    return "some" if accepted_len else "nothing"


def log_best_likelihood(ones: int, zeros: int) -> float:
    """log (S/n)^S (R/n)^R."""
    total = ones + zeros
    return float(xlogy(ones, ones / total) + xlogy(zeros, zeros / total))


def log_mixture(counts: Mapping[int, Counts] | Mapping[str, Counts]) -> float:
    """log Π_c Be(n_c1 + ½, n_c0 + ½) / Be(½, ½)."""
    return math.fsum(
        float(betaln(ones + 0.5, zeros + 0.5)) - math.log(math.pi)
        for ones, zeros in counts.values()
    )


def log_request_mixture(per_request: Iterable[Counts]) -> float:
    """log of E_request's numerator; requests in plan order."""
    logs = []
    before_ones = before = 0
    for ones, zeros in per_request:
        mean = (0.5 + before_ones) / (1 + before)
        terms = [
            float(
                betaln(strength * mean + ones, strength * (1 - mean) + zeros)
                - betaln(strength * mean, strength * (1 - mean))
            )
            for strength in CONCENTRATIONS
        ]
        top = max(terms)
        logs.append(top + math.log(math.fsum(math.exp(term - top) for term in terms) / len(terms)))
        before_ones += ones
        before += ones + zeros
    return math.fsum(logs)


def _evidence(logs: Mapping[str, float]) -> IidResult:
    """Mean of the parts; p = min(1, 1/E). What a float cannot hold is cut to its largest."""
    largest = math.log(sys.float_info.max) - 1
    parts = {name: math.exp(min(log_part, largest)) for name, log_part in logs.items()}
    evidence = math.fsum(part / len(parts) for part in parts.values())
    p = min(1.0, 1 / evidence) if evidence > 1 else 1.0
    return IidResult(evidence, p, EVIDENCE_METHOD, parts=parts)


def _counts(one_round: tuple[int, int]) -> Counts:
    draft_len, accepted_len = one_round
    return accepted_len, int(accepted_len < draft_len)


def _add(counts: Iterable[Counts]) -> Counts:
    ones = zeros = 0
    for more_ones, more_zeros in counts:
        ones += more_ones
        zeros += more_zeros
    return ones, zeros
