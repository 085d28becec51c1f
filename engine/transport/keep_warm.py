"""Keeps a connection's window open through silence, with noops of a few bytes.

A kernel that sends nothing for about a retransmission timeout starts again with a small congestion
window (RFC 5681, section 4.1; Linux: `tcp_slow_start_after_idle`), so the next large frame takes
more round trips than the last one. Guarantees: a noop goes only over its own link, and only when
nothing was sent for the interval; it waits for nobody and nobody waits for it; a link that ends
ends its thread. Must never know what else is sent.
"""

from __future__ import annotations

import threading
import time

from engine.errors import ConfigError, LinkClosedError
from engine.transport.link import Link
from engine.transport.message import Noop

OFF = 0
LEAST_INTERVAL_MS, MOST_INTERVAL_MS = 20, 60_000


def check_interval(interval_ms: int) -> None:
    """Refuse an interval that would flood a link, or that is none.

    Raises:
        ConfigError: naming the range.
    """
    if interval_ms != OFF and not LEAST_INTERVAL_MS <= interval_ms <= MOST_INTERVAL_MS:
        raise ConfigError(
            f"keepwarm_ms is {interval_ms}; allowed: {OFF} (off) or "
            f"{LEAST_INTERVAL_MS}..{MOST_INTERVAL_MS}"
        )


class KeepWarm:
    """Sends noops on one link. Its thread starts with the first interval that is not off."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._interval_s = 0.0
        self._num_sent = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def every(self, interval_ms: int) -> None:
        """Post a noop whenever nothing was sent for so long; 0 stops."""
        with self._changed:
            self._interval_s = interval_ms / 1000
            if interval_ms and self._thread is None and not self._ended:
                self._thread = threading.Thread(
                    target=self._run, name=f"keep warm {self._link.peer}", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def take_num_sent(self) -> int:
        """Noops sent since the last call."""
        with self._changed:
            num_sent, self._num_sent = self._num_sent, 0
            return num_sent

    def end(self) -> None:
        """Stop for good; does not wait for the thread, which touches the link no more."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._ended:
                if not self._interval_s:
                    self._changed.wait()
                    continue
                left_s = self._link.last_sent_s + self._interval_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                try:
                    sent = self._link.offer(Noop())
                except LinkClosedError:
                    return  # whoever reads the link says so
                self._num_sent += sent
                if not sent:  # somebody else is sending: that keeps it warm
                    self._changed.wait(self._interval_s)
