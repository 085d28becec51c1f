"""How likely drafted tokens are to be accepted, by what is known when they are drafted.

A draft token's key: its source, how long a *verified* suffix the drafter matched, how long the
current run of accepted drafts is, and the token's distance from the last verified one. Counts of
accepted and refuted drafts are kept by key, start from a prior fitted on committed receipts
(`prior.json`) and are forgotten slowly; a key that was seen little leans on the coarser key without
the run, that one on the one without the match. Must never know costs, links or clocks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.coordinator.records import FrameRecord

PRIOR_PATH = Path(__file__).resolve().parent / "prior.json"
MATCH_EDGES = (1, 2, 3, 4, 6, 9, 17, 33)  # a bucket begins at each
RUN_EDGES = (0, 1, 4, 12, 32)
DISTANCE_EDGES = (0, 1, 2, 4, 8, 16, 32)
PRIOR_WEIGHT = 12.0  # most observations that one key of the prior is worth
FORGET = 0.99  # by round
SHIFT_RATE = 0.12  # how fast this text's own difference from the prior is learned, in logit
MAX_SHIFT = 3.0
Key = tuple[str, int, int, int]  # source, match, run, distance bucket


@dataclass(frozen=True, slots=True)
class Counts:
    """Observations of one key."""

    accepted: float
    tested: float


Prior = Mapping[Key, Counts]


def bucket(edges: tuple[int, ...], value: int) -> int:
    """Index of the last edge that is not above the value; 0 below all."""
    return max(0, sum(edge <= value for edge in edges) - 1)


def key_of(source: str, match_len: int, run_len: int, distance: int) -> Key:
    """The key of one draft token."""
    return (
        source,
        bucket(MATCH_EDGES, match_len),
        bucket(RUN_EDGES, run_len),
        bucket(DISTANCE_EDGES, distance),
    )


@cache
def load_prior(path: Path = PRIOR_PATH) -> Prior:
    """The shipped prior: `{"keys": {"ngram/m/r/d": [accepted, tested], …}, …}`."""
    keys = json.loads(path.read_text(encoding="utf-8"))["keys"]
    prior = {}
    for name, (accepted, tested) in keys.items():
        source, match, run, distance = name.split("/")
        prior[source, int(match), int(run), int(distance)] = Counts(accepted, tested)
    return prior


class Survival:
    """Online estimates for one job."""

    def __init__(self, prior: Prior) -> None:
        self._prior = _with_margins(prior)
        self._own: dict[Key, list[float]] = {}
        self._shift: dict[str, float] = {}
        self.run_len = 0  # accepted drafts since the last refuted one
        self.version = 0

    def observe(self, record: FrameRecord) -> None:
        """One round; its tested drafts in order."""
        for counts in self._own.values():
            counts[0] *= FORGET
            counts[1] *= FORGET
        match_len = verified_match(record.match_len, record.unverified_len)
        for idx in range(record.tested_len):
            accepted = idx < record.accepted_len
            key = key_of(record.source, match_len, self.run_len, record.unverified_len + idx)
            self._learn_shift(key, accepted)
            counts = self._own.setdefault(key, [0.0, 0.0])
            counts[0] += accepted
            counts[1] += 1
            self.run_len = self.run_len + 1 if accepted else 0
        self.version += 1

    def probability(self, source: str, match_len: int, distance: int) -> float:
        """That the token at this distance is accepted, given that all before it are."""
        key = key_of(source, match_len, self.run_len + distance, distance)
        return _shifted(self._estimate(key), self._shift.get(source, 0.0))

    def steps(self, horizon: int) -> list[int]:
        """Distances below `horizon` at which the probability may change; 0 is the first."""
        edges = {*DISTANCE_EDGES, *(edge - self.run_len for edge in RUN_EDGES)}
        return sorted(edge for edge in edges if 0 <= edge < horizon)

    def _estimate(self, key: Key) -> float:
        source, match, _, distance = key
        estimate = 0.5
        for coarse in ((source, -1, -1, distance), (source, match, -1, distance), key):
            prior = self._prior.get(coarse)
            if prior is not None:
                weight = min(1.0, PRIOR_WEIGHT / prior.tested)
                estimate = _blend(estimate, prior.accepted * weight, prior.tested * weight)
        accepted, tested = self._own.get(key, (0.0, 0.0))
        return (estimate * PRIOR_WEIGHT + accepted) / (PRIOR_WEIGHT + tested)

    def _learn_shift(self, key: Key, accepted: bool) -> None:
        source = key[0]
        shift = self._shift.get(source, 0.0)
        miss = accepted - _shifted(self._estimate(key), shift)
        self._shift[source] = max(-MAX_SHIFT, min(MAX_SHIFT, shift + SHIFT_RATE * miss))


def verified_match(match_len: int, unverified_len: int) -> int:
    """How much of the matched suffix lies in committed text; at least 1 if anything matched."""
    return max(1, match_len - unverified_len) if match_len else 0


def _blend(coarse: float, accepted: float, tested: float) -> float:
    """A finer estimate that leans on the coarser one as if it were two observations."""
    return (2.0 * coarse + accepted) / (2.0 + tested)


def _shifted(probability: float, shift: float) -> float:
    clipped = min(0.9995, max(0.0005, probability))
    return 1.0 / (1.0 + math.exp(-(math.log(clipped / (1.0 - clipped)) + shift)))


def _with_margins(prior: Prior) -> dict[Key, Counts]:
    """The prior and its sums over runs, and over runs and matches."""
    summed: dict[Key, list[float]] = {}
    for (source, match, run, distance), counts in prior.items():
        for coarse in ((match, run), (match, -1), (-1, -1)):
            total = summed.setdefault((source, *coarse, distance), [0.0, 0.0])
            total[0] += counts.accepted
            total[1] += counts.tested
    return {key: Counts(*total) for key, total in summed.items()}
