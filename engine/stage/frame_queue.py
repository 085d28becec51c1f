"""The queue between a stage's reader thread and its compute thread.

Guarantees: bounded in bytes (a full queue stops the reader, and TCP passes that on to the sender);
order is kept; a verify frame is dropped uncomputed once a newer epoch of its job, or another job,
has come. Jobs have no order of their own: the last one that was opened counts, since the numbers of
a coordinator that takes over may be lower. Must never know sockets or the model.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from engine.transport.connection import Received
from engine.transport.message import Attest, Reset, Verify

MAX_QUEUED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Queued:
    """A message and when it was read off its socket (monotonic ns)."""

    received: Received
    read_ns: int


class FrameQueue:
    """Bounded, order-keeping, drops what is superseded."""

    def __init__(self, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._items: deque[Queued] = deque()
        self._queued_bytes = 0
        self._job = 0  # the last that was opened
        self._epoch = 0  # its newest
        self._closed = False
        self._changed = threading.Condition()
        self._num_dropped: dict[int, int] = {}  # by job

    def put(self, item: Queued) -> None:
        """Add a message; blocks while the queue is full."""
        with self._changed:
            self._supersede(item)
            self._changed.wait_for(lambda: self._queued_bytes < self._max_bytes or self._closed)
            self._items.append(item)
            self._queued_bytes += item.received.num_bytes
            self._changed.notify_all()

    def get(self) -> Queued | None:
        """Take the oldest message; blocks while there is none. None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items) or self._closed)
            if self._closed:
                return None
            item = self._items.popleft()
            self._queued_bytes -= item.received.num_bytes
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Wake whoever waits; `get` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def is_stale(self, verify: Verify) -> bool:
        """Has a newer epoch, or another job, come since?"""
        with self._changed:
            return self._is_stale(verify)

    def num_pending(self, job: int) -> int:
        """Verify frames of a job still queued."""
        with self._changed:
            return sum(
                isinstance(item.received.message, Verify) and item.received.message.job == job
                for item in self._items
            )

    def take_num_dropped(self, job: int) -> int:
        """How many frames of a job were dropped uncomputed; forgets older jobs."""
        with self._changed:
            num_dropped = self._num_dropped.get(job, 0)
            self._num_dropped.clear()
            return num_dropped

    def _supersede(self, item: Queued) -> None:
        message = item.received.message
        match message:
            case Reset():
                self._job, self._epoch = message.job, 0
            case Verify() | Attest() if message.job == self._job and message.epoch > self._epoch:
                self._epoch = message.epoch
            case _:
                return
        kept: deque[Queued] = deque()
        for queued in self._items:
            other = queued.received.message
            if isinstance(other, Verify) and self._is_stale(other):
                self._num_dropped[other.job] = self._num_dropped.get(other.job, 0) + 1
                self._queued_bytes -= queued.received.num_bytes
            else:
                kept.append(queued)
        self._items = kept
        self._changed.notify_all()

    def _is_stale(self, verify: Verify) -> bool:
        return verify.job != self._job or verify.epoch < self._epoch
