"""How likely drafted tokens are to be accepted, by what is known when they are drafted.

What counts is how long the matched text before a token is: the *verified* suffix that the drafter
matched plus the drafts between, if all of those are accepted. The chance by that length is the
prior's, fitted on committed receipts (`prior.json`). Texts differ: each has a shift of its own, in
logit, one for first drafted tokens and one for those behind them, drawn from a few with known
weights. A job's rounds tell ever better which; the chance that a long draft survives is averaged
over what is still possible, so one good train makes the next one long. How a text opens has a shift
of its own too, until its first refusal behind a right token: many answers begin by copying. The run
of accepted drafts and the distance by itself predict nothing more (decision 0011). Must never know
costs, links or clocks.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

PRIOR_PATH = Path(__file__).resolve().parent / "prior.json"
# A bucket begins at each.
MATCH_EDGES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96)
SHIFTS = np.array([-3.0, -2.0, -1.25, -0.6, 0.0, 0.6, 1.25, 2.0, 3.0])  # logit
UNKNOWN = 0.5  # where the prior says nothing at all
LEAN_WEIGHT = 10.0  # observations that the shorter match is worth to the longer one
FORGET = 0.01  # of what a job's rounds told, by token: a text may change its ways
Floats = npt.NDArray[np.float64]
# Drafted tokens: right behind the last verified one, or further on, in the text's opening or later.
KINDS = ("first", "opening", "later")


@dataclass(frozen=True, slots=True)
class SourcePrior:
    """What is known of one drafter before a job.

    Attributes:
        accepted, tested: drafted tokens by bucket of the matched text before them.
        weights: of `SHIFTS`, by kind.
    """

    accepted: tuple[int, ...] = (0,) * len(MATCH_EDGES)
    tested: tuple[int, ...] = (0,) * len(MATCH_EDGES)
    weights: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def odds(self) -> Floats:
        """Logit of the chance by bucket; each leans on the one before it, so none is unknown."""
        rates, rate = [], UNKNOWN
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            rate = (accepted + LEAN_WEIGHT * rate) / (tested + LEAN_WEIGHT)
            rates.append(rate)
        odds: Floats = np.log(rates) - np.log1p(-np.array(rates))
        return odds


Prior = Mapping[str, SourcePrior]


@cache
def load_prior(path: Path = PRIOR_PATH) -> Prior:
    """The shipped prior, by source; the file also names the receipts that it was fitted on."""
    sources = json.loads(path.read_text(encoding="utf-8"))["sources"]
    return {
        source: SourcePrior(
            accepted=tuple(fitted["accepted"]),
            tested=tuple(fitted["tested"]),
            weights={kind: tuple(fitted["weights"][kind]) for kind in KINDS},
        )
        for source, fitted in sources.items()
    }


def kind_of(distance: int, is_opening: bool) -> str:
    """Which shift counts for a token so far behind the last verified one."""
    return KINDS[0] if not distance else KINDS[1] if is_opening else KINDS[2]


def bucket_of(matched_len: int) -> int:
    """Which bucket a token behind so much matched text belongs to."""
    return bisect_right(MATCH_EDGES, matched_len) - 1


def chances(odds: float) -> Floats:
    """Chance of a token under each shift.

    Shapes:
        return: [len(SHIFTS)]
    """
    return np.asarray(1.0 / (1.0 + np.exp(-(odds + SHIFTS))))


class TestedDraft(Protocol):
    """What is learned from: a round's record, or a drafter's account of it."""

    @property
    def source(self) -> str: ...
    @property
    def match_len(self) -> int: ...
    @property
    def unverified_len(self) -> int: ...
    @property
    def accepted_len(self) -> int: ...
    @property
    def tested_len(self) -> int: ...


class Survival:
    """Online estimates for one job."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._odds = {source: known.odds() for source, known in prior.items()}
        self._weights: dict[tuple[str, str], Floats] = {}
        self._is_opening = True

    def observe(self, record: TestedDraft) -> None:
        """One round; its tested drafts in order."""
        match_len = verified_match(record.match_len, record.unverified_len)
        for idx in range(record.tested_len):
            distance = record.unverified_len + idx
            kind = kind_of(distance, self._is_opening)
            right = chances(self._odds_at(record.source, match_len + distance))
            weights = self._weights_of(record.source, kind)
            told = weights * (right if idx < record.accepted_len else 1.0 - right)
            kept = (1.0 - FORGET) * told / told.sum()
            self._weights[record.source, kind] = kept + FORGET * self._before(record.source, kind)
            if distance and idx >= record.accepted_len:
                self._is_opening = False

    def curve(self, source: str, match_len: int, horizon: int) -> Floats:
        """Chance that at least the first 1, 2, …, `horizon` tokens are accepted; it never rises.

        Args:
            match_len: see `verified_match`.

        Shapes:
            return: [horizon]
        """
        starts = _changes(match_len, horizon)
        lengths = np.diff([*starts, horizon])
        odds = [self._odds_at(source, match_len + distance) for distance in starts]
        # Sums, not matrix products: a BLAS would start threads, in the middle of a job.
        first = float((chances(odds[0]) * self._weights_of(source, "first")).sum())
        if horizon == 1:
            return np.array([first])
        later = np.repeat(np.stack([chances(at) for at in odds[1:]]), lengths[1:], axis=0)
        weights = self._weights_of(source, kind_of(1, self._is_opening))
        mixed = (np.cumprod(later, axis=0) * weights).sum(axis=1)
        return np.concatenate(([first], first * mixed))

    def _odds_at(self, source: str, matched_len: int) -> float:
        known = self._odds.get(source)
        return 0.0 if known is None else float(known[bucket_of(matched_len)])

    def _weights_of(self, source: str, kind: str) -> Floats:
        return self._weights.get((source, kind), self._before(source, kind))

    def _before(self, source: str, kind: str) -> Floats:
        """Weights of the shifts before the job: the prior's, or all alike."""
        known = self._prior[source].weights.get(kind) if source in self._prior else None
        return np.full(len(SHIFTS), 1.0 / len(SHIFTS)) if known is None else np.array(known)


def _changes(match_len: int, horizon: int) -> list[int]:
    """Distances below `horizon` at which the chance may change; 0 and 1 are the first."""
    edges = {0, 1, *(edge - match_len for edge in MATCH_EDGES)}
    return sorted(edge for edge in edges if 0 <= edge < horizon)


def verified_match(match_len: int, unverified_len: int) -> int:
    """How much of the matched suffix lies in committed text; at least 1 if anything matched."""
    return max(1, match_len - unverified_len) if match_len else 0
