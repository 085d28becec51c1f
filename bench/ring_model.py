"""A discrete-event model of a ring: when does each frame's reply come back?

Frames wait in line at each stage, are computed, and cross a link with its delay and rate; stages of
one host share its cores; a frame of a newer epoch throws older ones out of the line, as
`engine.stage.frame_queue` does. Time is ns of a clock of its own. Guarantees: deterministic; equal
inputs give equal times. Imports nothing of the engine, so that the analysis can use it. Must never
know tokens, policies or receipts.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """What a stage alone on its host needs for a frame: level + T · position + end · context.

    T positions are computed over a cache that ends at position `end`.
    """

    frame_ns: float
    position_ns: float
    context_ns: float = 0.0

    def of(self, start: int, positions_len: int) -> float:
        """Nanoseconds for one frame."""
        end = start + positions_len
        return self.frame_ns + self.position_ns * positions_len + self.context_ns * end


@dataclass(frozen=True, slots=True, kw_only=True)
class RingShape:
    """One ring.

    Attributes:
        stages: service times, in ring order.
        hosts: by stage, which host it runs on.
        one_way_ns: delay of the N + 1 links, ring order.
        rate_bytes_per_s: of those links; 0: unlimited.
        hop_ns: encoding, sealing, writing and reading one frame, per link.
        head_ns: bytes-independent work of the coordinator between a reply and the next frame.
        id_bytes: of a position on the first and the last link.
        state_bytes: of a position between two stages.
        overlap: how much one more computing stage of the same host slows a stage: with n of them
            each runs at 1 / (1 + overlap · (n − 1)) of its speed alone.
    """

    stages: tuple[ServiceTime, ...]
    hosts: tuple[int, ...]
    one_way_ns: tuple[int, ...]
    rate_bytes_per_s: tuple[int, ...]
    hop_ns: float
    head_ns: float
    id_bytes: int
    state_bytes: int
    overlap: float

    def __post_init__(self) -> None:
        num_stages = len(self.stages)
        if not num_stages or len(self.hosts) != num_stages:
            raise ValueError(f"{num_stages} stages on {len(self.hosts)} hosts")
        if not len(self.one_way_ns) == len(self.rate_bytes_per_s) == num_stages + 1:
            raise ValueError(f"a ring of {num_stages} stages has {num_stages + 1} links")


@dataclass(frozen=True, slots=True)
class SpanTimes:
    """What one stage spent on one frame, as `StageSpan` of a receipt."""

    queue_ns: int
    compute_ns: int
    span_ns: int


@dataclass(slots=True)
class Traveller:
    """One frame on its way."""

    epoch: int
    start: int
    positions_len: int
    sent_ns: float
    read_ns: float = 0.0  # by the stage it is at
    begun_ns: float = 0.0  # computing there
    work_ns: float = 0.0  # left to do there, at full speed
    spans: list[SpanTimes] = field(default_factory=list)


@dataclass(slots=True)
class _Stage:
    waiting: deque[Traveller] = field(default_factory=deque)
    computing: Traveller | None = None
    newest_epoch: int = 0
    num_dropped: int = 0
    num_stale_computed: int = 0


class RingModel:
    """One ring with frames on their way; drive it with `send` and `next_reply`."""

    def __init__(self, shape: RingShape) -> None:
        self._shape = shape
        self._stages = [_Stage() for _ in shape.stages]
        self._link_free_ns = [0.0] * len(shape.one_way_ns)  # when a link has sent what it has
        self._arrivals: list[tuple[float, int, int, Traveller]] = []  # (when, tie, place, frame)
        self._order = count()
        self._now_ns = 0.0

    @property
    def num_dropped(self) -> int:
        """Stale frames that stages threw out of their line."""
        return sum(stage.num_dropped for stage in self._stages)

    @property
    def num_stale_computed(self) -> int:
        """Computations of frames whose epoch was over before they were done."""
        return sum(stage.num_stale_computed for stage in self._stages)

    def send(self, now_ns: float, epoch: int, start: int, positions_len: int) -> None:
        """The coordinator sends a frame; times of calls must not fall."""
        frame = Traveller(epoch, start, positions_len, now_ns)
        self._depart(now_ns, 0, frame)

    def next_reply(self) -> tuple[float, Traveller] | None:
        """Run on to the next reply; None if nothing is on its way."""
        while True:
            done = self._next_completion()
            if self._arrivals and (done is None or self._arrivals[0][0] <= done[0]):
                when_ns, _, place, frame = heapq.heappop(self._arrivals)
                self._work_until(when_ns)
                if place == len(self._stages):
                    return when_ns, frame
                self._arrive(place, frame)
            elif done is not None:
                self._work_until(done[0])
                self._finish(done[1])
            else:
                return None

    def _depart(self, now_ns: float, link: int, frame: Traveller) -> None:
        shape = self._shape
        at_end = link in (0, len(shape.stages))
        num_bytes = frame.positions_len * (shape.id_bytes if at_end else shape.state_bytes)
        rate = shape.rate_bytes_per_s[link]
        begin_ns = max(now_ns + shape.hop_ns, self._link_free_ns[link])
        self._link_free_ns[link] = begin_ns + (num_bytes * 1e9 / rate if rate else 0.0)
        when_ns = self._link_free_ns[link] + shape.one_way_ns[link]
        heapq.heappush(self._arrivals, (when_ns, next(self._order), link, frame))

    def _arrive(self, place: int, frame: Traveller) -> None:
        stage = self._stages[place]
        frame.read_ns = self._now_ns
        if frame.epoch > stage.newest_epoch:
            stage.newest_epoch = frame.epoch
            stage.num_dropped += len(stage.waiting)
            stage.waiting.clear()
        stage.waiting.append(frame)
        self._begin(place)

    def _begin(self, place: int) -> None:
        stage = self._stages[place]
        if stage.computing is None and stage.waiting:
            frame = stage.computing = stage.waiting.popleft()
            frame.begun_ns = self._now_ns
            frame.work_ns = self._shape.stages[place].of(frame.start, frame.positions_len)

    def _finish(self, place: int) -> None:
        stage = self._stages[place]
        frame, stage.computing = stage.computing, None
        assert frame is not None, "only a computing stage finishes"
        stage.num_stale_computed += frame.epoch < stage.newest_epoch
        frame.spans.append(
            SpanTimes(
                queue_ns=round(frame.begun_ns - frame.read_ns),
                compute_ns=round(self._now_ns - frame.begun_ns),
                span_ns=round(self._now_ns - frame.read_ns),
            )
        )
        self._depart(self._now_ns, place + 1, frame)
        self._begin(place)

    def _working(self) -> list[tuple[int, Traveller, float]]:
        """Stages that compute: place, frame, and at what part of its speed alone."""
        hosts, stages = self._shape.hosts, self._stages
        places = [place for place, stage in enumerate(stages) if stage.computing is not None]
        on_host = [hosts[place] for place in places]
        return [
            (place, frame, 1.0 / (1.0 + self._shape.overlap * (on_host.count(host) - 1)))
            for place, host in zip(places, on_host, strict=True)
            if (frame := stages[place].computing) is not None
        ]

    def _next_completion(self) -> tuple[float, int] | None:
        """(when, stage) of the computation that ends first, if none begins before."""
        ends = [
            (self._now_ns + frame.work_ns / speed, place) for place, frame, speed in self._working()
        ]
        return min(ends, default=None)

    def _work_until(self, when_ns: float) -> None:
        elapsed_ns = when_ns - self._now_ns
        for _, frame, speed in self._working():
            frame.work_ns = max(0.0, frame.work_ns - elapsed_ns * speed)
        self._now_ns = when_ns
