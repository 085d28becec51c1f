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

from engine.coordinator.policy import DraftPolicy, Situation
from engine.coordinator.records import FrameRecord
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.survival import Floats, Survival, verified_match
from engine.draft.drafter import Draft

LENGTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
HORIZON = 512  # tokens of a train that are looked at
TYPICAL = 16  # positions of a frame that is under way, whatever it holds
LEAST_GAIN = 0.003  # of a loop: a full ring gains nothing, but for rounding
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Train:
    """The best shape of a train: k drafts a frame, depth frames in flight; k = 0 drafts nothing."""

    draft_len: int
    depth: int


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What was sent before and is taken as accepted: if it is not, what is sent now is lost.

    Attributes:
        survives: chance that all of it is accepted, and the first draft behind it.
    """

    num_tokens: int = 0
    num_frames: int = 0
    survives: float = 1.0


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
        survives = float(survival[ahead])
        if ahead:
            survival = survival[ahead:] / max(float(survival[ahead - 1]), TINY)
        slots = max(1, self._depth_max - situation.in_flight)
        under_way = UnderWay(ahead, situation.in_flight, survives)
        train = best_train(survival, self._cost, self._lengths, slots, under_way)
        kept_len = min(train.draft_len, len(draft.ids))
        return kept_len if self._pays_now(kept_len, under_way) else 0

    def _pays_now(self, length: int, under_way: UnderWay) -> bool:
        """Is it worth sending behind frames in flight, or better to wait for the next reply?

        If all before it survives, the frame's reply comes sooner by what is saved.
        """
        num_frames = under_way.num_frames
        if not num_frames or not length:
            return True
        next_reply_ns = self._cost.train(length, num_frames).replies_ns[0]
        reply_ns = self._cost.train(length, num_frames + 1).replies_ns[-1]
        saved_ns = next_reply_ns + self._cost.loop_ns(length) - reply_ns
        gain_ns = under_way.survives * saved_ns
        gain_ns -= (1.0 - under_way.survives) * lost_ns(self._cost, length, num_frames)
        return gain_ns > LEAST_GAIN * self._cost.loop_ns(length)

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
        times_ns = np.array(
            [
                (_end_times(len(survival), length, depth, under_way, cost) * ends).sum()
                for depth in range(1, min(depth_max, len(ends)) + 1)
            ]
        )
        rates = tokens / np.maximum(times_ns, 1.0)
        idx = int(rates.argmax())
        if rates[idx] > best_rate:
            best, best_rate = Train(length, idx + 1), float(rates[idx])
        if length >= len(survival):
            break  # one frame holds it all: a longer one is the same
    return best


def lost_ns(cost: RingCost, length: int, in_flight: int) -> float:
    """What a frame behind frames in flight costs if it does not matter.

    It slows the reply that says so, and the frame that comes instead.
    """
    before, after = cost.train(length, in_flight), cost.train(length, in_flight + 1)
    slowed_ns = after.replies_ns[0] - before.replies_ns[0]
    return slowed_ns + after.leftover_ns - before.leftover_ns


def _ends(survival: Floats, length: int) -> Floats:
    """Probability that the train ends with the reply of its 1st, 2nd … frame; sums to 1.

    A reply also decides the first draft of the next frame.
    """
    num_frames = -(-len(survival) // length)
    last_decided = np.minimum(np.arange(1, num_frames) * length, len(survival) - 1)
    survived = np.concatenate(([1.0], survival[last_decided]))  # to see this frame's reply matter
    return survived - np.concatenate((survived[1:], [0.0]))


def _end_times(
    num_tokens: int, length: int, depth: int, under_way: UnderWay, cost: RingCost
) -> Floats:
    """When the reply of each frame has come, and what is then stale is out of the way, ns.

    Args:
        depth: frames that are sent at once, behind those under way; others as replies come.

    Shapes:
        return: [frames]
    """
    length = min(length, num_tokens)
    num_frames = -(-num_tokens // length)
    behind, together = under_way.num_frames, under_way.num_frames + depth
    trains = [cost.train(length, num) for num in range(1, together + 1)]
    first = np.array(trains[-1].replies_ns)
    gap_ns = (first[-1] - first[0]) / (together - 1) if together > 1 else 0.0
    place = behind + np.arange(num_frames)
    # Either the ring is long and frames come in groups a loop apart, or it is busy.
    grouped = first[0] * (place // together) + first[place % together]
    in_line = first[-1] + gap_ns * (place - together + 1)
    replies_ns: Floats = np.where(place < together, grouped, np.maximum(grouped, in_line))
    if behind:  # frames under way are what they are, whatever this length
        replies_ns += cost.train(TYPICAL, behind).replies_ns[-1] - first[behind - 1]
        alone_ns = np.array(trains[depth - 1].replies_ns[:num_frames])
        replies_ns[:depth] = np.maximum(replies_ns[:depth], alone_ns)
    else:  # the first frame carries a committed token too
        replies_ns += cost.loop_ns(length + 1) - cost.loop_ns(length)
    short_len = num_tokens - length * (num_frames - 1)
    if num_frames > 1 and short_len < length:  # the last frame may be a short one
        saved = 1.0 - cost.gap_ratio(short_len, length)
        replies_ns[-1] -= saved * (replies_ns[-1] - replies_ns[-2])
    leftover_ns = np.array([train.leftover_ns for train in trains])
    num_stale = np.minimum(num_frames - 1 - np.arange(num_frames), together - 1)
    replies_ns += leftover_ns[num_stale]
    return replies_ns
