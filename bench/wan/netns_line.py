"""When packets leave one direction of a cable: delay, rate, queue, loss, reordering, no clock.

Guarantees: a packet comes out unaltered and at most once, never before its one-way delay; packets
keep their order unless the link reorders; packets leave the queue no faster than the rate; the fate
of the n-th packet that finds room is fixed by the seed and n alone, whatever the timing; so equal
seeds and equal inputs give equal outputs.
Must never know: TUN devices, sockets, clocks (time is an argument, in ns), what packets mean.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass

from bench.wan.delay_line import EXPONENTIAL_CUT_MEANS, NS_PER_S
from bench.wan.profile import LinkShape

PPM = 1_000_000
# How long a reordered packet is held back, beside a share of the delay: long enough for followers
# of a burst to overtake it, short enough that TCP need not take it for lost (RACK waits a quarter
# of a round trip, which is half of the one-way delay).
REORDER_HOLD_NS = 1_000_000
REORDER_HOLD_DELAY_DIVISOR = 4


@dataclass(slots=True)
class LineCounts:
    """What became of the packets of one direction."""

    num_packets: int = 0  # that entered; the sum of what was carried, lost and refused
    num_bytes: int = 0
    num_overflowed: int = 0  # found the queue full
    num_lost: int = 0
    num_reordered: int = 0


class PacketLine:
    """The packets under way in one direction of a cable.

    A packet waits for those before it, takes bytes / rate to be put on the line, then travels. The
    queue limit counts what waits or is being put on the line, as a router's buffer would; what
    travels fills no buffer.

    Args:
        shape: the direction's numbers.
        seed_text: names the seed, the link and the direction; it fixes every draw.
    """

    def __init__(self, shape: LinkShape, seed_text: str) -> None:
        self.counts = LineCounts()
        self._shape = shape
        self._draws = random.Random(seed_text)
        self._free_at_ns = 0
        self._last_due_ns = 0
        self._waiting: deque[tuple[int, int]] = deque()  # (leaves the queue at, bytes)
        self._waiting_bytes = 0
        self._travelling: list[tuple[int, int, bytes]] = []  # heap of (due, number, packet)
        self._is_drawn = bool(shape.loss_ppm or shape.reorder_ppm or shape.jitter_ns)

    @property
    def head_due_ns(self) -> int | None:
        """When the next packet is due; None when none is under way."""
        return self._travelling[0][0] if self._travelling else None

    def push(self, now_ns: int, packet: bytes) -> bool:
        """Take a packet that enters now; times never decrease.

        Returns:
            False if it is gone: the queue was full, or it is lost on the way.
        """
        counts = self.counts
        counts.num_packets += 1
        counts.num_bytes += len(packet)
        leaves_ns = now_ns
        if self._shape.rate_bytes_per_s:
            if not self._has_room(now_ns, len(packet)):
                counts.num_overflowed += 1
                return False
            leaves_ns = self._enqueue(now_ns, len(packet))
        due_ns = leaves_ns + self._shape.one_way_ns
        is_late = False
        if self._is_drawn:
            is_lost, is_late, jitter_ns = self._draw()
            due_ns += jitter_ns
            if is_lost:  # after the queue: it took its share of the rate
                counts.num_lost += 1
                return False
        if is_late:
            # From its place in order, so that it is late even where jitter holds all others up.
            due_ns = max(due_ns, self._last_due_ns) + self._hold_ns()
            counts.num_reordered += 1
        else:
            # Jitter alone must not reorder: one link is one queue, and TCP sees the difference.
            due_ns = self._last_due_ns = max(due_ns, self._last_due_ns)
        heapq.heappush(self._travelling, (due_ns, counts.num_packets, packet))
        return True

    def pop_due(self, now_ns: int) -> tuple[int, bytes] | None:
        """Take out the next packet whose time has come, with the time it was due."""
        if not self._travelling or self._travelling[0][0] > now_ns:
            return None
        due_ns, _, packet = heapq.heappop(self._travelling)
        return due_ns, packet

    def _has_room(self, now_ns: int, num_bytes: int) -> bool:
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ns:
            self._waiting_bytes -= waiting.popleft()[1]
        limit_bytes = self._shape.queue_bytes
        return not limit_bytes or self._waiting_bytes + num_bytes <= limit_bytes

    def _enqueue(self, now_ns: int, num_bytes: int) -> int:
        start_ns = max(now_ns, self._free_at_ns)
        self._free_at_ns = start_ns + -(-num_bytes * NS_PER_S // self._shape.rate_bytes_per_s)
        self._waiting.append((self._free_at_ns, num_bytes))
        self._waiting_bytes += num_bytes
        return self._free_at_ns

    def _draw(self) -> tuple[bool, bool, int]:
        """Whether the packet is lost, whether it is reordered, and its jitter in ns.

        Always the same number of draws, so that one packet's fate does not shift the next one's.
        """
        shape = self._shape
        is_lost = self._draws.random() * PPM < shape.loss_ppm
        is_late = self._draws.random() * PPM < shape.reorder_ppm
        drawn = self._draws.random()
        if shape.jitter_distribution == "uniform":
            return is_lost, is_late, int(drawn * (shape.jitter_ns + 1))
        if shape.jitter_distribution == "exponential":
            means = min(-math.log1p(-drawn), EXPONENTIAL_CUT_MEANS)
            return is_lost, is_late, round(shape.jitter_ns * means)
        return is_lost, is_late, 0

    def _hold_ns(self) -> int:
        return max(REORDER_HOLD_NS, self._shape.one_way_ns // REORDER_HOLD_DELAY_DIVISOR)
