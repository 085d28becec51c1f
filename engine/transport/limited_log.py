"""One rate limiter for what peers can make us log, shared by every link of a process.

Guarantees: nobody can flood the log from outside: at most one line per interval for each source
(such as a peer and a direction), with the number of those left out since, and bounded memory and
lines however many names appear; every event is counted. May be called from any thread. Must never
know where lines go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

INTERVAL_NS = 10 * 10**9
MAX_SOURCES = 256  # with a limit of their own; all others share one


@dataclass(slots=True)
class _Source:
    written_ns: int | None = None
    num_suppressed: int = 0


class LimitedLog:
    """Writes lines, at most one per interval and source.

    Args:
        clock_ns: monotonic time in ns.
        write: takes one line, without its end.
        interval_ns: between two lines of one source.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int],
        write: Callable[[str], None],
        interval_ns: int = INTERVAL_NS,
    ) -> None:
        self._clock_ns = clock_ns
        self._write = write
        self._interval_ns = interval_ns
        self._lock = threading.Lock()
        self._sources: dict[tuple[str, str], _Source] = {}
        self._others = _Source()
        self._num_recorded = 0

    @property
    def num_recorded(self) -> int:
        """Every event so far, written or not."""
        return self._num_recorded

    def record(self, key: tuple[str, str], line: str) -> None:
        """Count an event and write its line, if it is due.

        Args:
            key: the source whose limit counts.
        """
        now_ns = self._clock_ns()
        with self._lock:
            self._num_recorded += 1
            source = self._source(key, now_ns)
            if not self._is_due(source, now_ns):
                source.num_suppressed += 1
                return
            num_suppressed, source.num_suppressed = source.num_suppressed, 0
            source.written_ns = now_ns
        whose = " of several sources" if source is self._others else ""
        more = f" ({num_suppressed} more{whose} since the last line)" if num_suppressed else ""
        self._write(f"{line}{more}")

    def _is_due(self, source: _Source, now_ns: int) -> bool:
        return source.written_ns is None or now_ns - source.written_ns >= self._interval_ns

    def _source(self, key: tuple[str, str], now_ns: int) -> _Source:
        """The limit that counts for a source."""
        if key not in self._sources and len(self._sources) >= MAX_SOURCES:
            self._forget_quiet(now_ns)
            if len(self._sources) >= MAX_SOURCES:
                return self._others
        return self._sources.setdefault(key, _Source())

    def _forget_quiet(self, now_ns: int) -> None:
        """Drop sources that may write anyway; what they left out counts among the others."""
        quiet = [key for key, source in self._sources.items() if self._is_due(source, now_ns)]
        for key in quiet:
            self._others.num_suppressed += self._sources.pop(key).num_suppressed
