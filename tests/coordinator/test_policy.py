"""Draft-length policies: transitions, parameters, and that none of them can change the output."""

from __future__ import annotations

import random

import pytest

from engine.coordinator.job import make_levers
from engine.coordinator.policies import POLICIES, make_policy, resolve_policy_params
from engine.coordinator.policy import DraftPolicy, FixedK, Situation, TwoState
from engine.coordinator.records import (
    Arrival,
    CancelDraft,
    CommitTokens,
    Finish,
    FrameRecord,
    RequestDraft,
    SendFrame,
)
from engine.coordinator.rounds import RoundMachine
from engine.defaults import DEPTH, DEPTH_MAX, DRAFT_LEN, DRAFT_LEN_MAX
from engine.draft.drafter import NO_DRAFT, Draft
from engine.errors import ConfigError
from tests.coordinator.reference_rounds import EOS, make_limits

SITUATION = Situation(
    committed_len=5, remaining_len=100, in_flight=1, unverified_len=0, anchor_len=0
)
NUM_DECODES = 180


def round_of(draft_len: int, accepted_len: int) -> FrameRecord:
    """A round as a policy sees it."""
    return FrameRecord(
        epoch=0,
        start=10,
        positions_len=draft_len + 1,
        sent_len=draft_len,
        draft_len=draft_len,
        accepted_len=accepted_len,
        tested_len=min(draft_len, accepted_len + 1),
        committed_len=accepted_len + 1,
        outcome="applied",
        source="ngram",
        match_len=4,
        in_flight=1,
        frontier=11,
        sent_ns=0,
        received_ns=1,
    )


@pytest.mark.parametrize(
    ("draft_len", "accepted_len", "expected"),
    [
        (8, 8, 16),  # full
        (8, 7, 16),  # at least `up`
        (8, 6, 16),
        (8, 5, 8),
        (8, 0, 8),
        (16, 16, 16),
        (16, 6, 16),
        (16, 5, 8),
        (3, 3, 16),  # short, yet full
        (3, 2, 8),
        (1, 1, 16),
        (0, 0, 8),  # accepts nothing: no streak
    ],
)
@pytest.mark.parametrize("from_high", [False, True])
def test_two_state_transitions(
    draft_len: int, accepted_len: int, expected: int, from_high: bool
) -> None:
    """Catches a trigger off by one, and a state that survives a bad round."""
    policy = make_policy("two-state", 8, {})
    assert policy.next_len(SITUATION) == 8
    if from_high:
        policy.observe(round_of(8, 8))
        assert policy.next_len(SITUATION) == 16
    policy.observe(round_of(draft_len, accepted_len))
    assert policy.next_len(SITUATION) == expected
    assert policy.next_len(SITUATION) == expected, "asking changed the state"


def test_overrides_reach_the_policy() -> None:
    """Catches a parameter that is accepted and ignored."""
    policy = make_policy("two-state", 4, {"high": 10, "up": 2})
    assert policy.next_len(SITUATION) == 4
    policy.observe(round_of(4, 2))
    assert policy.next_len(SITUATION) == 10
    policy.observe(round_of(10, 1))
    assert policy.next_len(SITUATION) == 4


def test_fixed_k_never_moves() -> None:
    """Catches a fixed policy that learns."""
    policy = make_policy("fixed-k", 5, {})
    for accepted in range(6):
        policy.observe(round_of(5, accepted))
        assert policy.next_len(SITUATION) == 5


def test_params_are_resolved_with_defaults() -> None:
    """Catches a receipt that would echo only what the caller wrote."""
    assert resolve_policy_params("two-state", {}) == {"high": 16, "up": 6}
    assert resolve_policy_params("two-state", {"up": 3}) == {"high": 16, "up": 3}
    assert resolve_policy_params("fixed-k", {}) == {}


def test_a_policy_that_chooses_gets_room_unless_told_otherwise() -> None:
    """Catches a planner that is asked for by name and held to the length of a fixed policy."""
    assert (make_levers().draft_len, make_levers().depth) == (DRAFT_LEN, DEPTH)
    free = make_levers(policy="planner")
    assert (free.draft_len, free.depth) == (DRAFT_LEN_MAX, DEPTH_MAX)
    told = make_levers(policy="planner", draft_len=12, depth=2)
    assert (told.draft_len, told.depth) == (12, 2)
    assert make_levers(draft_len=0, depth=1).draft_len == 0


def test_unknown_names_list_the_valid_ones() -> None:
    """Catches a misspelt policy or parameter that falls back to a default in silence."""
    with pytest.raises(ConfigError) as caught:
        make_policy("two_state", 8, {})
    assert all(name in str(caught.value) for name in POLICIES)
    with pytest.raises(ConfigError, match="high, up"):
        make_policy("two-state", 8, {"hi": 3})
    with pytest.raises(ConfigError, match="fixed-k"):
        make_policy("fixed-k", 8, {"high": 3})


@pytest.mark.parametrize(
    ("draft_len", "params"), [(-1, {}), (65, {}), (8, {"high": 0}), (8, {"up": 65})]
)
def test_values_out_of_range_are_refused(draft_len: int, params: dict[str, int]) -> None:
    """Catches a draft length beyond what stages keep cache rows for."""
    with pytest.raises(ConfigError, match="allowed"):
        make_policy("two-state", draft_len, params)


class Recording(DraftPolicy):
    """Passes through, and keeps what it was told."""

    name = "recording"

    def __init__(self, inner: FixedK | TwoState) -> None:
        self.inner = inner
        self.observed: list[FrameRecord] = []
        self.lengths: set[int] = set()

    def next_len(self, situation: Situation) -> int:
        self.lengths.add(self.inner.next_len(situation))
        return self.inner.next_len(situation)

    def observe(self, record: FrameRecord) -> None:
        self.observed.append(record)
        self.inner.observe(record)


def decode(policy: Recording, seed: int) -> tuple[list[int], list[SendFrame], RoundMachine]:
    """One job on a synchronous ring; the drafter is right or wrong by position."""
    rng = random.Random(seed)
    max_new = rng.randrange(2, 60)
    truth = [rng.randrange(10, 50) for _ in range(max_new)]
    if rng.random() < 0.4:
        truth[rng.randrange(max_new)] = EOS
    right = [rng.random() < rng.choice((0.6, 0.95)) for _ in range(max_new)]
    known = [rng.random() < 0.9 for _ in range(max_new)]
    prompt = tuple(range(100, 100 + rng.randrange(1, 20)))
    machine = RoundMachine(prompt, make_limits(max_new, rng.randrange(1, 5)), policy)
    sends: list[SendFrame] = []
    wire: list[SendFrame] = []
    done: list[Finish] = []

    def token(position: int) -> int:
        idx = position - len(prompt)
        return truth[idx] if idx < max_new else 0

    def carry_out(actions: list) -> None:
        for action in actions:
            match action:
                case SendFrame():
                    sends.append(action)
                    wire.append(action)
                case RequestDraft(request_id, speculative, max_len):
                    at = machine.frontier + len(speculative)
                    span = range(at, at + max_len) if known[at - len(prompt)] else ()
                    ids = tuple(token(p) if right[p - len(prompt)] else 7 for p in span)
                    draft = Draft(ids, "ngram", 3) if ids else NO_DRAFT
                    carry_out(machine.on_draft(request_id, draft, 0))
                case Finish():
                    done.append(action)
                case CommitTokens() | CancelDraft():
                    pass

    carry_out(machine.start(0))
    while not done:
        frame = wire.pop(0)
        if frame.epoch == machine.epoch:
            end = frame.start + len(frame.ids)
            ids = [token(p) for p in range(frame.answer_from + 1, end + 1)]
            carry_out(machine.on_reply(frame.epoch, frame.start, ids, Arrival(0)))
    cut = truth.index(EOS) + 1 if EOS in truth else max_new
    return truth[:cut], sends, machine


def test_two_state_never_changes_the_output() -> None:
    """Catches a draft length that reaches the text: 180 random jobs at three depths and more."""
    lengths: set[int] = set()
    for seed in range(NUM_DECODES):
        policy = Recording(TwoState(8, 16, 6))
        truth, _, machine = decode(policy, seed)
        assert machine.output_ids == truth, seed
        lengths |= policy.lengths
        assert not {r.outcome for r in policy.observed} & {"stale", "prefill"}, seed
        rounds = [r for r in machine.records() if r.outcome in ("applied", "refuted", "closed")]
        told = [(r.epoch, r.start, r.outcome) for r in policy.observed]
        assert told == [(r.epoch, r.start, r.outcome) for r in rounds], seed
    assert lengths == {8, 16}, "the fuzz never left a state"


@pytest.mark.parametrize("draft_len", [1, 4, 8])
def test_two_state_without_a_second_state_is_fixed_k(draft_len: int) -> None:
    """Catches a policy that differs from fixed-k in more than its length."""
    for seed in range(NUM_DECODES // 3):
        _, fixed, _ = decode(Recording(FixedK(draft_len)), seed)
        _, two_state, _ = decode(Recording(TwoState(draft_len, draft_len, 6)), seed)
        assert fixed == two_state, seed


def test_shrinking_high_below_base_is_the_callers_choice() -> None:
    """Catches a hidden maximum: the high state is exactly what was asked for."""
    policy = make_policy("two-state", 8, {"high": 2})
    policy.observe(round_of(8, 8))
    assert policy.next_len(SITUATION) == 2
