"""When bytes leave a long link: delay, jitter, rate, stalls, a byte cap; no socket, no clock.

Guarantees: bytes come out unaltered and in order; nothing leaves before its one-way delay has
passed; delivery times never decrease; equal seeds and equal inputs give equal delivery times.
Must never know: sockets, clocks (time is an argument, in nanoseconds), what the bytes mean.
"""

from __future__ import annotations

import enum
import random
from collections import deque
from dataclasses import dataclass

from bench.wan.profile import LinkShape
from bench.wan.stalls import Stalls

NS_PER_S = 1_000_000_000

# An exponential has no upper end; beyond this many means (1 draw in 22,000) it is cut, so that
# one draw cannot look like a broken link.
EXPONENTIAL_CUT_MEANS = 10.0


class Ending(enum.Enum):
    """How a direction ends: the sender finished, or its connection broke."""

    FINISHED = "finished"
    RESET = "reset"


class Pacer:
    """The part of a link direction that all its connections share: rate, jitter and stalls.

    Args:
        shape: the link's numbers.
        seed_text: names the seed, the link and the direction; it fixes every draw.
    """

    def __init__(self, shape: LinkShape, seed_text: str) -> None:
        self._shape = shape
        self._draws = random.Random(seed_text)
        self._free_at_ns = 0
        self._stalls = Stalls(shape, seed_text)

    def due_ns(self, now_ns: int, num_bytes: int) -> int:
        """Return when the last of `num_bytes`, handed over now, arrives at the other end.

        The bytes queue behind those of earlier calls, take bytes / rate to be put on the link,
        then travel.
        """
        start_ns = max(now_ns, self._free_at_ns)
        if self._shape.rate_bytes_per_s:
            start_ns += -(-num_bytes * NS_PER_S // self._shape.rate_bytes_per_s)
            self._free_at_ns = start_ns
        return self._stalls.after(start_ns + self._shape.one_way_ns + self._jitter_ns())

    def _jitter_ns(self) -> int:
        width_ns = self._shape.jitter_ns
        if self._shape.jitter_distribution == "uniform":
            return self._draws.randrange(width_ns + 1)
        if self._shape.jitter_distribution == "exponential":
            drawn = min(self._draws.expovariate(1.0), EXPONENTIAL_CUT_MEANS)
            return round(width_ns * drawn)
        return 0


@dataclass(slots=True)
class Parcel:
    """Bytes, or an ending, under way; `payload` shrinks as the far socket takes it."""

    due_ns: int
    payload: memoryview
    ending: Ending | None = None


class DelayLine:
    """The bytes of one connection in one direction, waiting for their time.

    Args:
        pacer: of the link direction; connections of one link share it.
        cap_bytes: from this many queued bytes on the line is full and its reader must stop.
    """

    def __init__(self, pacer: Pacer, cap_bytes: int) -> None:
        self._pacer = pacer
        self._cap_bytes = cap_bytes
        self._parcels: deque[Parcel] = deque()
        self._last_due_ns = 0
        self.queued_bytes = 0
        self.is_ended = False

    @property
    def is_full(self) -> bool:
        """True when nobody may push more bytes for now."""
        return self.queued_bytes >= self._cap_bytes

    @property
    def head_due_ns(self) -> int | None:
        """When the next parcel is due; None when nothing is under way."""
        return self._parcels[0].due_ns if self._parcels else None

    def push(self, now_ns: int, payload: bytes) -> None:
        """Take bytes that entered the link now."""
        self.queued_bytes += len(payload)
        self._append(self._pacer.due_ns(now_ns, len(payload)), memoryview(payload), None)

    def push_ending(self, now_ns: int, ending: Ending) -> None:
        """Take the end of the direction; it travels like bytes.

        Nothing may follow it, except that a connection half closed can still break.
        """
        self.is_ended = self.is_ended and ending is not Ending.RESET
        self._append(self._pacer.due_ns(now_ns, 0), memoryview(b""), ending)
        self.is_ended = True

    def due_parcel(self, now_ns: int) -> Parcel | None:
        """Return the head if its time has come; it stays until it is consumed."""
        if self._parcels and self._parcels[0].due_ns <= now_ns:
            return self._parcels[0]
        return None

    def consume(self, num_bytes: int) -> None:
        """Record that the far socket took `num_bytes` of the head; drop a head that is done."""
        head = self._parcels[0]
        head.payload = head.payload[num_bytes:]
        self.queued_bytes -= num_bytes
        if not head.payload:
            self._parcels.popleft()

    def discard(self) -> None:
        """Drop everything under way and take no more: the far end is gone."""
        self._parcels.clear()
        self.queued_bytes = 0
        self.is_ended = True

    def _append(self, due_ns: int, payload: memoryview, ending: Ending | None) -> None:
        if self.is_ended:
            raise AssertionError("pushed onto a direction that has ended")
        self._last_due_ns = max(due_ns, self._last_due_ns)
        self._parcels.append(Parcel(self._last_due_ns, payload, ending))
