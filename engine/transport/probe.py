"""Round-trip probes of one link, outside jobs.

Guarantees: a probe is answered on the same connection by whoever reads it; late or foreign answers
are ignored. Must never know what the link is used for.
"""

from __future__ import annotations

import queue
import time

from engine.errors import LinkClosedError
from engine.transport.link import Link
from engine.transport.message import Probe

PROBE_TIMEOUT_S = 10.0


class Prober:
    """Measures from one thread while the link's reader thread feeds `on_ack`."""

    def __init__(self) -> None:
        self._acks: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._seq = 0

    def on_ack(self, seq: int, read_ns: int) -> None:
        """An answer, as read by the reader thread (monotonic ns)."""
        self._acks.put((seq, read_ns))

    def measure(self, link: Link, count: int) -> tuple[int, ...]:
        """Send `count` probes one after another.

        Returns:
            Round-trip times in ns, in order.

        Raises:
            LinkClosedError: the link is gone or silent for `PROBE_TIMEOUT_S`.
        """
        return tuple(self._one(link) for _ in range(count))

    def _one(self, link: Link) -> int:
        self._seq += 1
        sent_ns = time.monotonic_ns()
        link.send(Probe(seq=self._seq))
        while True:
            try:
                seq, read_ns = self._acks.get(timeout=PROBE_TIMEOUT_S)
            except queue.Empty:
                raise LinkClosedError(
                    f"{link.peer} did not answer a probe for {PROBE_TIMEOUT_S:.0f} s"
                ) from None
            if seq == self._seq:
                return read_ns - sent_ns
