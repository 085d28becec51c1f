"""What frames cost, learned: exact lines, no negative slope, how much stages slow each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ring_model import RingModel, RingShape, ServiceTime
from engine.coordinator.policies import make_policy
from engine.coordinator.policy import Situation
from engine.coordinator.records import FrameRecord, Span
from engine.coordinator.ring_cost import (
    FORGET,
    MAX_OVERLAP,
    SHAPE_WEIGHT,
    CostPrior,
    Line,
    RingCost,
)
from engine.draft.drafter import Draft

PRIOR = CostPrior(
    compute_frame_ns=1000.0,
    compute_position_ns=10.0,
    transit_frame_ns=5000.0,
    transit_position_ns=1.0,
    overlap=0.5,
    num_stages=2,
)
POINTS = st.lists(st.tuples(st.integers(1, 130), st.integers(0, 10**6)), min_size=1, max_size=25)


def frame(
    *,
    positions_len: int = 10,
    sent_ns: int = 0,
    received_ns: int | None = 8000,
    compute_ns: int = 1000,
    queue_ns: int = 0,
    epoch: int = 0,
) -> FrameRecord:
    """An answered frame of a ring of two stages that share its computing evenly."""
    spans = (Span(queue_ns, compute_ns // 2, queue_ns + compute_ns // 2),) * 2
    return FrameRecord(
        epoch=epoch,
        start=10,
        positions_len=positions_len,
        sent_len=positions_len - 1,
        draft_len=0,
        accepted_len=0,
        tested_len=0,
        committed_len=0,
        outcome="applied",
        source="ngram",
        match_len=4,
        in_flight=1,
        frontier=11,
        sent_ns=sent_ns,
        received_ns=received_ns,
        spans=spans,
    )


def answers(cost: RingCost) -> list[object]:
    """All that a cost can be asked, at a few lengths."""
    lengths = (1, 9, 65, 400)
    trains = [cost.train(length, num) for length in lengths for num in (1, 2, 5)]
    return [*map(cost.loop_ns, lengths), *trains, cost.gap_ratio(9, 65), cost.overlap]


@settings(max_examples=60)
@given(
    level=st.integers(1000, 10**8),
    slope=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 130), min_size=1, max_size=30),
    factor=st.floats(0.01, 100),
    asked=st.integers(1, 200),
)
def test_a_line_of_the_priors_shape_is_exact(
    level: int, slope: int, lengths: list[int], factor: float, asked: int
) -> None:
    """Catches a prior's scale that is believed: one frame tells how fast this host is."""
    line = Line(float(level), float(slope))
    for length in lengths:
        line.learn(length, factor * (level + slope * length))
    assert line.at(asked) == pytest.approx(factor * (level + slope * asked), rel=1e-6)


@settings(max_examples=50)
@given(
    points=POINTS,
    prior=st.tuples(st.integers(1, 10**5), st.integers(1, 10**4)),
    asked=st.integers(1, 300),
)
def test_a_line_is_discounted_ridge_regression_of_relative_errors(
    points: list[tuple[int, int]], prior: tuple[int, int], asked: int
) -> None:
    """Catches wrong sums: the same line by numpy's least squares on weighted rows."""
    line = Line(*map(float, prior))
    for length, value in points:
        line.learn(length, value)
    forgotten = FORGET ** np.arange(len(points))[::-1]
    lengths, values = np.maximum(np.array(points, dtype=float), 1.0).T
    shape = np.array(prior, dtype=float)
    shape *= np.average(values / (shape[0] + shape[1] * lengths), weights=forgotten)
    root, lean = np.sqrt(forgotten) / values, np.sqrt(SHAPE_WEIGHT) / shape
    matrix = np.vstack((np.column_stack((root, root * lengths)), np.diag(lean)))
    found, *_ = np.linalg.lstsq(matrix, np.append(root * values, lean * shape), rcond=None)
    for zero in np.flatnonzero(found < 0):  # at most one: both are never negative together
        column, other = matrix[:, 1 - zero], np.append(root * values, lean * shape)
        found = np.zeros(2)
        keep = np.arange(len(matrix)) != len(points) + zero  # nor does the lean of what is left out
        found[1 - zero] = (column * other)[keep].sum() / (column**2)[keep].sum()
    assert line.at(asked) == pytest.approx(found[0] + found[1] * asked, rel=1e-5)


@settings(max_examples=50)
@given(points=POINTS, first=st.integers(1, 500), second=st.integers(1, 500))
def test_a_line_never_falls_and_is_never_negative(
    points: list[tuple[int, int]], first: int, second: int
) -> None:
    """Catches a longer frame that would seem cheaper, by noise."""
    line = Line(7.0, 3.0)
    for length, value in points:
        line.learn(length, value)
        assert 0.0 <= line.at(min(first, second)) <= line.at(max(first, second))


def test_frames_of_several_lengths_overrule_the_priors_shape() -> None:
    """Catches a slope that stays the prior's although it was measured."""
    line = Line(1000.0, 40.0)
    for length in (1, 33, 65, 1, 33, 65):
        line.learn(length, 1000.0 + 10.0 * length)
    for length in (1, 17, 65):
        assert line.at(length) == pytest.approx(1000 + 10 * length, rel=0.03)


def test_compute_and_transit_are_told_apart() -> None:
    """Catches queueing that is counted as computing, and computing that is counted twice."""
    cost = RingCost(PRIOR)
    cost.measure(frame(received_ns=8000, compute_ns=1000, queue_ns=500), 0)
    # 8000 − 2 × (500 + 500) inside the stages: 6000 on the way.
    assert cost.loop_ns(10) == pytest.approx(6000 + 1000)
    assert cost.train(10, 1).replies_ns == pytest.approx((7000,))
    claims = RingCost(PRIOR)
    claims.measure(frame(received_ns=800, compute_ns=1000), 0)
    assert claims.loop_ns(10) == pytest.approx(1001), "no negative time on the way"


def timed_by(shape: RingShape, cost: RingCost, trains: int, num_frames: int, gap_ns: int) -> None:
    """Trains on a modelled ring, each sent when the last one is back; replies are measured."""
    ring, now_ns, position = RingModel(shape), 0, 0
    for _ in range(trains):
        sent = {}
        for _ in range(num_frames):
            ring.send(now_ns, 0, position, 10)
            sent[position], position, now_ns = now_ns, position + 10, now_ns + gap_ns
        for _ in range(num_frames):
            reply = ring.next_reply()
            assert reply is not None
            now_ns, spans = round(reply[0]), reply[1].spans
            record = replace(
                frame(sent_ns=sent[reply[1].start], received_ns=now_ns),
                spans=tuple(Span(at.queue_ns, at.compute_ns, at.span_ns) for at in spans),
            )
            cost.measure(record, num_frames - 1)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("one_way_ns", [10_000, 1_000_000, 5_000_000])
def test_the_overlap_of_a_ring_is_found_and_its_trains_foretold(
    overlap: float, one_way_ns: int
) -> None:
    """Catches pairs of frames counted once or thrice, and replies that are not foretold."""
    shape = RingShape(
        stages=(ServiceTime(4e6, 1e6),) * 4, hosts=(0,) * 4, one_way_ns=(one_way_ns,) * 5,
        rate_bytes_per_s=(0,) * 5, hop_ns=0.0, head_ns=0.0, id_bytes=0, state_bytes=0,
        overlap=overlap,
    )  # fmt: skip
    cost = RingCost(CostPrior())
    timed_by(shape, cost, trains=5, num_frames=1, gap_ns=0)
    timed_by(shape, cost, trains=25, num_frames=5, gap_ns=0)
    assert cost.overlap == pytest.approx(overlap, abs=0.1)
    ring = RingModel(shape)
    for idx in range(5):
        ring.send(0.0, 0, 10 * idx, 10)
    foretold = cost.train(10, 5).replies_ns
    for expected_ns in foretold:
        reply = ring.next_reply()
        assert reply is not None and reply[0] == pytest.approx(expected_ns, rel=0.08)


def test_frames_whose_computing_does_not_meet_teach_no_overlap() -> None:
    """Catches noise of frames that are far apart on the ring taken for one slowing another."""
    cost = RingCost(PRIOR)
    for idx in range(40):
        sent_ns = 100_000 * idx
        record = frame(sent_ns=sent_ns, received_ns=sent_ns + 150_000, compute_ns=2 * (600 + idx))
        cost.measure(record, 1)
    assert cost.overlap == pytest.approx(PRIOR.overlap)


@pytest.mark.parametrize("company", [0, 2])
@pytest.mark.parametrize(
    "ignored",
    [frame(received_ns=None), replace(frame(), spans=()), frame(received_ns=None, epoch=3)],
    ids=["no reply", "no spans", "stale"],
)
def test_frames_without_times_teach_nothing(ignored: FrameRecord, company: int) -> None:
    """Catches a stale or unanswered frame that moves the cost, or counts as the one before."""
    cost, pure = RingCost(PRIOR), RingCost(PRIOR)
    cost.measure(ignored, company)
    assert answers(cost) == answers(pure)
    for record in (frame(), frame(sent_ns=100, received_ns=8600)):
        cost.measure(ignored, company)
        cost.measure(record, company)
        pure.measure(record, company)
    assert answers(cost) == answers(pure)


def test_a_prefill_tells_how_fast_the_host_is_until_a_short_frame_came() -> None:
    """Catches the law of long frames that is taken for that of short ones, and a cold start."""
    cost = RingCost(PRIOR)
    slow = frame(positions_len=131, received_ns=90_000, compute_ns=70_000)
    cost.measure(slow, 1)
    factor = 70_000 / (1000 + 10 * 131)
    assert cost.loop_ns(131) == pytest.approx(20_000 + 70_000)
    assert cost.gap_ratio(10, 131) == pytest.approx((1000 + 10 * 10) / (1000 + 10 * 131))
    assert cost.loop_ns(10) - cost._transit.at(10) == pytest.approx(factor * (1000 + 10 * 10))
    cost.measure(frame(positions_len=10, received_ns=25_000, compute_ns=5000), 0)
    known = answers(cost)
    assert cost.loop_ns(10) - cost._transit.at(10) == pytest.approx(5000)
    cost.measure(replace(slow, received_ns=None), 0)
    assert answers(cost) == known
    before = cost._alone.at(10)
    cost.measure(slow, 0)
    assert cost._alone.at(10) == before, "only before the first short frame"


def test_a_policy_is_made_with_what_the_ring_has_taught() -> None:
    """Catches a ring whose every job starts from the prior again: what frames cost decides."""
    draft, now = Draft(tuple(range(40)), "ngram", 30), Situation(5, 200, 0, 0, 1)
    free = CostPrior(1000.0, 0.0, 20_000.0, 0.0)
    dear = CostPrior(1000.0, 1e9, 20_000.0, 0.0)
    kept = [
        make_policy("planner", 40, {}, 4, RingCost(prior)).keep_len(now, draft)
        for prior in (free, dear)
    ]
    assert kept[0] == 40 and kept[1] <= 1


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 300),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.integers(0, 10**5),
            st.integers(0, 2),
            st.integers(0, 3),
        ),
        max_size=20,
    ),
    st.tuples(st.integers(1, 130), st.integers(1, 130)),
)
def test_any_history_leaves_sane_costs(
    rows: list[tuple[int, int, int, int, int, int]], lengths: tuple[int, int]
) -> None:
    """Catches a negative or falling cost, or a gap wider than the bound, after any frames."""
    cost = RingCost(PRIOR)
    short, long = sorted(lengths)
    for positions_len, sent_ns, took_ns, compute_ns, epoch, company in rows:
        record = frame(
            positions_len=positions_len,
            sent_ns=sent_ns,
            received_ns=sent_ns + took_ns,
            compute_ns=compute_ns,
            epoch=epoch,
        )
        cost.measure(record, company)
        assert 0.0 <= cost.loop_ns(short) <= cost.loop_ns(long)
        assert 0.0 <= cost.overlap <= MAX_OVERLAP
        train = cost.train(long, 3)
        assert list(train.replies_ns) == sorted(train.replies_ns)
        assert train.replies_ns[0] >= 0.999 * cost.loop_ns(long) - 1
        assert train.leftover_ns >= -1e-6 * cost.loop_ns(long)
