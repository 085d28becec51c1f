"""What a test of the i.i.d. study returns, and the rules that every test shares.

Guarantees: a p-value is in (0, 1] and names the method that gave it; limits between methods, the
number of draws, the seed and the treatment of ties are one rule, here. Must never know a statistic.

Source: DESIGN section 14, "Sizes" and "Holm".
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

EXACT_ROUNDS = 500  # of all requests together
EXACT_REFUSALS = 24  # of one request
FLOAT_REFUSALS = 100  # of one request
FLOAT_MARGIN = 1e-9  # added to a float64 p: more than its rounding
SUM_TOLERANCE = 1e-10
SMALLEST_PRINTED = 1e-6
MANY_BITS = 100_000
NUM_DRAWS, NUM_DRAWS_MANY_BITS = 99_999, 9_999
FIRST_BATCH = 60  # draws before the first look at whether they are enough

EXACT_METHOD = "exact integers"
FLOAT_METHOD = "float64, requests merged by FFT, p + 1e-9"
EVIDENCE_METHOD = "e-value, p = min(1, 1/E)"

# A request as rounds (draft_len, accepted_len) or as tested bits; a study as its requests.
Round = tuple[int, int]
Rounds = Sequence[Round]
Bits = Sequence[int]


@dataclass(frozen=True, slots=True)
class IidResult:
    """One test's outcome; `p_exact` only where the p-value is a ratio of integers."""

    statistic: int | float | Fraction
    p: float
    method: str
    p_exact: Fraction | None = None
    parts: Mapping[str, float] | None = None

    def as_json(self) -> dict[str, object]:
        """The printed form: a fraction as text, a float64 p below 1e-6 as '< 1e-6'."""
        statistic = self.statistic
        printed: dict[str, object] = {
            "statistic": str(statistic) if isinstance(statistic, Fraction) else statistic
        }
        hidden = self.method == FLOAT_METHOD and self.p < SMALLEST_PRINTED
        printed["p"] = "< 1e-6" if hidden else self.p
        if self.p_exact is not None:
            printed["p_exact"] = str(self.p_exact)
        printed["method"] = self.method
        return printed


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Why a test says nothing about a study; never a p."""

    reason: str

    def as_json(self) -> dict[str, object]:
        """The printed form."""
        return {"not_applicable": self.reason}


@dataclass(frozen=True, slots=True)
class HolmRow:
    """One test in Holm's procedure."""

    adjusted_p: float
    level: float  # the level that its own p was compared with
    rejected: bool


def exact_result(statistic: int | Fraction, p: Fraction) -> IidResult:
    """A p-value that is a ratio of integers."""
    return IidResult(statistic, max(float(p), sys.float_info.min), EXACT_METHOD, p)


def float_result(statistic: int | Fraction, tail: float) -> IidResult:
    """A p-value in float64, on the safe side of its rounding."""
    return IidResult(statistic, min(1.0, max(0.0, tail) + FLOAT_MARGIN), FLOAT_METHOD)


def drawn_result(statistic: int | float | Fraction, num_extreme: int, num_draws: int) -> IidResult:
    """A Monte Carlo p-value: p = (b + 1) / (m + 1), b draws at least as extreme, ties among them.

    Source: Phipson and Smyth 2010.
    """
    p = (num_extreme + 1) / (num_draws + 1)
    return IidResult(statistic, p, f"Monte Carlo, m = {num_draws}")


def enough_for(level: float, num_draws: int) -> int:
    """⌊level·(m + 1)⌋: with so many of m draws at least as extreme, p is above the level."""
    return math.floor(level * (num_draws + 1) + 1e-9)  # 0.29 · 100 is 28.999… in float64


def drawn_until(
    statistic: int | float | Fraction,
    num_extreme: Callable[[int], int],
    num_draws: int,
    enough: int | None = None,
) -> IidResult:
    """A Monte Carlo p-value; where only a level is asked for, drawing stops when that is settled.

    Args:
        num_extreme: draws so many times more and counts the draws at least as extreme.
        num_draws: m, at most.
        enough: stop when so many draws were as extreme; with `enough_for` a level what is returned
            is above it exactly if all m draws would have given such a p. None: draw them all.
    """
    if enough is None:
        return drawn_result(statistic, num_extreme(num_draws), num_draws)
    done, found, batch = 0, 0, FIRST_BATCH
    while done < num_draws and found < enough:
        batch = min(batch, num_draws - done)
        found += num_extreme(batch)
        done += batch
        batch *= 4
    return drawn_result(statistic, found, done)


def draws_for(num_bits: int) -> int:
    """m, from the number of tested bits in the study."""
    return NUM_DRAWS_MANY_BITS if num_bits > MANY_BITS else NUM_DRAWS


def seeded_generator(test: str, canonical: object) -> np.random.Generator:
    """Random numbers seeded by SHA-256(test ‖ canonical).

    Args:
        test: the test's name.
        canonical: the study as the test takes it, requests sorted; hashed as JSON without blanks.
    """
    body = json.dumps(canonical, separators=(",", ":")).encode()
    digest = hashlib.sha256(test.encode() + body).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def holm(p_by_test: Mapping[str, float], level: float = 0.01) -> dict[str, HolmRow]:
    """Holm's procedure over the applicable tests of one study.

    The i-th smallest of h p-values (i from 0) is compared with level / (h − i); the first one
    above its level stops. The smallest's level, level / h, is the entry level.

    Source: Holm 1979; DESIGN section 14.
    """
    rows: dict[str, HolmRow] = {}
    adjusted_p, rejected = 0.0, True
    for idx, test in enumerate(sorted(p_by_test, key=lambda name: (p_by_test[name], name))):
        num_left = len(p_by_test) - idx
        adjusted_p = max(adjusted_p, min(1.0, num_left * p_by_test[test]))
        rejected = rejected and p_by_test[test] <= level / num_left
        rows[test] = HolmRow(adjusted_p, level / num_left, rejected)
    return rows
