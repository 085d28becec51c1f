"""The delay line without sockets or clocks: order, earliest delivery, rate, seed, cap."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.wan.delay_line import EXPONENTIAL_CUT_MEANS, DelayLine, Ending, Pacer
from bench.wan.profile import LinkShape

FOREVER_NS = 10**18
shapes = st.builds(
    LinkShape,
    name=st.just("link"),
    one_way_ns=st.integers(0, 10**9),
    jitter_ns=st.integers(0, 10**8),
    jitter_distribution=st.sampled_from(["none", "uniform", "exponential"]),
    rate_bytes_per_s=st.sampled_from([0, 1_000, 10**6, 10**9]),
    stall_ns=st.sampled_from([0, 10**8]),
    stall_every_ns=st.just(10**7),
)
# Chunks and the gaps between them, in ns.
arrivals = st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.integers(0, 10**8)))


def made_line(shape: LinkShape, seed_text: str = "seed", cap_bytes: int = 1 << 20) -> DelayLine:
    return DelayLine(Pacer(shape, seed_text), cap_bytes)


def push_all(line: DelayLine, steps: list[tuple[bytes, int]]) -> list[int]:
    """Push every chunk after its gap; return the push times."""
    times_ns = list(accumulate(gap_ns for _, gap_ns in steps))
    for (chunk, _), now_ns in zip(steps, times_ns, strict=True):
        line.push(now_ns, chunk)
    return times_ns


def drain(line: DelayLine) -> list[tuple[int, bytes]]:
    """Take everything out; return (due time, bytes) per parcel."""
    taken = []
    while (parcel := line.due_parcel(FOREVER_NS)) is not None:
        taken.append((parcel.due_ns, bytes(parcel.payload)))
        line.consume(len(parcel.payload))
    return taken


@given(shapes, arrivals)
def test_bytes_leave_in_order_unaltered_and_never_early(
    shape: LinkShape, steps: list[tuple[bytes, int]]
) -> None:
    line = made_line(shape)
    times_ns = push_all(line, steps)
    taken = drain(line)
    assert [payload for _, payload in taken] == [chunk for chunk, _ in steps]
    dues_ns = [due_ns for due_ns, _ in taken]
    assert all(earlier <= later for earlier, later in pairwise(dues_ns))
    assert all(due - now >= shape.one_way_ns for due, now in zip(dues_ns, times_ns, strict=True))
    assert line.queued_bytes == 0


@given(arrivals.filter(bool), st.sampled_from([1_000, 10**6]))
def test_a_rate_is_never_exceeded(steps: list[tuple[bytes, int]], rate: int) -> None:
    line = made_line(LinkShape(name="link", one_way_ns=5, rate_bytes_per_s=rate))
    times_ns = push_all(line, steps)
    taken = drain(line)
    for first_idx, now_ns in enumerate(times_ns):
        num_bytes = sum(len(payload) for _, payload in taken[first_idx:])
        assert taken[-1][0] - now_ns >= 5 + num_bytes * 10**9 // rate


def test_connections_of_one_link_share_its_rate() -> None:
    pacer = Pacer(LinkShape(name="link", one_way_ns=0, rate_bytes_per_s=1_000), "seed")
    first, second = DelayLine(pacer, 1 << 20), DelayLine(pacer, 1 << 20)
    first.push(0, bytes(1_000))
    second.push(0, bytes(1_000))
    assert (first.head_due_ns, second.head_due_ns) == (10**9, 2 * 10**9)


@given(shapes, arrivals)
def test_equal_seeds_give_equal_delivery_times(
    shape: LinkShape, steps: list[tuple[bytes, int]]
) -> None:
    lines = [made_line(shape), made_line(shape)]
    for line in lines:
        push_all(line, steps)
    assert drain(lines[0]) == drain(lines[1])


@pytest.mark.parametrize("distribution", ["uniform", "exponential"])
def test_jitter_has_the_asked_size_and_follows_the_seed(distribution: str) -> None:
    """1,000 draws: a mean off by 15 % would be at least 4.7 standard errors away."""
    shape = LinkShape(name="link", one_way_ns=7, jitter_ns=10**6, jitter_distribution=distribution)
    pacers = [Pacer(shape, seed_text) for seed_text in ("one", "two")]
    drawn = [[pacer.due_ns(0, 1) - 7 for _ in range(1_000)] for pacer in pacers]
    assert drawn[0] != drawn[1]
    mean_ns = sum(drawn[0]) / 1_000
    expected_ns = 10**6 / 2 if distribution == "uniform" else 10**6
    assert abs(mean_ns / expected_ns - 1) < 0.15
    assert min(drawn[0]) >= 0
    widths = 1 if distribution == "uniform" else EXPONENTIAL_CUT_MEANS
    assert max(drawn[0]) <= widths * 10**6


def test_nothing_is_due_before_its_time_and_a_partial_take_keeps_the_rest() -> None:
    line = made_line(LinkShape(name="link", one_way_ns=100))
    line.push(50, b"abcdef")
    assert line.due_parcel(149) is None
    line.consume(2) if line.due_parcel(150) else pytest.fail("not due in time")
    parcel = line.due_parcel(150)
    assert parcel is not None and bytes(parcel.payload) == b"cdef"
    assert line.queued_bytes == 4


def test_a_line_is_full_at_its_cap_and_free_below_it() -> None:
    line = made_line(LinkShape(name="link", one_way_ns=0), cap_bytes=10)
    line.push(0, bytes(9))
    assert not line.is_full
    line.push(0, b"x")
    assert line.is_full
    line.consume(9)
    assert not line.is_full


def test_an_ending_travels_behind_the_bytes_and_only_a_reset_may_follow() -> None:
    line = made_line(LinkShape(name="link", one_way_ns=100))
    line.push(0, b"last words")
    line.push_ending(1, Ending.FINISHED)
    with pytest.raises(AssertionError):
        line.push(2, b"more")
    line.push_ending(3, Ending.RESET)
    with pytest.raises(AssertionError):
        line.push(4, b"more")
    assert [due_ns for due_ns, _ in drain(line)] == [100, 101, 103]
