"""Links that stand still: when, for how long, and what arrives then."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.wan.delay_line import DelayLine, Pacer
from bench.wan.netns import NamespacedLinks
from bench.wan.profile import LinkShape, load_profile
from bench.wan.stalls import Stalls
from engine.errors import ConfigError

MS = 1_000_000
SHAPE = LinkShape(name="link", one_way_ns=5 * MS, stall_ns=300 * MS, stall_every_ns=2_000 * MS)
STEP_NS = 10 * MS


def held(seed: str, num: int = 40_000) -> list[tuple[int, int]]:
    """(when it would have arrived, when it arrives), evenly spaced."""
    stalls = Stalls(SHAPE, seed)
    return [(idx * STEP_NS, stalls.after(idx * STEP_NS)) for idx in range(num)]


def ends_of(arrivals: list[tuple[int, int]]) -> list[int]:
    return sorted({late for due, late in arrivals if late > due})


def test_nothing_is_early_and_nothing_waits_longer_than_a_stall() -> None:
    for due, late in held("seed"):
        assert due <= late <= due + SHAPE.stall_ns


def test_stalls_come_as_often_as_asked_and_follow_the_seed() -> None:
    """Catches a gap that is no mean, one that includes the stall, and one seed for all links."""
    ends = ends_of(held("seed"))
    gaps = [later - end - SHAPE.stall_ns for end, later in pairwise(ends)]
    assert len(gaps) > 120
    assert mean(gaps) == pytest.approx(SHAPE.stall_every_ns, rel=0.25)
    assert held("seed") == held("seed") and ends_of(held("seed")) != ends_of(held("other"))


def test_what_comes_in_a_stall_arrives_at_its_end_together() -> None:
    arrivals = held("seed")
    for end in ends_of(arrivals)[:20]:
        waiting = [due for due, late in arrivals if late == end and due < end]
        assert waiting and waiting[-1] - waiting[0] <= SHAPE.stall_ns
        assert len(waiting) >= SHAPE.stall_ns // STEP_NS - 1


@given(st.lists(st.integers(0, 3_000 * MS), max_size=60))
def test_bytes_keep_their_order_through_stalls(pauses: list[int]) -> None:
    """Catches bytes behind a stall that overtake those that waited in it."""
    line, now_ns, dues = DelayLine(Pacer(SHAPE, "x"), 10**9), 0, []
    for idx, pause_ns in enumerate(pauses):
        now_ns += pause_ns
        line.push(now_ns, bytes([idx]))
    while (due_ns := line.head_due_ns) is not None:
        parcel = line.due_parcel(due_ns)
        assert parcel is not None
        dues.append((due_ns, parcel.payload[0]))
        line.consume(1)
    assert dues == sorted(dues) and len(dues) == len(pauses)


def test_a_link_without_stalls_is_as_it_was() -> None:
    stalls = Stalls(LinkShape(name="link", one_way_ns=1), "seed")
    assert [stalls.after(at) for at in (0, 7, 3)] == [0, 7, 3]
    assert not load_profile("stalling").links(1)[0].is_transparent


def test_packets_do_not_stall() -> None:
    """Catches a profile that is emulated without what it asks for."""
    with pytest.raises(ConfigError, match="use --links relay"):
        NamespacedLinks(load_profile("stalling"), 1).places(4)
