"""What a link still has to write: bounded, order-keeping.

Guarantees: bytes leave in the order they were put; a full outbox holds its producer back (that is
how a slow link slows a stage down) and a failed one tells every waiter; bytes count as pending
until the socket has taken them. Must never know sockets or what the bytes mean.
"""

from __future__ import annotations

import threading
from collections import deque

MAX_PENDING_BYTES = 32 * 2**20
MAX_BATCH = 16  # frames of one vectored send


class Outbox:
    """Queue of byte views between senders and one writer thread."""

    def __init__(self, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._views: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._failure: str | None = None
        self._changed = threading.Condition()

    @property
    def empty(self) -> bool:
        """True when the socket has taken everything."""
        return self._pending_bytes == 0

    def put(self, view: memoryview) -> str | None:
        """Add bytes; blocks while the outbox is full.

        Returns:
            None, or why these bytes will never leave.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._pending_bytes < self._max_pending_bytes
            )
            if self._failure is None:
                self._views.append(view)
                self._pending_bytes += len(view)
                self._changed.notify_all()
            return self._failure

    def batch(self) -> list[memoryview]:
        """Wait for bytes and return the oldest views; empty once failed. The writer's call."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._pending_bytes > 0)
            if self._failure is not None:
                return []
            return [self._views[idx] for idx in range(min(MAX_BATCH, len(self._views)))]

    def took(self, num_bytes: int) -> None:
        """The socket has taken the first `num_bytes` of what `batch` returned."""
        with self._changed:
            self._pending_bytes -= num_bytes
            while num_bytes:
                first = self._views.popleft()
                if num_bytes < len(first):
                    self._views.appendleft(first[num_bytes:])
                num_bytes -= min(num_bytes, len(first))
            self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until everything is written; False if it failed or takes longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self.empty, timeout_s)
            return self.empty

    def fail(self, reason: str) -> None:
        """Nothing more will be written; wakes whoever waits. The first reason stays."""
        with self._changed:
            self._failure = self._failure or reason
            self._changed.notify_all()
