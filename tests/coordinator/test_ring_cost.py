"""What frames cost, learned: exact lines, no negative slope, gaps only from frames in line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.coordinator.policies import make_policy
from engine.coordinator.policy import Situation
from engine.coordinator.records import FrameRecord, Span
from engine.coordinator.ring_cost import (
    FORGET,
    NEWEST,
    SLOPE_WEIGHT,
    CostPrior,
    Line,
    Recent,
    RingCost,
)
from engine.draft.drafter import Draft

PRIOR = CostPrior(
    compute_frame_ns=1000.0,
    compute_position_ns=10.0,
    transit_frame_ns=5000.0,
    transit_position_ns=1.0,
    slowing_ns=40.0,
    gap_frac=0.5,
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


def answers(cost: RingCost) -> list[float]:
    """All that a cost can be asked, at a few lengths."""
    asked = [ask(length) for ask in (cost.loop_ns, cost.gap_ns) for length in (1, 9, 65, 400)]
    return [*asked, cost.slowing_ns]


@settings(max_examples=60)
@given(
    level=st.integers(0, 10**8),
    slope=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 130), min_size=1, max_size=30),
    asked=st.integers(1, 200),
)
def test_a_line_recovers_exact_data(level: int, slope: int, lengths: list[int], asked: int) -> None:
    """Catches a weighting that bends a line which is already right."""
    line = Line(level + 12345.0, float(slope))  # the prior's level is wrong, its slope is right
    for length in lengths:
        line.learn(length, level + slope * length)
    assert line.at(asked) == pytest.approx(level + slope * asked, rel=1e-6, abs=1e-3)


@settings(max_examples=50)
@given(points=POINTS, prior_slope=st.integers(0, 10**5), asked=st.integers(1, 300))
def test_a_line_is_discounted_ridge_regression(
    points: list[tuple[int, int]], prior_slope: int, asked: int
) -> None:
    """Catches wrong sums: the same line by numpy's least squares on weighted rows."""
    line = Line(0.0, float(prior_slope))
    for length, value in points:
        line.learn(length, value)
    root = np.sqrt(FORGET ** np.arange(len(points))[::-1])
    lengths, values = np.array(points, dtype=float).T
    rows = np.column_stack((root, root * lengths))
    lean = np.sqrt(SLOPE_WEIGHT)
    matrix = np.vstack((rows, [0.0, lean]))
    (intercept, slope), *_ = np.linalg.lstsq(
        matrix, np.append(root * values, lean * prior_slope), rcond=None
    )
    if slope < 0:
        slope, intercept = 0.0, np.average(values, weights=root**2)
    expected = max(0.0, intercept + slope * asked)
    assert line.at(asked) == pytest.approx(expected, rel=1e-6, abs=1e-2)


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


@settings(max_examples=50)
@given(points=POINTS, level=st.integers(0, 10**9))
def test_the_priors_level_counts_only_before_the_first_frame(
    points: list[tuple[int, int]], level: int
) -> None:
    """Catches a guess of another ring that is mixed into measurements of this one."""
    near, far = Line(0.0, 5.0), Line(float(level), 5.0)
    assert far.at(10) == level + 50
    for length, value in points:
        near.learn(length, value)
        far.learn(length, value)
        assert near.at(10) == far.at(10)
    single = Line(float(level), 5.0)
    single.learn(10, 777.0)
    assert single.at(10) == 777.0
    assert single.at(12) == 787.0, "the prior's slope stays"


def test_a_running_mean_is_plain_at_first_and_then_forgets() -> None:
    """Catches a prior that weighs more than one observation, and a mean that stiffens."""
    recent = Recent(10.0)
    seen = [10.0]
    for value in (2.0, 6.0, 14.0, 3.0):
        recent.learn(value)
        seen.append(value)
        assert recent.value == pytest.approx(sum(seen) / len(seen))
    before = recent.value
    for _ in range(60):
        recent.learn(before + 100)
    assert recent.value == pytest.approx(before + 100 * (1 - (1 - NEWEST) ** 60))


def test_compute_and_transit_are_told_apart() -> None:
    """Catches queueing that is counted as computing, and computing that is counted twice."""
    cost = RingCost(PRIOR)
    cost.measure(frame(received_ns=8000, compute_ns=1000, queue_ns=500), 0)
    # 8000 − 2 × (500 + 500) inside the stages: 6000 on the way.
    assert cost.loop_ns(10) == 6000 + 1000
    assert cost.gap_ns(10) == 0.5 * 1000
    claims = RingCost(PRIOR)
    claims.measure(frame(received_ns=800, compute_ns=1000), 0)
    assert claims.loop_ns(10) == 1000, "no negative time on the way, whatever stages claim"


@pytest.mark.parametrize(
    ("company", "compute_ns", "slowing_ns"),
    [
        (1, 1300, (40 + 300) / 2),
        (3, 1300, (40 + 100) / 2),  # shared by all that were there
        (2, 900, (40 + 0) / 2),  # faster than alone: nobody slowed it
    ],
)
def test_company_teaches_slowing_and_not_what_a_frame_needs(
    company: int, compute_ns: int, slowing_ns: float
) -> None:
    """Catches a frame in company that passes for one alone."""
    cost = RingCost(PRIOR)
    cost.measure(frame(), 0)
    before = cost.loop_ns(10)
    cost.measure(frame(received_ns=7000 + compute_ns, compute_ns=compute_ns), company)
    assert cost.loop_ns(10) == before
    assert cost.slowing_ns == pytest.approx(slowing_ns)


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
    cost.measure(slow, 0)
    factor = 70_000 / (1000 + 10 * 131)
    assert cost.gap_ns(10) == pytest.approx(0.5 * factor * (1000 + 10 * 10))
    assert cost.loop_ns(131) == pytest.approx(20_000 + 70_000)
    assert cost.slowing_ns == 40
    cost.measure(slow, 2)  # in company: no measure of the host
    assert cost.loop_ns(131) == pytest.approx(20_000 + 70_000)
    cost.measure(frame(positions_len=10, received_ns=25_000, compute_ns=5000), 0)
    assert cost.gap_ns(10) == pytest.approx(0.5 * 5000)


@pytest.mark.parametrize(
    ("second", "frac"),
    [
        (frame(sent_ns=100, received_ns=8800), (0.5 + 0.8) / 2),  # stood in line
        (frame(sent_ns=0, received_ns=8000 + 1400), (0.5 + 1.4) / 2),
        (frame(sent_ns=399, received_ns=8800), (0.5 + 0.8) / 2),
        (frame(sent_ns=400, received_ns=8800), 0.5),  # sent half a gap later: it may not have
        (frame(sent_ns=800, received_ns=8800), 0.5),  # as far apart as they were sent
        (frame(sent_ns=100, received_ns=8050), 0.5),  # came closer together than they were sent
        (frame(sent_ns=100, received_ns=8800, epoch=1), 0.5),  # a flush lies between
        (frame(sent_ns=-10, received_ns=8800), 0.5),  # out of order
        (frame(sent_ns=100, received_ns=7000), 0.5),
        (frame(sent_ns=100, received_ns=12_000), (0.5 + 2.0) / 2),  # bounded
        (frame(positions_len=131, sent_ns=100, received_ns=8800), 0.5),  # prefill
    ],
)
def test_gap_comes_only_from_frames_that_stood_in_line(second: FrameRecord, frac: float) -> None:
    """Catches a gap between frames that were not sent together, which would say nothing."""
    cost = RingCost(PRIOR)
    cost.measure(frame(), 0)
    cost.measure(second, 1)
    assert cost.gap_ns(10) == pytest.approx(frac * 1000)


def test_a_frame_sent_after_the_reply_before_it_did_not_stand_in_line() -> None:
    """Catches depth 1 taken for a queue, where a long frame follows a short one."""
    cost, alone = RingCost(PRIOR), Line(1000.0, 10.0)
    for length, sent_ns, took_ns in ((1, 0, 2000), (65, 2100, 8000)):
        record = frame(
            positions_len=length,
            sent_ns=sent_ns,
            received_ns=sent_ns + took_ns,
            compute_ns=took_ns - 400,
        )
        cost.measure(record, 0)
        alone.learn(length, took_ns - 400)
    assert cost.gap_ns(10) == pytest.approx(0.5 * alone.at(10))


def test_a_policy_is_made_with_what_the_ring_has_taught() -> None:
    """Catches a ring whose every job starts from the prior again: what frames cost decides."""
    draft, now = Draft(tuple(range(40)), "ngram", 30), Situation(5, 200, 0, 0, 1)
    free = CostPrior(1000.0, 0.0, 20_000.0, 0.0, 0.0, 0.0)
    dear = CostPrior(1000.0, 1e9, 20_000.0, 0.0, 0.0, 1.0)
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
        assert 0.0 <= cost.gap_ns(short) <= cost.gap_ns(long)
        assert cost.gap_ns(short) <= 2.0 * cost.loop_ns(short) + 1e-6
        assert cost.slowing_ns >= 0.0
