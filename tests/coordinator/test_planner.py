"""The planner against a slow simulation of trains, and what it may never do."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.coordinator.planner import (
    HORIZON,
    LENGTHS,
    TYPICAL,
    LearnedOutlook,
    Planner,
    Train,
    UnderWay,
    _end_times,
    _ends,
    best_train,
    lost_ns,
)
from engine.coordinator.policy import Situation
from engine.coordinator.records import (
    Action,
    Arrival,
    FrameRecord,
    RequestDraft,
    SendFrame,
)
from engine.coordinator.ring_cost import CostPrior, RingCost
from engine.coordinator.rounds import RoundMachine
from engine.coordinator.survival import Survival, load_prior
from engine.draft.drafter import Draft
from tests.coordinator.reference_rounds import make_limits

NOTHING = UnderWay()
SITUATION = Situation(5, remaining_len=100, in_flight=0, unverified_len=0, anchor_len=1)


def prior_of(
    compute_ns: float, transit_ns: float, num_stages: int = 1, overlap: float = 0.0
) -> CostPrior:
    """Frames that cost the same whatever they carry."""
    return CostPrior(compute_ns, 0.0, transit_ns, 0.0, overlap=overlap, num_stages=num_stages)


FIXED_LOOP = prior_of(0.001, 100.0)  # 100 ns a loop, no queue
BUSY = prior_of(50.0, 50.0)  # 100 ns a loop, a reply each 50 ns: two frames fill the ring
SHARED = prior_of(80.0, 20.0, num_stages=4, overlap=0.6)  # stages slow each other a lot
COSTS = st.builds(
    CostPrior,
    compute_frame_ns=st.floats(1, 1000),
    compute_position_ns=st.floats(0, 50),
    transit_frame_ns=st.floats(0, 1000),
    transit_position_ns=st.floats(0, 10),
    overlap=st.floats(0, 2),
    num_stages=st.integers(1, 5),
)
UNDER_WAY = (NOTHING, UnderWay(1, 1, 0.5), UnderWay(40, 3, 0.1))
SURVIVALS = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.cumprod)


class Told:
    """An outlook that says what it was told."""

    def __init__(self, survival: np.ndarray) -> None:
        self._survival = survival
        self.observed: list[FrameRecord] = []

    def observe(self, record: FrameRecord) -> None:
        self.observed.append(record)

    def survival(self, situation: Situation, draft: Draft) -> np.ndarray:
        return self._survival


def slow_end_times_ns(
    num_tokens: int, length: int, depth: int, cost: RingCost, under_way: UnderWay = NOTHING
) -> list[float]:
    """Frames in groups of what is in flight: a group leaves a loop after the one before it."""
    length = min(length, num_tokens)  # nobody drafts beyond the end
    behind, num_frames = under_way.num_frames, -(-num_tokens // length)
    together = behind + depth
    first = cost.train(length, together).replies_ns
    gap_ns = (first[-1] - first[0]) / (together - 1) if together > 1 else 0.0
    replies = []
    for place in range(behind, behind + num_frames):
        group, in_group = divmod(place, together)
        reply_ns = group * first[0] + first[in_group]
        if group:  # the busy ring gives one reply a gap
            reply_ns = max(reply_ns, first[-1] + gap_ns * (place - together + 1))
        replies.append(reply_ns)
    if behind:
        shift_ns = cost.train(TYPICAL, behind).replies_ns[-1] - first[behind - 1]
        alone = cost.train(length, depth).replies_ns
        replies = [reply_ns + shift_ns for reply_ns in replies]
        replies[:depth] = map(max, replies[:depth], alone)
    else:
        anchor_ns = cost.loop_ns(length + 1) - cost.loop_ns(length)
        replies = [reply_ns + anchor_ns for reply_ns in replies]
    short_len = num_tokens - (num_frames - 1) * length
    if num_frames > 1:
        share = cost.gap_ratio(short_len, length)
        replies[-1] = replies[-2] + share * (replies[-1] - replies[-2])
    for idx in range(num_frames):
        num_stale = min(num_frames - 1 - idx, together - 1)
        replies[idx] += cost.train(length, num_stale + 1).leftover_ns
    return replies


def deciding_frame(num_right: int, length: int, num_drafts: int) -> int:
    """Which frame's reply ends a train whose first `num_right` drafts are right."""
    frame, held = (
        0,
        length,
    )  # drafts up to this frame's; its reply also decides the next one's first
    while held < min(num_right, num_drafts):
        frame, held = frame + 1, held + length
    return frame


def slow_rate(
    survival: np.ndarray, length: int, depth: int, cost: RingCost, under_way: UnderWay
) -> float:
    """Tokens per ns, by looking at every place where the train may end."""
    chances = [1.0, *survival.tolist(), 0.0]
    replies = slow_end_times_ns(len(survival), length, depth, cost, under_way)
    tokens, time_ns = 0.0, 0.0
    for num_right in range(len(survival) + 1):
        chance = chances[num_right] - chances[num_right + 1]
        tokens += chance * (under_way.num_tokens + num_right + 1)
        time_ns += chance * replies[deciding_frame(num_right, length, len(survival))]
    return tokens / time_ns


@given(SURVIVALS, st.integers(1, 45))
def test_ends_are_the_chances_of_each_frame(survival: np.ndarray, length: int) -> None:
    """Catches a reply that is not given the first draft of the next frame, and lost chances."""
    ends = _ends(survival, length)
    expected = [0.0] * -(-len(survival) // length)
    chances = [1.0, *survival.tolist(), 0.0]
    for num_right in range(len(survival) + 1):
        frame = deciding_frame(num_right, length, len(survival))
        expected[frame] += chances[num_right] - chances[num_right + 1]
    assert ends.min() >= 0 and ends.sum() == pytest.approx(1.0)
    assert ends == pytest.approx(expected)


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 5), COSTS, st.sampled_from(UNDER_WAY))
def test_end_times_equal_a_slow_loop(
    num_tokens: int, length: int, depth: int, prior: CostPrior, under_way: UnderWay
) -> None:
    """Catches a group that leaves too early and a line that moves faster than the ring."""
    cost = RingCost(prior)
    depth = min(depth, -(-num_tokens // length))
    times = _end_times(num_tokens, length, depth, under_way, cost)
    assert times == pytest.approx(slow_end_times_ns(num_tokens, length, depth, cost, under_way))


@settings(max_examples=30)
@given(SURVIVALS, st.integers(1, 64), st.integers(1, 8), COSTS, st.sampled_from(UNDER_WAY))
def test_best_train_is_the_best_of_the_grid(
    survival: np.ndarray, len_max: int, depth_max: int, prior: CostPrior, under_way: UnderWay
) -> None:
    """Catches a maximum that is missed, or a rate that is not tokens over time."""
    cost = RingCost(prior)
    lengths = [length for length in LENGTHS if length < len_max] + [len_max]
    # Behind frames in flight, drafting nothing is not a train.
    rates = {Train(0, 1): 0.0 if under_way.num_frames else 1.0 / cost.loop_ns(1)}
    for length in lengths:
        for depth in range(1, min(depth_max, -(-len(survival) // length)) + 1):
            rates[Train(length, depth)] = slow_rate(survival, length, depth, cost, under_way)
    train = best_train(survival, cost, lengths, depth_max, under_way)
    assert rates[train] == pytest.approx(max(rates.values()))
    again = best_train(survival.copy(), RingCost(prior), list(lengths), depth_max, under_way)
    assert train == again


@pytest.mark.parametrize("remaining_len", [2, 5, 9, 17, 60, 129, 500])
@pytest.mark.parametrize(("len_max", "depth_max"), [(64, 8), (8, 4), (5, 1), (1, 8)])
def test_certain_drafts_need_the_fewest_loops(
    remaining_len: int, len_max: int, depth_max: int
) -> None:
    """Catches a plan that leaves the ring empty although every draft is right."""

    def loops(length: int, depth: int) -> int:
        written, num_loops = 0, 0
        while written < remaining_len:
            num_loops += 1
            # `depth` frames of drafts, and the one token that the last reply adds to the first.
            written += depth * length + (num_loops == 1)
        return num_loops

    lengths = [length for length in LENGTHS if length < len_max] + [len_max]
    train = best_train(
        np.ones(remaining_len - 1), RingCost(FIXED_LOOP), lengths, depth_max, UnderWay()
    )
    fewest = min(loops(length, depth) for length in lengths for depth in range(1, depth_max + 1))
    assert loops(train.draft_len, train.depth) == fewest


@pytest.mark.parametrize("prior", [FIXED_LOOP, BUSY, CostPrior()])
@pytest.mark.parametrize("num_drafts", [1, 7, 300])
def test_hopeless_drafts_are_not_sent(prior: CostPrior, num_drafts: int) -> None:
    """Catches a planner that cannot choose to draft nothing."""
    assert best_train(np.zeros(num_drafts), RingCost(prior), list(LENGTHS), 8, UnderWay()) == Train(
        0, 1
    )
    planner = Planner(Told(np.zeros(num_drafts)), RingCost(prior), 64, 8)
    assert planner.keep_len(SITUATION, Draft((1, 2, 3), "ngram", 3)) == 0


@settings(max_examples=40)
@given(SURVIVALS, COSTS, st.integers(1, 64), st.integers(1, 8), st.integers(0, 600))
def test_it_keeps_what_was_drafted_at_most(
    survival: np.ndarray, prior: CostPrior, len_max: int, depth_max: int, unverified_len: int
) -> None:
    """Catches a length beyond the draft or the grid, and a plan that is not carried out."""
    planner = Planner(Told(survival), RingCost(prior), len_max, depth_max)
    assert planner.next_len(SITUATION) == len_max
    lengths = [length for length in LENGTHS if length < len_max] + [len_max]
    train = best_train(survival, RingCost(prior), lengths, depth_max, UnderWay())
    for num_drafted in {1, 3, len_max}:
        draft = Draft((9,) * num_drafted, "ngram", 3)
        assert planner.keep_len(SITUATION, draft) == min(train.draft_len, num_drafted)
        for in_flight in range(1, depth_max):
            behind = replace(SITUATION, unverified_len=unverified_len, in_flight=in_flight)
            assert 0 <= planner.keep_len(behind, draft) <= min(num_drafted, len_max)


@pytest.mark.parametrize(
    ("prior", "survives", "in_flight", "sends"),
    [
        (FIXED_LOOP, 1.0, 1, True),
        (FIXED_LOOP, 0.0, 1, False),  # what is before it will be refuted
        (FIXED_LOOP, 0.02, 1, True),  # it costs nothing to try
        (BUSY, 1.0, 1, True),
        (BUSY, 1.0, 2, False),  # two frames fill the ring
        (BUSY, 1.0, 3, False),
        (SHARED, 1.0, 1, True),
        (SHARED, 0.1, 1, False),  # it would slow the one before it, and what comes instead
        (SHARED, 0.0, 0, True),  # nothing there to slow
    ],
)
def test_it_holds_where_waiting_is_better(
    prior: CostPrior, survives: float, in_flight: int, sends: bool
) -> None:
    """Catches frames sent into a full ring, or behind what will be refuted."""
    survival = np.ones(90 + 4 * in_flight)
    survival[4 * in_flight :] = survives if in_flight else 1.0
    planner = Planner(Told(survival), RingCost(prior), 4, 8)
    now = replace(SITUATION, in_flight=in_flight, unverified_len=4 * in_flight)
    assert (planner.keep_len(now, Draft((9,) * 4, "ngram", 3)) > 0) == sends


@settings(max_examples=60)
@given(COSTS, st.integers(1, 64), st.integers(1, 6))
def test_a_frame_that_does_not_matter_never_helps(
    prior: CostPrior, length: int, in_flight: int
) -> None:
    """Catches a cost of speculation that is counted as a gain."""
    assert lost_ns(RingCost(prior), length, in_flight) >= -1e-6 * RingCost(prior).loop_ns(length)


def most_in_flight(prior: CostPrior, len_max: int) -> int:
    """A job whose drafts are all right, on the round machine; replies come one by one."""
    planner = Planner(Told(np.ones(200)), RingCost(prior), len_max, 8)
    machine = RoundMachine((100, 101), make_limits(200, 8), planner)
    wire: deque[SendFrame] = deque()
    most = 0

    def carry_out(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendFrame):
                wire.append(action)
            elif isinstance(action, RequestDraft):
                draft = Draft((9,) * action.max_len, "ngram", 3)
                carry_out(machine.on_draft(action.request_id, draft, 0))

    carry_out(machine.start(0))
    while not machine.finished:
        frame = wire.popleft()
        ids = (9,) * (frame.start + len(frame.ids) - frame.answer_from)
        carry_out(machine.on_reply(frame.epoch, frame.start, ids, Arrival(0)))
        most = max(most, len(machine.flight))
    return most


@pytest.mark.parametrize(
    ("prior", "num_frames"),
    [
        (prior_of(100.0, 0.0), 1),
        (BUSY, 2),
        (prior_of(50.0, 150.0), 4),
        (FIXED_LOOP, 8),  # frames cost nothing: all the depth
    ],
)
def test_the_ring_is_filled_and_not_overfilled(prior: CostPrior, num_frames: int) -> None:
    """Catches a depth that is one off once the first replies have come."""
    assert most_in_flight(prior, 4) == num_frames


@pytest.mark.parametrize("remaining_len", [1, 2, 40, 513, 2000])
def test_the_learned_outlook_looks_to_the_end_of_output_or_the_horizon(remaining_len: int) -> None:
    """Catches an empty outlook, and one that ends in the wrong place."""
    outlook = LearnedOutlook(Survival({}))
    draft = Draft((1, 2), "ngram", 5)
    situation = replace(SITUATION, remaining_len=remaining_len, unverified_len=2)
    survival = outlook.survival(situation, draft)
    assert len(survival) == max(1, min(HORIZON, remaining_len - 1))
    assert ((survival > 0) | (np.arange(len(survival)) > 100)).all()
    assert (np.diff(survival) <= 0).all()
    assert survival[:2] == pytest.approx([0.5, 0.25][: len(survival)])


@pytest.mark.parametrize("unverified_len", [0, 3, 40])
def test_the_learned_outlook_believes_the_verified_match_only(unverified_len: int) -> None:
    """Catches drafts in flight that make a match look longer than what is known to be right."""
    learned = Survival(load_prior())
    now = replace(SITUATION, remaining_len=90, unverified_len=unverified_len)
    found = LearnedOutlook(learned).survival(now, Draft((1, 2), "ngram", 5 + unverified_len))
    assert found == pytest.approx(learned.curve("ngram", 5, 89))


def test_rounds_reach_the_outlook() -> None:
    """Catches a planner that learns nothing from what became of its drafts."""
    told = Told(np.ones(4))
    planner = Planner(told, RingCost(FIXED_LOOP), 8, 4)
    record = FrameRecord(0, 10, 3, 2, 2, 2, 2, 3, "applied", "ngram", 4, 1, 11, 0, 700)
    planner.observe(record)
    assert told.observed == [record]
