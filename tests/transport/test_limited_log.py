"""The log of what peers do: few lines, none forgotten, whatever an attacker does."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import FrameRejected
from engine.transport import limited_log
from engine.transport.limited_log import INTERVAL_NS, MAX_SOURCES, LimitedLog

WAY = "stage-0 -> stage-1 (input)"


class Clocked:
    """A log with its clock in hand."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.lines: list[str] = []
        self.log = LimitedLog(lambda: self.now_ns, self.lines.append, interval_ns=1000)

    def reject(self, peer: str = "stage-0", direction: str = WAY, times: int = 1) -> None:
        for _ in range(times):
            self.log.record((peer, direction), str(FrameRejected(peer, direction)))

    @property
    def num_told(self) -> int:
        """Rejections that the lines account for."""
        told = [re.search(r"\((\d+) more", line) for line in self.lines]
        return len(told) + sum(int(match[1]) for match in told if match)


def test_first_rejection_is_one_line_with_peer_and_direction() -> None:
    """Catches a tampered frame that leaves no trace, or a line that says not whose it was."""
    clocked = Clocked()
    clocked.reject()
    (line,) = clocked.lines
    assert line == str(FrameRejected("stage-0", WAY))
    assert "stage-0" in line and WAY in line and "\n" not in line


def test_one_line_an_interval_with_the_suppressed_count() -> None:
    """Catches a flooded log, a count that is lost and one that is told twice."""
    clocked = Clocked()
    clocked.reject(times=5)
    clocked.now_ns = 999
    clocked.reject()
    assert len(clocked.lines) == 1
    clocked.now_ns = 1000
    clocked.reject()
    assert len(clocked.lines) == 2
    assert clocked.lines[1].endswith("(5 more since the last line)")
    clocked.now_ns = 2000
    clocked.reject()
    assert "more" not in clocked.lines[2]
    assert clocked.log.num_recorded == clocked.num_told == 8


def test_sources_do_not_silence_each_other() -> None:
    """Catches one noisy peer that hides another, or one direction the other."""
    clocked = Clocked()
    clocked.reject(times=3)
    clocked.reject("stage-2")
    clocked.reject("stage-0", "stage-0 -> coordinator (control)")
    assert len(clocked.lines) == 3
    assert "stage-2" in clocked.lines[1]
    assert "control" in clocked.lines[2]


def test_memory_and_lines_are_bounded_however_many_names_appear() -> None:
    """Catches a table that grows with every name, and a limit that new names get round."""
    clocked = Clocked()
    for number in range(3 * MAX_SOURCES):
        clocked.reject(f"peer-{number}")
    assert len(clocked.lines) == MAX_SOURCES + 1
    assert len(clocked.log._sources) <= MAX_SOURCES
    clocked.now_ns = 1000
    for number in range(3 * MAX_SOURCES):
        clocked.reject(f"late-{number}")
    assert len(clocked.lines) <= 2 * (MAX_SOURCES + 1)
    assert len(clocked.log._sources) <= MAX_SOURCES
    assert any("more of several sources" in line for line in clocked.lines)


def test_counts_of_forgotten_sources_are_told() -> None:
    """Catches suppressed rejections that vanish with the source they belonged to."""
    clocked = Clocked()
    for number in range(MAX_SOURCES):
        clocked.reject(f"peer-{number}", times=3)
    clocked.now_ns = 1000
    for number in range(MAX_SOURCES + 1):
        clocked.reject(f"late-{number}")
    assert clocked.num_told == clocked.log.num_recorded


@settings(max_examples=150)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 700), st.integers(1, 3)), max_size=60
    )
)
def test_nothing_is_lost_and_nothing_floods(steps: list[tuple[int, int, int]]) -> None:
    """Catches any order of peers and times that loses a count or writes lines too often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limited_log, "MAX_SOURCES", 3)
        clocked = Clocked()
        for peer, pause_ns, times in steps:
            clocked.now_ns += pause_ns
            clocked.reject(f"peer-{peer}", times=times)
            assert len(clocked.log._sources) <= 3
        sources = [*clocked.log._sources.values(), clocked.log._others]
        owed = sum(source.num_suppressed for source in sources)
        assert clocked.num_told + owed == clocked.log.num_recorded
        assert len(clocked.lines) <= 4 * (clocked.now_ns // 1000 + 1)


def test_many_threads_share_one_log() -> None:
    """Catches counts lost between reader threads."""
    clocked = Clocked()
    threads = [threading.Thread(target=clocked.reject, kwargs={"times": 2000}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clocked.log.num_recorded == 8000
    assert len(clocked.lines) == 1
    clocked.now_ns = 1000
    clocked.reject()
    assert clocked.num_told == 8001


def test_default_interval_is_seconds() -> None:
    """Catches an interval in another unit: a line each few microseconds limits nothing."""
    assert INTERVAL_NS == 10_000_000_000
