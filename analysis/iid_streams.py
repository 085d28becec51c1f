"""`stream_runs` and `full_excess`: do ones and zeros of a request's bit stream clump?

Guarantees: given the numbers of ones and zeros, every order of a request's bits counts the same,
so that the p-values hold whatever each request's α is. Must never know where the bits come from.

Source: DESIGN section 14, table, `stream_runs` and `full_excess`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from scipy import stats

from analysis.iid_bits import parse_rounds
from analysis.iid_compositions import composition_rows, num_compositions
from analysis.iid_laws import ExactLaw, FloatLaw, Ints, checked_law, negated, summed_result
from analysis.iid_result import Bits, IidResult, NotApplicable

StreamKey = tuple[int, int]  # ones s, zeros R
MAX_DRAWN_LEN = 512  # K, for draws
MAX_STEPS = 20_000_000  # numbers in the tables of one study


def stream_key(bits: Bits) -> StreamKey:
    """What a request's reference set depends on: its numbers of ones and of zeros."""
    ones = sum(bits)
    return ones, len(bits) - ones


def num_runs(bits: Bits) -> int:
    """Stretches of equal bits."""
    return sum(left != right for left, right in pairwise(bits)) + (len(bits) > 0)


def stream_runs(
    requests: Sequence[Bits], num_draws: int | None = None
) -> IidResult | NotApplicable:
    """Runs in the bits, few.

    Reference set per request: all orders of its bits; requests convolved. DESIGN's limit of 500
    rounds is read as 500 zeros here, since bits alone do not know rounds.

    Args:
        requests: bits of each request, 1 accepted, 0 refused.
        num_draws: m where draws are needed; None: DESIGN's.
    """
    streams = sorted(list(bits) for bits in requests if len(bits))
    if not streams:
        return NotApplicable("no tested bit")
    keys = sorted(map(stream_key, streams))
    runs = sum(map(num_runs, streams))
    result = summed_result(
        "stream_runs",
        RunsFamily(),
        keys,
        observed=-runs,
        num_rounds=sum(zeros for _, zeros in keys),
        canonical=streams,
        num_bits=sum(map(len, streams)),
        num_draws=num_draws,
    )
    return IidResult(runs, result.p, result.method, result.p_exact)


class RunsFamily:
    """Laws of −runs per request.

    P(2j runs) = 2 C(s−1, j−1) C(R−1, j−1) / C(n, s),
    P(2j + 1) = [C(s−1, j) C(R−1, j−1) + C(s−1, j−1) C(R−1, j)] / C(n, s).

    Source: Wald and Wolfowitz 1940.
    """

    def refusals(self, key: StreamKey) -> int:
        """Zeros of a request."""
        return key[1]

    def fits_exact(self, keys: Iterable[StreamKey]) -> bool:
        """Always: closed form."""
        return True

    def fits_float(self, key: StreamKey) -> bool:
        """Always: closed form."""
        return True

    def exact_laws(self, keys: set[StreamKey]) -> dict[StreamKey, ExactLaw]:
        """Laws in integers."""
        return {key: negated(_runs_law(*key)) for key in keys}

    def float_laws(self, keys: set[StreamKey]) -> dict[StreamKey, FloatLaw]:
        """Integers, each divided by C(n, s)."""
        laws = {}
        for ones, zeros in keys:
            law = negated(_runs_law(ones, zeros))
            members = math.comb(ones + zeros, ones)
            weights = np.array([count / members for count in law.counts])
            laws[ones, zeros] = checked_law(law.offset, weights)
        return laws

    def draw(self, key: StreamKey, generator: np.random.Generator, num_draws: int) -> Ints:
        """Draws of −runs from two hypergeometric numbers.

        J of the R + 1 gaps between zeros hold ones: P(J) ∝ C(R + 1, J) C(s − 1, s − J); any J are
        equally likely, E of them at the two ends. Runs of ones: J; of zeros: J + 1 − E.
        """
        ones, zeros = key
        if not ones or not zeros:
            return np.full(num_draws, -1, dtype=np.int64)
        held = generator.hypergeometric(zeros + 1, ones - 1, ones, size=num_draws)
        ends = generator.hypergeometric(2, zeros - 1, held)
        drawn: Ints = -(2 * held + 1 - ends)
        return drawn


def _runs_law(ones: int, zeros: int) -> ExactLaw:
    if not ones or not zeros:
        return ExactLaw(1, [1])
    most = min(ones, zeros)
    ones_ways, zeros_ways = [1], [1]  # C(s − 1, j), C(R − 1, j)
    for idx in range(most):
        ones_ways.append(ones_ways[-1] * (ones - 1 - idx) // (idx + 1))
        zeros_ways.append(zeros_ways[-1] * (zeros - 1 - idx) // (idx + 1))
    counts = []
    for half in range(1, most + 1):
        counts.append(2 * ones_ways[half - 1] * zeros_ways[half - 1])
        odd = ones_ways[half] * zeros_ways[half - 1] + ones_ways[half - 1] * zeros_ways[half]
        counts.append(odd)
    return ExactLaw(2, counts)


def full_excess(
    requests: Sequence[Bits], draft_len: int, num_draws: int | None = None
) -> IidResult | NotApplicable:
    """F, complete full rounds in the parse of the bits by K, large.

    Reference set per request: all orders of its bits; requests convolved. With s ones and R zeros
    P(F = f) = C(R + f, f) · N_{R+1}(s − fK) / C(n, s): the ones fill R + 1 gaps, each gap a number
    of full rounds and a rest below K.

    Args:
        requests: bits of each request, 1 accepted, 0 refused.
        draft_len: K.
        num_draws: m where draws are needed; None: DESIGN's.
    """
    streams = sorted(list(bits) for bits in requests if len(bits))
    if not streams:
        return NotApplicable("no tested bit")
    if draft_len > MAX_DRAWN_LEN:
        return NotApplicable(f"drafts longer than {MAX_DRAWN_LEN}")
    keys = sorted(map(stream_key, streams))
    full = [sum(a == k for k, a in parse_rounds(bits, draft_len)) for bits in streams]
    return summed_result(
        "full_excess",
        FullFamily(draft_len),
        keys,
        observed=sum(full),
        num_rounds=sum(full) + sum(zeros for _, zeros in keys),
        canonical=streams,
        num_bits=sum(map(len, streams)),
        num_draws=num_draws,
    )


class FullFamily:
    """Laws of F per request, for one K."""

    def __init__(self, draft_len: int) -> None:
        self.draft_len = draft_len

    def refusals(self, key: StreamKey) -> int:
        """Zeros of a request."""
        return key[1]

    def fits_exact(self, keys: Iterable[StreamKey]) -> bool:
        """Whether all terms of all laws are affordable."""
        terms = (len(self._support(*key)) * (key[1] + 2) for key in keys)
        return sum(terms) <= MAX_STEPS // 20

    def fits_float(self, key: StreamKey) -> bool:
        """Whether N_q(u) / K^q neither underflows nor needs too large a table."""
        num_gaps = key[1] + 1
        in_range = num_gaps * math.log10(self.draft_len) < 290
        return in_range and num_gaps**2 * self.draft_len <= MAX_STEPS

    def exact_laws(self, keys: set[StreamKey]) -> dict[StreamKey, ExactLaw]:
        """Laws in integers."""
        laws = {}
        for ones, zeros in keys:
            support = self._support(ones, zeros)
            counts = [
                math.comb(zeros + full, full)
                * num_compositions(zeros + 1, ones - full * self.draft_len, self.draft_len)
                for full in support
            ]
            assert sum(counts) == math.comb(ones + zeros, ones)
            laws[ones, zeros] = ExactLaw(support.start, counts)
        return laws

    def float_laws(self, keys: set[StreamKey]) -> dict[StreamKey, FloatLaw]:
        """[C(R + f, f) K^{R+1} / C(n, s)] · [N_{R+1}(u) / K^{R+1}]; N from one table."""
        most = max((zeros for _, zeros in keys), default=0)
        rows = composition_rows(self.draft_len, most + 1, (most + 1) * (self.draft_len - 1))
        laws = {}
        for ones, zeros in keys:
            support = self._support(ones, zeros)
            members = math.comb(ones + zeros, ones)
            ways = math.comb(zeros + support.start, zeros) * self.draft_len ** (zeros + 1)
            shares = []
            for full in support:
                shares.append(ways / members)
                ways = ways * (zeros + full + 1) // (full + 1)
            rests = rows[zeros + 1][[ones - full * self.draft_len for full in support]]
            laws[ones, zeros] = checked_law(support.start, np.array(shares) * rests)
        return laws

    def draw(self, key: StreamKey, generator: np.random.Generator, num_draws: int) -> Ints:
        """Draws of F.

        Geometric gaps of any ratio x, conditioned on their sum s, are a uniform order of the bits.
        A gap is K·(full rounds) + rest, the two independent: F is negative binomial with
        1 − x^K, the rests are bounded. The rests are drawn, their sum leaves one F, kept with
        probability P(F) / max P.
        """
        ones, zeros = key
        bound, num_gaps = self.draft_len, zeros + 1
        if not zeros or not ones or bound == 1:
            return np.full(num_draws, ones // bound, dtype=np.int64)
        ratio = ones / (ones + num_gaps)
        weights = ratio ** np.arange(bound)
        law = stats.nbinom.pmf(
            np.arange(ones // bound + 1), num_gaps, -np.expm1(bound * np.log(ratio))
        )
        kept: list[Ints] = []
        while sum(map(len, kept)) < num_draws:
            counts = generator.multinomial(
                num_gaps, weights / weights.sum(), size=max(1000, num_draws)
            )
            left = ones - counts @ np.arange(bound)
            possible = (left >= 0) & (left % bound == 0)
            full = left[possible] // bound
            kept.append(full[generator.random(len(full)) < law[full] / law.max()])
        return np.concatenate(kept)[:num_draws].astype(np.int64)

    def _support(self, ones: int, zeros: int) -> range:
        """Numbers of full rounds that s ones and R zeros allow."""
        overflow = ones - (zeros + 1) * (self.draft_len - 1)
        return range(max(0, -(-overflow // self.draft_len)), ones // self.draft_len + 1)
