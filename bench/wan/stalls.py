"""When one direction of a link stands still for a while, as a radio link does.

Guarantees: stalls have one length, gaps between them are exponential and fixed by the seed; nothing
is lost, what would have arrived in a stall arrives at its end. Must never know: sockets, clocks
(time is an argument, in ns), bytes.
"""

from __future__ import annotations

import random

from bench.wan.profile import LinkShape

# As of jitter: a draw beyond so many means is cut.
CUT_MEANS = 10.0


class Stalls:
    """The stalls of one direction; the first gap begins with the first bytes.

    Args:
        shape: `stall_ns` each, `stall_every_ns` from the end of one to the next, on average.
        seed_text: names the seed, the link and the direction.
    """

    def __init__(self, shape: LinkShape, seed_text: str) -> None:
        self._stall_ns, self._every_ns = shape.stall_ns, shape.stall_every_ns
        self._draws = random.Random(f"{seed_text}/stalls")
        self._start_ns: int | None = None

    def after(self, due_ns: int) -> int:
        """When what would arrive at `due_ns` arrives; calls come in about the order of time."""
        if not self._stall_ns:
            return due_ns
        if self._start_ns is None:
            self._start_ns = due_ns + self._gap_ns()
        while due_ns >= self._start_ns + self._stall_ns:
            self._start_ns += self._stall_ns + self._gap_ns()
        return due_ns if due_ns < self._start_ns else self._start_ns + self._stall_ns

    def _gap_ns(self) -> int:
        return round(self._every_ns * min(self._draws.expovariate(1.0), CUT_MEANS))
