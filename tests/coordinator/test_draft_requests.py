"""The book of draft requests: at most one open, late drafts dropped, wrong ones refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.coordinator.draft_requests import DraftRequests
from engine.coordinator.policy import FixedK
from engine.coordinator.records import Action, Arrival, CancelDraft, RequestDraft, SendFrame
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import NO_DRAFT, Draft
from engine.errors import LocalProtocolError
from tests.coordinator.reference_rounds import make_limits

DRAFT = Draft((1, 2, 3), "ngram", 4)


def test_a_request_says_what_was_asked() -> None:
    """Catches a request that keeps a live view of what is speculative, or loses its length."""
    requests = DraftRequests()
    speculative = [5, 6]
    request = requests.ask(12, speculative, 3)
    speculative.append(7)
    assert (request.speculative, request.max_len) == ((5, 6), 3)
    assert requests.open is request


def test_a_draft_closes_its_request_once() -> None:
    """Catches a draft that is taken twice."""
    requests = DraftRequests()
    request = requests.ask(12, (), 3)
    assert requests.take(request.request_id, DRAFT)
    assert requests.open is None
    assert not requests.take(request.request_id, DRAFT)


def test_a_late_draft_is_dropped_and_leaves_the_open_request_open() -> None:
    """Catches a draft for an older context that answers a newer request."""
    requests = DraftRequests()
    old = requests.ask(12, (), 3)
    assert requests.void() == [CancelDraft(old.request_id)]
    new = requests.ask(14, (), 1)
    assert new.request_id != old.request_id
    assert not requests.take(old.request_id, DRAFT), "and its length is nobody's business"
    assert requests.open is new
    assert requests.take(new.request_id, Draft((1,), "ngram", 4))


def test_voiding_nothing_cancels_nothing() -> None:
    """Catches a cancel action for a request that was answered or never made."""
    requests = DraftRequests()
    assert requests.void() == []
    request = requests.ask(12, (), 3)
    requests.take(request.request_id, NO_DRAFT)
    assert requests.void() == []
    assert requests.void_unless(13, 3) == []


@pytest.mark.parametrize(
    ("place", "max_len", "void"),
    [(12, 3, False), (13, 3, True), (11, 3, True), (12, 2, True), (12, 4, True), (13, 2, True)],
)
def test_a_request_is_void_once_place_or_length_changed(
    place: int, max_len: int, void: bool
) -> None:
    """Catches a change of policy, or a bonus token, that leaves the old request standing."""
    requests = DraftRequests()
    request = requests.ask(12, (8,), 3)
    cancels = requests.void_unless(place, max_len)
    assert cancels == ([CancelDraft(request.request_id)] if void else [])
    assert (requests.open is None) == void
    assert requests.take(request.request_id, DRAFT) != void


def test_a_draft_that_is_too_long_is_refused() -> None:
    """Catches a drafter whose extra tokens would go out unasked."""
    requests = DraftRequests()
    request = requests.ask(12, (), 2)
    with pytest.raises(LocalProtocolError, match="gave 3 tokens, asked for 2"):
        requests.take(request.request_id, DRAFT)
    assert requests.take(request.request_id, Draft((1, 2), "ngram", 4)), "as long as asked is fine"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("take"), st.integers(0, 8), st.integers(0, 3)),
        st.tuples(st.just("void"), st.just(0), st.just(0)),
        st.tuples(st.just("unless"), st.integers(0, 5), st.integers(1, 3)),
    ),
    max_size=30,
)


@given(STEPS)
def test_any_history_matches_a_plain_model(steps: list[tuple[str, int, int]]) -> None:
    """Catches an id that comes twice and a request that outlives its voiding."""
    requests = DraftRequests()
    current: tuple[int, int, int] | None = None  # id, place, length
    seen: set[int] = set()
    for verb, first, second in steps:
        if verb == "ask" and current is None:
            request = requests.ask(first, (), second)
            assert request.request_id not in seen
            seen.add(request.request_id)
            current = (request.request_id, first, second)
        elif verb == "take":
            expected = current is not None and first == current[0]
            draft = Draft((0,) * min(second, current[2] if current else second), "ngram", 1)
            assert requests.take(first, draft) == expected
            current = None if expected else current
        elif verb in ("void", "unless"):
            stays = verb == "unless" and current is not None and current[1:] == (first, second)
            cancels = requests.void() if verb == "void" else requests.void_unless(first, second)
            cancelled = current is not None and not stays
            assert cancels == ([CancelDraft(current[0])] if current and cancelled else [])
            current = None if cancelled else current
        assert (requests.open.request_id if requests.open else None) == (
            current[0] if current else None
        )


def machine_with_request() -> tuple[RoundMachine, RequestDraft]:
    """A job whose prefill was answered and that waits for its first draft."""
    machine = RoundMachine((100, 101), make_limits(20, 3), FixedK(4))
    machine.start(0)
    actions = machine.on_reply(0, 0, [50], Arrival(1))
    (request,) = [action for action in actions if isinstance(action, RequestDraft)]
    return machine, request


def test_the_machine_refuses_a_draft_that_is_too_long() -> None:
    """Catches a machine that cuts silently, or sends what it did not ask for."""
    machine, request = machine_with_request()
    with pytest.raises(LocalProtocolError, match="gave 5 tokens, asked for 4"):
        machine.on_draft(request.request_id, Draft((1, 2, 3, 4, 5), "ngram", 3), 2)


def test_the_machine_drops_a_draft_of_no_open_request() -> None:
    """Catches a draft that comes twice, for an id never given, or after the end."""
    machine, request = machine_with_request()
    assert machine.on_draft(request.request_id + 1, DRAFT, 2) == []
    assert machine.on_draft(request.request_id, DRAFT, 2)
    assert machine.on_draft(request.request_id, DRAFT, 2) == []
    machine.abandon()
    assert machine.on_draft(request.request_id + 1, DRAFT, 3) == []


def test_the_machine_never_has_two_requests_open() -> None:
    """Catches a request that is neither answered nor cancelled before the next one."""
    num_late = 0
    for seed in range(60):
        rng = random.Random(seed)
        machine = RoundMachine((100, 101), make_limits(40, rng.randrange(1, 5)), FixedK(3))
        wire: list[SendFrame] = []
        open_ids: list[int] = []
        void_ids: list[int] = []
        now_ns = 0

        def carry_out(
            actions: list[Action],
            wire: list[SendFrame] = wire,
            open_ids: list[int] = open_ids,
            void_ids: list[int] = void_ids,
        ) -> None:
            for action in actions:
                if isinstance(action, SendFrame):
                    wire.append(action)
                elif isinstance(action, RequestDraft):
                    assert not open_ids, "a second request"
                    open_ids.append(action.request_id)
                elif isinstance(action, CancelDraft):
                    assert open_ids == [action.request_id], "cancels what is not open"
                    void_ids.append(open_ids.pop())

        carry_out(machine.start(0))
        while not machine.finished:
            now_ns += 1
            if void_ids and rng.random() < 0.5:  # a late draft
                num_late += 1
                assert machine.on_draft(void_ids.pop(), DRAFT, now_ns) == []
            elif open_ids and (not wire or rng.random() < 0.5):
                ids = tuple(rng.choice((9, 9, 8)) for _ in range(rng.randrange(2)))
                carry_out(machine.on_draft(open_ids.pop(), Draft(ids, "ngram", 1), now_ns))
            else:
                frame = wire.pop(0)
                if frame.epoch == machine.epoch:
                    ids = (9,) * (frame.start + len(frame.ids) - frame.answer_from)
                    carry_out(machine.on_reply(frame.epoch, frame.start, ids, Arrival(now_ns)))
        assert not open_ids, "the end leaves a request open"
    assert num_late > 50
