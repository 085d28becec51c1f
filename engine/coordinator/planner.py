"""The planner: draft length and depth that bring the most tokens a second on this ring.

A *train* is what is sent between two divergences: frames of k drafts, several in flight. Given how
likely each token of the train survives and what frames cost here, the planner computes for every
(k, depth) of a grid

    rate = E[tokens committed until the train ends] / E[time until it ends]

and sends a frame of the best one; a train ends where a draft is refuted or output must end. Each
frame is planned anew, on condition that all tokens before it survive: else it will not matter.
May choose to draft nothing. Must never know links, clocks or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.coordinator.policy import DraftPolicy, Situation
from engine.coordinator.records import FrameRecord
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.survival import Floats, Survival, verified_match
from engine.draft.drafter import Draft

LENGTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
HORIZON = 512  # tokens of a train that are looked at
TYPICAL = 16  # positions of a frame, where its very length does not matter
SLOWED = 1.0  # frames that one more frame is reckoned to slow; 0.5 to 2 differ little in replays
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Train:
    """The best shape of a train: k drafts a frame, depth frames in flight; k = 0 drafts nothing."""

    draft_len: int
    depth: int


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What was sent before and is taken as accepted: if it is not, what is sent now is lost."""

    num_tokens: int = 0
    num_frames: int = 0


class Outlook(Protocol):
    """Where the planner takes survival from."""

    def observe(self, record: FrameRecord) -> None:
        """One round."""

    def survival(self, situation: Situation, draft: Draft) -> Floats:
        """Probability that at least j tokens beyond the frontier survive, j = 1 …; falling."""


class LearnedOutlook:
    """Survival as learned (`engine.coordinator.survival`)."""

    def __init__(self, survival: Survival) -> None:
        self._survival = survival

    def observe(self, record: FrameRecord) -> None:
        self._survival.observe(record)

    def survival(self, situation: Situation, draft: Draft) -> Floats:
        match_len = verified_match(draft.match_len, situation.unverified_len)
        horizon = max(1, min(HORIZON, situation.remaining_len - 1))
        return self._survival.curve(draft.source, match_len, horizon)


class Planner(DraftPolicy):
    """See the module's header.

    Args:
        len_max: most drafts a frame.
        depth_max: most frames in flight.
    """

    name = "planner"

    def __init__(self, outlook: Outlook, cost: RingCost, len_max: int, depth_max: int) -> None:
        self._outlook = outlook
        self._cost = cost
        self._len_max = len_max
        self._lengths = [length for length in LENGTHS if length < len_max] + [len_max]
        self._depth_max = depth_max

    def next_len(self, situation: Situation) -> int:
        return self._len_max

    def keep_len(self, situation: Situation, draft: Draft) -> int:
        survival = self._outlook.survival(situation, draft)
        ahead = min(situation.unverified_len, len(survival) - 1)
        if not self._pays_now(float(survival[ahead]), situation.in_flight):
            return 0
        if ahead:
            survival = survival[ahead:] / max(float(survival[ahead - 1]), TINY)
        slots = max(1, self._depth_max - situation.in_flight)
        under_way = UnderWay(ahead, situation.in_flight)
        train = best_train(survival, self._cost, self._lengths, slots, under_way)
        return min(train.draft_len, len(draft.ids))

    def _pays_now(self, survives: float, in_flight: int) -> bool:
        """Is it worth sending behind frames in flight, or better to wait for the next reply?

        If its first draft survives, waiting costs the frame the rest of a loop; sending it slows
        those before it and, if it does not survive, those that come instead.
        """
        if not in_flight:
            return True
        cost = self._cost
        saved_ns = survives * (cost.loop_ns(TYPICAL) - in_flight * cost.gap_ns(TYPICAL))
        return saved_ns > SLOWED * cost.slowing_ns

    def observe(self, record: FrameRecord) -> None:
        self._outlook.observe(record)


def best_train(
    survival: Floats,
    cost: RingCost,
    lengths: list[int],
    depth_max: int,
    under_way: UnderWay,
) -> Train:
    """The train with the highest rate.

    Args:
        depth_max: frames that may still be sent.

    Shapes:
        survival: of the 1st, 2nd … token beyond what is under way, to the last that may be drafted.
    """
    # Behind frames in flight, drafting nothing is no train of its own: `_pays_now` has decided.
    best, best_rate = Train(0, 1), 1.0 / max(1.0, cost.loop_ns(1))
    if under_way.num_frames:
        best_rate = 0.0
    # Tokens a train brings: those that survive and the one that the last reply adds.
    tokens = 1.0 + under_way.num_tokens + float(survival.sum())
    for length in lengths:
        ends = _ends(survival, length)
        depths = np.arange(1, min(depth_max, len(ends)) + 1)
        times_ns = _expected_times(ends, length, cost, depths)
        times_ns = times_ns + cost.slowing_ns * (under_way.num_frames + depths - 1)
        rates = tokens / np.maximum(times_ns, 1.0)
        idx = int(rates.argmax())
        if rates[idx] > best_rate:
            best, best_rate = Train(length, int(depths[idx])), float(rates[idx])
        if length >= len(survival):
            break  # one frame holds it all: a longer one is the same
    return best


def _ends(survival: Floats, length: int) -> Floats:
    """Probability that the train ends with the reply of its 1st, 2nd … frame; sums to 1.

    A reply also decides the first draft of the next frame.
    """
    num_frames = -(-len(survival) // length)
    last_decided = np.minimum(np.arange(1, num_frames) * length, len(survival) - 1)
    survived = np.concatenate(([1.0], survival[last_decided]))  # to see this frame's reply matter
    return survived - np.concatenate((survived[1:], [0.0]))


def _expected_times(
    ends: Floats, length: int, cost: RingCost, depths: npt.NDArray[np.int64]
) -> Floats:
    """E[time until the train ends], ns, by depth."""
    loop_ns, gap_ns = cost.loop_ns(length + 1), cost.gap_ns(length)
    frame = np.arange(len(ends))
    depth = depths[:, None]
    in_line = gap_ns * frame
    # Either the ring is long and frames come in groups of `depth` a loop, or it is busy.
    grouped = loop_ns * (frame // depth) + gap_ns * (frame % depth)
    replies_ns = loop_ns + np.maximum(grouped, in_line)
    times: Floats = (replies_ns * ends).sum(axis=1)
    return times
