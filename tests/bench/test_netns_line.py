"""The packet line without devices or clocks: delay, order, rate, queue, loss, reordering, seed."""

from __future__ import annotations

from itertools import accumulate, pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bench.wan.delay_line import NS_PER_S
from bench.wan.netns_line import REORDER_HOLD_DELAY_DIVISOR, REORDER_HOLD_NS, PacketLine
from bench.wan.profile import LinkShape

FOREVER_NS = 10**18
RATES = [1_000, 10**6, 10**8]

delays = st.integers(0, 10**9)
# Sizes in bytes and the gaps between packets in ns.
arrivals = st.lists(st.tuples(st.integers(2, 1500), st.integers(0, 10**7)), max_size=30)
shapes = st.builds(
    LinkShape,
    name=st.just("link"),
    one_way_ns=delays,
    jitter_ns=st.integers(0, 10**8),
    jitter_distribution=st.sampled_from(["uniform", "exponential"]),
    rate_bytes_per_s=st.sampled_from([0, *RATES]),
    queue_bytes=st.sampled_from([0, 1500, 20_000]),
    loss_ppm=st.sampled_from([0, 100_000, 900_000]),
    reorder_ppm=st.sampled_from([0, 100_000, 900_000]),
)


def numbered(arriving: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
    """(time, packet) of each arrival; a packet begins with its number."""
    times_ns = accumulate(gap_ns for _, gap_ns in arriving)
    return [
        (now_ns, idx.to_bytes(2, "big").ljust(size, b"\0"))
        for idx, ((size, _), now_ns) in enumerate(zip(arriving, times_ns, strict=True))
    ]


def run(
    shape: LinkShape, arriving: list[tuple[int, bytes]], seed_text: str = "seed"
) -> tuple[list[bool], list[tuple[int, bytes]], PacketLine]:
    """Push all; return which were taken, what came out with its due time, and the line."""
    line = PacketLine(shape, seed_text)
    taken = [line.push(now_ns, packet) for now_ns, packet in arriving]
    out = []
    while (head := line.pop_due(FOREVER_NS)) is not None:
        out.append(head)
    return taken, out, line


@given(shapes, arrivals)
def test_what_is_taken_comes_out_once_and_never_before_its_delay(
    shape: LinkShape, arriving: list[tuple[int, int]]
) -> None:
    entering = numbered(arriving)
    taken, out, line = run(shape, entering)
    expected = [packet for (_, packet), is_taken in zip(entering, taken, strict=True) if is_taken]
    assert sorted(packet for _, packet in out) == sorted(expected)
    entered_ns = {packet[:2]: now_ns for now_ns, packet in entering}
    assert all(due - entered_ns[packet[:2]] >= shape.one_way_ns for due, packet in out)
    counts = line.counts
    assert counts.num_packets == len(entering)
    assert counts.num_packets - len(out) == counts.num_lost + counts.num_overflowed
    assert counts.num_bytes == sum(len(packet) for _, packet in entering)
    assert line.head_due_ns is None


@given(shapes, arrivals)
def test_nothing_comes_out_before_it_is_due(
    shape: LinkShape, arriving: list[tuple[int, int]]
) -> None:
    line = PacketLine(shape, "seed")
    for now_ns, packet in numbered(arriving):
        line.push(now_ns, packet)
    while (due_ns := line.head_due_ns) is not None:
        assert line.pop_due(due_ns - 1) is None
        head = line.pop_due(due_ns)
        assert head is not None and head[0] == due_ns


@given(shapes.map(lambda shape: msgspec.structs.replace(shape, reorder_ppm=0)), arrivals)
def test_without_reordering_the_order_is_kept_whatever_the_jitter(
    shape: LinkShape, arriving: list[tuple[int, int]]
) -> None:
    _, out, line = run(shape, numbered(arriving))
    numbers = [packet[:2] for _, packet in out]
    assert numbers == sorted(numbers)
    assert line.counts.num_reordered == 0


@given(st.sampled_from(RATES), delays, arrivals.filter(bool))
def test_the_rate_is_never_exceeded_over_any_stretch(
    rate: int, one_way_ns: int, arriving: list[tuple[int, int]]
) -> None:
    """Bytes that arrive after time t need their own time on the line after t."""
    shape = LinkShape(name="link", one_way_ns=one_way_ns, rate_bytes_per_s=rate)
    _, out, _ = run(shape, numbered(arriving))
    for first_idx, (first_due_ns, _) in enumerate(out):
        later = out[first_idx + 1 :]
        later_bytes = sum(len(packet) for _, packet in later)
        if later:
            assert later[-1][0] - first_due_ns >= later_bytes * NS_PER_S // rate


@given(st.sampled_from(RATES), arrivals)
def test_an_unlimited_queue_delays_no_more_than_its_backlog(
    rate: int, arriving: list[tuple[int, int]]
) -> None:
    """Catches a line that is slower than asked: it works whenever there is something to send."""
    _, out, _ = run(LinkShape(name="link", one_way_ns=7, rate_bytes_per_s=rate), numbered(arriving))
    free_ns = 0
    for (due_ns, packet), (now_ns, _) in zip(out, numbered(arriving), strict=True):
        free_ns = max(free_ns, now_ns) + -(-len(packet) * NS_PER_S // rate)
        assert due_ns == free_ns + 7


@given(st.sampled_from(RATES), st.sampled_from([1500, 4000, 20_000]), arrivals)
def test_a_packet_is_refused_exactly_when_the_queue_has_no_room(
    rate: int, queue_bytes: int, arriving: list[tuple[int, int]]
) -> None:
    shape = LinkShape(name="link", one_way_ns=0, rate_bytes_per_s=rate, queue_bytes=queue_bytes)
    line = PacketLine(shape, "seed")
    leaving: list[tuple[int, int]] = []  # a second account of who waits
    for now_ns, packet in numbered(arriving):
        waiting_bytes = sum(size for leaves_ns, size in leaving if leaves_ns > now_ns)
        fits = waiting_bytes + len(packet) <= queue_bytes
        assert line.push(now_ns, packet) == fits
        if fits:
            start_ns = max([now_ns, *(leaves_ns for leaves_ns, _ in leaving)])
            leaving.append((start_ns + -(-len(packet) * NS_PER_S // rate), len(packet)))


def test_a_packet_finds_the_room_of_the_one_that_left_at_that_very_moment() -> None:
    shape = LinkShape(name="link", one_way_ns=0, rate_bytes_per_s=1000, queue_bytes=100)
    line = PacketLine(shape, "seed")
    assert line.push(0, bytes(100))
    assert not line.push(NS_PER_S // 10 - 1, b"x")
    assert line.push(NS_PER_S // 10, bytes(100))


@given(st.integers(0, 9))
def test_what_one_packet_draws_does_not_shift_the_next_ones(seed: int) -> None:
    """So that two arms on one seed differ in what was changed: here in loss, not in jitter."""
    shape = LinkShape(
        name="link", one_way_ns=0, jitter_ns=10**6, jitter_distribution="uniform", reorder_ppm=1
    )
    entering = [(idx * 10**9, idx.to_bytes(2, "big")) for idx in range(50)]
    _, all_out, _ = run(shape, entering, str(seed))
    lossy = msgspec.structs.replace(shape, loss_ppm=300_000)
    _, out, _ = run(lossy, entering, str(seed))
    assert len(out) < len(all_out) and set(out) <= set(all_out)


@given(shapes, arrivals, st.integers(0, 5))
def test_equal_seeds_give_equal_results(
    shape: LinkShape, arriving: list[tuple[int, int]], seed: int
) -> None:
    entering = numbered(arriving)
    first, again = (run(shape, entering, f"{seed}")[:2] for _ in range(2))
    assert first == again


def test_another_seed_loses_other_packets() -> None:
    shape = LinkShape(name="link", one_way_ns=0, loss_ppm=500_000)
    entering = numbered([(100, 1)] * 100)
    assert run(shape, entering, "1")[0] != run(shape, entering, "2")[0]


@given(arrivals, arrivals.map(lambda each: [gap_ns for _, gap_ns in each]), st.integers(0, 9))
def test_a_packets_fate_depends_on_its_number_alone_not_on_timing(
    arriving: list[tuple[int, int]], gaps_ns: list[int], seed: int
) -> None:
    """So that two runs whose clocks differ lose the same packets."""
    shape = LinkShape(
        name="link", one_way_ns=5, loss_ppm=300_000, reorder_ppm=200_000, rate_bytes_per_s=10**6
    )
    others = [(size + 1, gap) for (size, _), gap in zip(arriving, gaps_ns, strict=False)]
    taken, _, _ = run(shape, numbered(arriving), str(seed))
    others_taken, _, _ = run(shape, numbered(others), str(seed))
    assert others_taken == taken[: len(others)]


def test_loss_and_reordering_are_as_frequent_as_asked() -> None:
    shape = LinkShape(name="link", one_way_ns=0, loss_ppm=20_000, reorder_ppm=50_000)
    _, _, line = run(shape, [(idx, b"x") for idx in range(50_000)])
    assert 900 <= line.counts.num_lost <= 1_100  # 1000 ± 3 standard deviations
    assert 2_300 <= line.counts.num_reordered <= 2_600  # of the 49,000 that were not lost: 2450


@given(delays)
def test_a_reordered_packet_is_held_back_so_that_followers_overtake_it(one_way_ns: int) -> None:
    shape = LinkShape(name="link", one_way_ns=one_way_ns, reorder_ppm=300_000)
    entering = [(idx * 1000, idx.to_bytes(2, "big")) for idx in range(50)]
    _, out, line = run(shape, entering)
    hold_ns = max(REORDER_HOLD_NS, one_way_ns // REORDER_HOLD_DELAY_DIVISOR)
    extra_ns = [due - 1000 * int.from_bytes(packet, "big") - one_way_ns for due, packet in out]
    assert set(extra_ns) == {0, hold_ns}
    assert extra_ns.count(hold_ns) == line.counts.num_reordered
    numbers = [packet for _, packet in out]
    assert numbers != sorted(numbers)


@given(shapes, arrivals.filter(bool))
def test_jitter_stays_inside_its_distribution(
    shape: LinkShape, arriving: list[tuple[int, int]]
) -> None:
    """Of packets that do not wait for each other: the widest gap is more than any jitter."""
    lone = msgspec.structs.replace(shape, rate_bytes_per_s=0, loss_ppm=0, reorder_ppm=0)
    widest_ns = lone.jitter_ns * (10 if lone.jitter_distribution == "exponential" else 1)
    for idx, (size, _) in enumerate(arriving):
        line = PacketLine(lone, str(idx))
        line.push(0, bytes(size))
        head = line.pop_due(FOREVER_NS)
        assert head is not None and 0 <= head[0] - lone.one_way_ns <= widest_ns


def test_due_times_never_fall_for_packets_in_order() -> None:
    shape = LinkShape(
        name="link", one_way_ns=10**6, jitter_ns=10**6, jitter_distribution="exponential"
    )
    _, out, _ = run(shape, [(idx * 500_000, b"x") for idx in range(500)])
    dues_ns = [due_ns for due_ns, _ in out]
    assert all(earlier <= later for earlier, later in pairwise(dues_ns))
    assert len(set(dues_ns)) > 50  # and jitter is there at all
