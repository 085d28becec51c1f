"""When the replies of frames come that were sent together: a small model of an idle ring.

N stages in a row, each computing one frame at a time, links of equal delay between them and to the
coordinator; stages that share processors slow each other: n computing at once run at
1 / (1 + overlap · (n − 1)) of their speed alone. Time is counted in what one stage alone needs for
one frame. Guarantees: pure; equal arguments give equal times. Must never know tokens or clocks.
`bench.ring_model` is the general case, for replays.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

DELAY_STEP = 1.1  # ratio of neighbouring delays that are told apart
OVERLAP_STEP = 0.1
LEAST_DELAY, MOST_DELAY = 1e-3, 1e3  # links that are faster or slower change nothing
STALE, FRESH = 0, 1  # epochs


@dataclass(frozen=True, slots=True)
class TrainTimes:
    """Of a train of equal frames, in stage times.

    Attributes:
        replies: of each frame, since they were sent.
        leftover: how much longer than alone a frame takes that is sent with the first reply, when
            all others have become stale by it.
    """

    replies: tuple[float, ...]
    leftover: float


def train_times(num_stages: int, delay: float, overlap: float, num_frames: int) -> TrainTimes:
    """Times of `num_frames` frames sent at once, to a step of the grid.

    Args:
        delay: of each of the N + 1 links, in stage times.
    """
    delay = min(MOST_DELAY, max(LEAST_DELAY, delay))
    delay_idx = round(math.log(delay) / math.log(DELAY_STEP))
    return _on_grid(num_stages, delay_idx, round(overlap / OVERLAP_STEP), num_frames)


@lru_cache(maxsize=8192)
def _on_grid(num_stages: int, delay_idx: int, overlap_idx: int, num_frames: int) -> TrainTimes:
    delay, overlap = DELAY_STEP**delay_idx, overlap_idx * OVERLAP_STEP
    replies = _Ring(num_stages, delay, overlap, num_frames).run(num_frames)
    ring = _Ring(num_stages, delay, overlap, num_frames)
    (first,) = ring.run(1)
    ring.send(FRESH, first)
    fresh = ring.run_to_fresh()
    alone = num_stages + (num_stages + 1) * delay
    return TrainTimes(tuple(replies), fresh - first - alone)


class _Ring:
    """A queue and a frame at work by stage; frames are their epochs."""

    def __init__(self, num_stages: int, delay: float, overlap: float, num_frames: int) -> None:
        self._delay, self._overlap = delay, overlap
        self._waiting: list[deque[tuple[float, int]]] = [deque() for _ in range(num_stages)]
        self._computing: list[int | None] = [None] * num_stages
        self._left = [0.0] * num_stages
        self._now = 0.0
        for _ in range(num_frames):
            self.send(STALE, 0.0)

    def send(self, epoch: int, when: float) -> None:
        """A frame leaves the coordinator."""
        self._waiting[0].append((when + self._delay, epoch))

    def run(self, num_replies: int) -> list[float]:
        """Times of the next replies."""
        replies: list[float] = []
        while len(replies) < num_replies:
            if self._step() is not None:
                replies.append(self._now + self._delay)
        return replies

    def run_to_fresh(self) -> float:
        """Time of the fresh frame's reply."""
        while self._step() != FRESH:
            pass
        return self._now + self._delay

    def _step(self) -> int | None:
        """One event; the frame that left the last stage by it."""
        busy = [place for place, epoch in enumerate(self._computing) if epoch is not None]
        speed = 1.0 / (1.0 + self._overlap * max(0, len(busy) - 1))
        events = [(self._now + self._left[place] / speed, place) for place in busy]
        for place, waiting in enumerate(self._waiting):
            if waiting and self._computing[place] is None:
                events.append((max(self._now, waiting[0][0]), place))
        when, place = min(events)
        for other in busy:
            self._left[other] = max(0.0, self._left[other] - (when - self._now) * speed)
        self._now = when
        epoch = self._computing[place]
        if epoch is None:
            self._begin(place)
            return None
        self._computing[place] = None
        if place + 1 == len(self._waiting):
            return epoch
        self._waiting[place + 1].append((when + self._delay, epoch))
        return None

    def _begin(self, place: int) -> None:
        waiting = self._waiting[place]
        if any(epoch == FRESH and came <= self._now for came, epoch in waiting):
            while waiting[0][1] == STALE:
                waiting.popleft()  # a stage throws them out when a newer frame comes
        self._computing[place] = waiting.popleft()[1]
        self._left[place] = 1.0
