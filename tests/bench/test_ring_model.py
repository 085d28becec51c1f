"""The ring model: small rings computed by hand, laws that always hold, and a max-plus recursion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ring_model import RingModel, RingShape, ServiceTime, SpanTimes


def shape(
    *services: tuple[float, ...],
    hosts: Sequence[int] | None = None,
    one_way_ns: int = 0,
    rate: int = 0,
    hop_ns: float = 0.0,
    overlap: float = 0.0,
) -> RingShape:
    """A ring whose links are all alike; by default each stage has a host of its own."""
    num_stages = len(services)
    return RingShape(
        stages=tuple(ServiceTime(*service) for service in services),
        hosts=tuple(hosts or range(num_stages)),
        one_way_ns=(one_way_ns,) * (num_stages + 1),
        rate_bytes_per_s=(rate,) * (num_stages + 1),
        hop_ns=hop_ns,
        head_ns=0.0,
        id_bytes=4,
        state_bytes=100,
        overlap=overlap,
    )


def replies(model: RingModel) -> list[tuple[float, int]]:
    """(when, start) of all that still comes back."""
    found = []
    while (reply := model.next_reply()) is not None:
        found.append((reply[0], reply[1].start))
    return found


def run(ring: RingShape, *frames: tuple[float, int, int]) -> list[float]:
    """Reply times of frames (sent at, epoch, positions), all sent before the first reply."""
    model = RingModel(ring)
    for start, (sent_ns, epoch, positions_len) in enumerate(frames):
        model.send(sent_ns, epoch, start, positions_len)
    return [when_ns for when_ns, _ in replies(model)]


def test_one_stage() -> None:
    """Catches a hop, a delay or a position that is forgotten or counted twice."""
    ring = shape((5, 2), one_way_ns=10, hop_ns=1)
    # Hop 1 and link 10; 5 + 2 × 3 = 11 of work; hop 1 and link 10.
    assert run(ring, (0, 0, 3)) == [33]
    assert run(ring, (7, 0, 3)) == [40]
    # The second waits for the first: 11 … 22 and 22 … 29.
    assert run(ring, (0, 0, 3), (0, 0, 1)) == [33, 40]
    # Sent late enough, it does not wait.
    assert run(ring, (0, 0, 3), (30, 0, 1)) == [33, 30 + 11 + 7 + 11]


def test_a_longer_context_takes_longer() -> None:
    """Catches a frame whose cache before it costs nothing, or is counted without the frame."""
    model = RingModel(shape((5, 2, 0.5)))
    model.send(0, 0, 10, 3)
    assert replies(model) == [(5 + 2 * 3 + 0.5 * 13, 10)]


def test_spans_say_where_the_time_went() -> None:
    """Catches queueing taken for computing, and times that no receipt would show."""
    model = RingModel(shape((10, 0), (4, 1), one_way_ns=3))
    model.send(0, 0, 0, 2)
    model.send(1, 0, 7, 2)
    first, second = model.next_reply(), model.next_reply()
    assert first is not None and second is not None
    assert first[1].spans == [SpanTimes(0, 10, 10), SpanTimes(0, 6, 6)]
    # At stage 0 it came at 4 while the other computed until 13; at stage 1 the other was gone.
    assert second[1].spans == [SpanTimes(9, 10, 19), SpanTimes(0, 6, 6)]
    assert (second[1].sent_ns, second[1].start) == (1, 7)
    assert model.next_reply() is None


@pytest.mark.parametrize(
    ("hosts", "overlap", "expected"),
    [
        ((0, 1), 0.0, [20, 30]),
        ((0, 1), 1.0, [20, 30]),  # hosts of their own: no sharing
        ((0, 0), 0.0, [20, 30]),  # enough cores for both
        ((0, 0), 1.0, [30, 40]),  # from 10 to 30 both compute, at half speed
        ((0, 0), 0.5, [25, 35]),  # at 1 / 1.5
    ],
)
def test_two_stages_on_one_or_two_hosts(
    hosts: tuple[int, int], overlap: float, expected: list[float]
) -> None:
    """Catches stages that share cores across hosts, or do not share them on one."""
    assert run(shape((10, 0), (10, 0), hosts=hosts, overlap=overlap), (0, 0, 1), (0, 0, 1)) == (
        pytest.approx(expected)
    )


def test_speed_changes_in_the_middle_of_a_computation() -> None:
    """Catches a speed that is fixed when a computation begins."""
    ring = shape((10, 0), (20, 0), hosts=(0, 0), overlap=1.0)
    # A at stage 1 from 10; B comes to stage 0 at 20, half of A's 20 are left then: both at half
    # speed until 40, when both are through; B goes on alone.
    assert run(ring, (0, 0, 1), (20, 0, 1)) == pytest.approx([40, 60])
    # B comes at 24: 6 left of A, until 36; 4 left of B, alone until 40; then 20.
    assert run(ring, (0, 0, 1), (24, 0, 1)) == pytest.approx([36, 60])


def test_three_stages_share_one_host() -> None:
    """Catches a slowdown that does not grow with the number of computing stages."""
    ring = shape((10, 0), (10, 0), (10, 0), hosts=(0, 0, 0), overlap=1.0)
    # 10 alone, 20 by two, 30 by three, then one leaves at a time: 20 and 10.
    assert run(ring, (0, 0, 1), (0, 0, 1), (0, 0, 1)) == pytest.approx([60, 80, 90])


def test_a_rate_limits_each_link_by_what_it_carries() -> None:
    """Catches ids and states that take the wrong number of bytes, and a link that is not FIFO."""
    ring = shape((10, 0), (10, 0), one_way_ns=1000, rate=10**9, hop_ns=1)  # a byte a ns
    # 3 positions: 12 bytes of ids, 300 of states, 12 of ids back.
    assert run(ring, (0, 0, 3)) == [(1 + 12 + 1000) + 10 + (1 + 300 + 1000) + 10 + (1 + 12 + 1000)]
    # The second of two waits for the link between the stages.
    first, second = run(ring, (0, 0, 3), (0, 0, 3))
    assert second - first == 300


def test_a_busy_link_and_the_hop_overlap() -> None:
    """Catches writing that is put behind the link's work although it happens beside it."""
    ring = shape((0, 0), rate=10**9, hop_ns=50)
    # Hop until 50, then the link is busy until 90 and 130; the hop of the second one is over then.
    # Back: 90 + 50, busy until 180; 130 + 50, busy until 220.
    assert run(ring, (0, 0, 10), (0, 0, 10)) == [180, 220]


def test_a_newer_epoch_throws_older_frames_out_of_the_line() -> None:
    """Catches stale frames that are computed, and fresh ones that are dropped."""
    model = RingModel(shape((100, 0), (1, 0)))
    for start, epoch in enumerate((0, 0, 0)):
        model.send(0, epoch, start, 1)
    model.send(50, 1, 3, 1)
    model.send(60, 1, 4, 1)
    # 0 is being computed and goes on, uselessly; 1 and 2 are dropped.
    assert replies(model) == [(101, 0), (201, 3), (301, 4)]
    assert model.num_dropped == 2
    assert model.num_stale_computed == 1


def test_a_frame_computed_before_the_epoch_rose_is_not_counted_as_stale() -> None:
    """Catches a count of useless work that blames what nobody could know."""
    model = RingModel(shape((10, 0)))
    model.send(0, 0, 0, 1)
    model.send(20, 1, 1, 1)
    assert replies(model) == [(10, 0), (30, 1)]
    assert (model.num_dropped, model.num_stale_computed) == (0, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hosts": (0,)}, "2 stages on 1 hosts"),
        ({"stages": (), "hosts": ()}, "0 stages on 0 hosts"),
        ({"one_way_ns": (1, 2)}, "3 links"),
        ({"rate_bytes_per_s": (0,) * 4}, "3 links"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(change: dict[str, tuple[int, ...]], reason: str) -> None:
    """Catches a shape whose parts do not fit, which would end in a wrong place."""
    with pytest.raises(ValueError, match=reason):
        replace(shape((1, 1), (1, 1)), **change)


@st.composite
def rings(draw: st.DrawFn, *, shared: bool) -> RingShape:
    """Any small ring; `shared`: stages may share hosts and slow each other."""
    num_stages = draw(st.integers(1, 4))
    times = st.integers(0, 60)
    links = st.lists(times, min_size=num_stages + 1, max_size=num_stages + 1)
    rates = st.sampled_from((0, 10**8, 10**9))
    hosts = st.integers(0, 1) if shared else st.nothing()
    return RingShape(
        stages=tuple(
            ServiceTime(draw(times), draw(st.integers(0, 5)), draw(st.integers(0, 2)))
            for _ in range(num_stages)
        ),
        hosts=tuple(draw(hosts) if shared else idx for idx in range(num_stages)),
        one_way_ns=tuple(draw(links)),
        rate_bytes_per_s=tuple(draw(rates) for _ in range(num_stages + 1)),
        hop_ns=draw(st.integers(0, 9)),
        head_ns=0.0,
        id_bytes=4,
        state_bytes=20,
        overlap=draw(st.sampled_from((0.0, 0.3, 1.0))) if shared else 0.0,
    )


# (time since the frame before, does a new epoch begin, positions)
FRAMES = st.lists(
    st.tuples(st.integers(0, 80), st.integers(0, 9).map(lambda dice: dice == 0), st.integers(1, 9)),
    min_size=1,
    max_size=12,
)


def drive(
    ring: RingShape, frames: list[tuple[int, bool, int]]
) -> tuple[list[tuple[float, int, int]], int, int]:
    """Sends by the clock, as replies come; returns (when, epoch, start) of replies and counts."""
    model = RingModel(ring)
    found: list[tuple[float, int, int]] = []
    sent_ns, epoch = 0, 0
    for start, (pause_ns, is_newer, positions_len) in enumerate(frames):
        sent_ns += pause_ns
        epoch += is_newer
        model.send(sent_ns, epoch, start, positions_len)
    while (reply := model.next_reply()) is not None:
        found.append((reply[0], reply[1].epoch, reply[1].start))
    return found, model.num_dropped, model.num_stale_computed


@settings(max_examples=60)
@given(rings(shared=True), FRAMES)
def test_frames_are_kept_in_order_and_none_is_lost(
    ring: RingShape, frames: list[tuple[int, bool, int]]
) -> None:
    """Catches a frame that vanishes, overtakes another or comes back before it was sent."""
    found, num_dropped, num_stale = drive(ring, frames)
    assert len(found) + num_dropped == len(frames)
    starts = [start for _, _, start in found]
    assert starts == sorted(starts), "links and lines are first in, first out"
    times = [when_ns for when_ns, _, _ in found]
    assert times == sorted(times)
    newest = max(epoch for _, epoch, _ in found)
    num_newest = sum(is_newer for _, is_newer, _ in frames)
    assert newest == num_newest, "nothing newer comes to throw out the newest"
    least_ns = sum(ring.one_way_ns) + sum(stage.frame_ns for stage in ring.stages)
    sent_ns = [sum(pause for pause, _, _ in frames[: idx + 1]) for idx in range(len(frames))]
    assert all(when_ns >= sent_ns[start] + least_ns - 1e-6 for when_ns, _, start in found)
    assert drive(ring, frames) == (found, num_dropped, num_stale), "deterministic"


def max_plus(ring: RingShape, frames: list[tuple[int, bool, int]]) -> list[float]:
    """The same times by recursion: each place is free once the frame before has left it."""
    num_stages = len(ring.stages)
    link_free, stage_free = [0.0] * (num_stages + 1), [0.0] * num_stages
    sent_ns, times = 0.0, []
    for start, (pause_ns, _, positions_len) in enumerate(frames):
        sent_ns += pause_ns
        at_ns = sent_ns
        for link in range(num_stages + 1):
            size = ring.id_bytes if link in (0, num_stages) else ring.state_bytes
            rate = ring.rate_bytes_per_s[link]
            wire_ns = size * positions_len * 1e9 / rate if rate else 0.0
            link_free[link] = max(at_ns + ring.hop_ns, link_free[link]) + wire_ns
            at_ns = link_free[link] + ring.one_way_ns[link]
            if link < num_stages:
                stage = ring.stages[link]
                work_ns = stage.frame_ns + stage.position_ns * positions_len
                work_ns += stage.context_ns * (start + positions_len)
                stage_free[link] = max(at_ns, stage_free[link]) + work_ns
                at_ns = stage_free[link]
        times.append(at_ns)
    return times


@settings(max_examples=60)
@given(rings(shared=False), FRAMES)
def test_without_sharing_it_equals_a_max_plus_recursion(
    ring: RingShape, frames: list[tuple[int, bool, int]]
) -> None:
    """Catches any wait that the model invents or forgets."""
    one_epoch = [(pause_ns, False, positions_len) for pause_ns, _, positions_len in frames]
    found, num_dropped, _ = drive(ring, one_epoch)
    assert num_dropped == 0
    assert [when_ns for when_ns, _, _ in found] == pytest.approx(max_plus(ring, one_epoch))
    same_host = replace(ring, hosts=(0,) * len(ring.stages))
    assert drive(same_host, one_epoch)[0] == found, "overlap 0 shares nothing"
