"""Trees, n-gram chains and chains of a drafter that needs an idle ring, mixed under weather."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.coordinator.policy import FixedK
from engine.coordinator.records import (
    Action,
    Arrival,
    CommitTokens,
    FeedTaps,
    RequestDraft,
    RoundLimits,
    SendFrame,
)
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import NO_DRAFT, Draft, DraftFate
from engine.errors import LocalProtocolError
from tests.coordinator.reference_rounds import EOS, Text, make_limits
from tests.coordinator.reference_trees import all_shapes
from tests.coordinator.test_rounds_machine import ROUNDS, ScriptedPolicy, Storm, jobs
from tests.coordinator.test_trees_exhaustive import answers, check_taps

SHAPES = [shape for num in range(1, 6) for shape in all_shapes(num)]
Job = tuple[Text, RoundLimits, ScriptedPolicy]


@dataclass(slots=True)
class TreeStorm(Storm):
    """A storm whose drafter may give a tree, or drafts from taps, when the ring is idle."""

    answered: SendFrame | None = None
    fed: set[int] = field(default_factory=set)

    def answer_frame(self) -> None:
        frame = self.wire.popleft()
        self.answered = frame
        is_stale = frame.epoch < self.machine.epoch
        if is_stale and self.choose(True, False):
            return  # a stage dropped it
        ids = answers(self.text, frame)
        if len(frame.ids) + frame.start <= frame.answer_from:
            ids = []  # a prefill chunk that is not the last
        ids = [EOS] * len(ids) if is_stale else ids
        arrival = Arrival(self.now_ns)
        actions = self.machine.on_reply(frame.epoch, frame.start, ids, arrival)
        fed = [action for action in actions if isinstance(action, FeedTaps)]
        assert len(fed) == (0 if is_stale else 1), "fed from a stale reply, or not from a fresh one"
        self.take(actions)

    def answer_draft(self) -> None:
        request = self.request
        assert request is not None
        assert request.is_idle == (not len(self.machine.flight))
        kind = self.choose("ngram", "tree", "eagle", "none")
        if kind == "ngram":
            Storm.answer_draft(self)
            return
        self.request = None
        start = self.machine.frontier + len(request.speculative)
        draft = NO_DRAFT
        if request.is_idle and kind == "tree":
            draft = self.grow(start)
        elif request.is_idle and kind == "eagle":
            ids = [self.guess(start + idx) for idx in range(request.max_len)]
            draft = Draft(tuple(ids), "eagle", 0)
        self.take(self.machine.on_draft(request.request_id, draft, self.now_ns))

    def grow(self, start: int) -> Draft:
        """A tree, right here and there; siblings are never twins."""
        parents = self.choose(*SHAPES)
        assert isinstance(parents, tuple)
        ids: list[int] = []
        depths: list[int] = []
        for node, parent in enumerate(parents):
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
            siblings = [ids[at] for at in range(node) if parents[at] == parent]
            token = self.guess(start + depths[-1] - 1)
            ids.append(900 + node if token in siblings else token)
        return Draft(tuple(ids), "tree", 0, (), parents)

    def guess(self, position: int) -> int:
        return self.text.token(position) if self.choose(True, True, False) else EOS

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, FeedTaps):
                self.fed |= check_taps(self.text, self.answered, action, self.machine.frontier)
            if isinstance(action, RequestDraft):
                assert self.fed == set(range(self.machine.frontier - 1)), "asked before it was fed"
            if isinstance(action, SendFrame) and action.parents:
                assert len(self.machine.flight) == 1, "a tree beside other frames"
        others = [action for action in actions if not isinstance(action, FeedTaps)]
        Storm.take(self, others)


@settings(max_examples=300, deadline=None)
@given(job=jobs(), draw=st.data())
def test_any_weather_gives_the_targets_text(job: Job, draw: st.DataObject) -> None:
    """Catches output that depends on trees, a position sent twice in an epoch, a tree that is not
    alone, taps of a wrong row, and a policy that is told of trees."""
    text, limits, policy = job
    fates: list[DraftFate] = []
    machine = RoundMachine(
        text.prompt, replace(limits, wants_taps=True), policy, tell_fate=fates.append
    )
    storm = TreeStorm(text, machine, draw)
    storm.run()
    assert storm.committed == machine.output_ids == list(text.output)
    records = machine.records()
    rounds = [record for record in records if record.outcome in ROUNDS]
    assert sum(record.committed_len for record in rounds) == len(text.output) - 1
    for record in records:
        assert record.accepted_len <= record.draft_len <= record.sent_len
        assert record.tested_len - record.accepted_len in (0, 1)
        assert record.tested_len <= record.draft_len
        assert not record.parents or (record.in_flight, record.unverified_len) == (1, 0)
    for before, after in pairwise(records):
        end = before.start + before.positions_len
        if before.parents:
            assert after.epoch == before.epoch + 1
            assert after.start == end - before.sent_len, "the path is not carried anew"
        elif before.epoch == after.epoch:
            assert after.start == end
    chains = [record for record in rounds if not record.parents]
    assert [(r.epoch, r.start) for r in policy.observed] == [(r.epoch, r.start) for r in chains]
    drafted = [record for record in rounds if record.sent_len]
    told = [(fate.source, fate.sent_len, fate.accepted_len, fate.tested_len) for fate in fates]
    assert told == [(r.source, r.sent_len, r.accepted_len, r.tested_len) for r in drafted]
    assert machine.flight.standing().num_tested == sum(
        record.tested_len for record in records if not record.parents
    )


def idle_machine(max_new: int = 20, depth: int = 3) -> tuple[RoundMachine, RequestDraft]:
    """Prompt of 2 and the first token, 200, committed: the ring is idle."""
    limits = replace(make_limits(max_new, depth), wants_taps=True)
    machine = RoundMachine((1, 3), limits, FixedK(2))
    machine.start(0)
    commit, feed, request = machine.on_reply(0, 0, [200], Arrival(0))
    assert (commit, feed) == (CommitTokens((200,)), FeedTaps(0, (0, 1), 2))
    assert isinstance(request, RequestDraft) and request.is_idle
    return machine, request


def test_one_tree_by_hand() -> None:
    """Catches a rule that machine and reference get wrong alike."""
    machine, request = idle_machine()
    #  root 200 -> 201 -> 202 -> 7
    #                  -> 203 -> 204
    #           -> 8
    tree = Draft((201, 202, 7, 203, 204, 8), "tree", 0, (), (-1, 0, 1, 0, 3, -1))
    assert machine.on_draft(request.request_id, tree, 0) == [
        SendFrame(0, 2, (200, 201, 202, 7, 203, 204, 8), 2, (-1, 0, 1, 0, 3, -1))
    ]
    # root says 201, its node says 203, that one 204, that one 205; the others do not matter
    actions = machine.on_reply(0, 2, [201, 203, 9, 9, 204, 205, 9], Arrival(1))
    assert actions[:2] == [
        CommitTokens((201, 203, 204, 205)),
        FeedTaps(2, (0, 1, 4, 5), 7),
    ]
    assert actions[0].rows == (0, 1, 4, 5)
    request = actions[2]
    assert (request.is_idle, request.speculative, machine.epoch) == (True, (), 1)
    # the path goes out anew, from behind the root on, and is answered for its last token only
    sent = machine.on_draft(request.request_id, Draft((206, 9), "eagle", 0), 1)
    assert sent[0] == SendFrame(1, 3, (201, 203, 204, 205, 206, 9), 6)
    actions = machine.on_reply(1, 3, [206, 207, 9], Arrival(2))
    assert actions[:2] == [CommitTokens((206, 207)), FeedTaps(3, (0, 1, 2, 3, 4), 6)]
    machine.abandon()
    prefill, first, second = machine.records()
    assert (first.sent_len, first.draft_len, first.accepted_len, first.tested_len) == (6, 6, 3, 3)
    assert (first.committed_len, first.positions_len, first.source) == (4, 7, "tree")
    assert (second.accepted_len, second.tested_len, second.committed_len) == (1, 2, 2)
    assert prefill.parents == second.parents == ()


def test_a_drafter_that_needs_an_idle_ring_is_not_starved() -> None:
    """Catches one that is asked once, has nothing while frames are under way, and then never again;
    and an anchor that is sent alone though it could have carried a draft."""
    machine, request = idle_machine()
    sent, again = machine.on_draft(request.request_id, Draft((201,), "eagle", 0), 1)
    assert sent == SendFrame(0, 2, (200, 201), 2)
    assert not again.is_idle
    assert machine.on_draft(again.request_id, NO_DRAFT, 1) == []
    actions = machine.on_reply(0, 2, [201, 202], Arrival(9))
    asked = [action for action in actions if isinstance(action, RequestDraft)]
    assert [request.is_idle for request in asked] == [True]
    assert not [action for action in actions if isinstance(action, SendFrame)]
    sent = machine.on_draft(asked[0].request_id, Draft((203, 204), "eagle", 0), 9)
    assert sent[0] == SendFrame(0, 4, (202, 203, 204), 4)


def test_while_a_tree_travels_nothing_is_asked_or_sent() -> None:
    """Catches frames behind a tree: their positions would mean nothing."""
    machine, request = idle_machine()
    actions = machine.on_draft(request.request_id, Draft((201,), "tree", 0, (), (-1,)), 0)
    assert [type(action) for action in actions] == [SendFrame]
    machine.on_timer(1)
    assert machine.speculative == () and len(machine.flight) == 1


def test_stale_replies_feed_nothing() -> None:
    """Catches taps of a path that was left."""
    machine, request = idle_machine()
    _, again = machine.on_draft(request.request_id, Draft((9, 9), "ngram", 1), 0)
    machine.on_draft(again.request_id, Draft((9, 9), "ngram", 1), 0)
    actions = machine.on_reply(0, 2, [201, 202, 203], Arrival(1))
    assert FeedTaps(2, (0,), 3) in actions, "the row of the wrong draft is none"
    assert machine.on_reply(0, 5, [1, 1], Arrival(2)) == []


def test_without_need_no_taps_are_named() -> None:
    """Catches a job that asked for no taps and has its replies searched for them."""
    machine = RoundMachine((1, 3), make_limits(9, 2), FixedK(2))
    machine.start(0)
    actions = machine.on_reply(0, 0, [200], Arrival(1))
    assert [type(action) for action in actions] == [CommitTokens, RequestDraft]


@pytest.mark.parametrize(
    ("draft", "fault"),
    [
        (Draft((1, 2), "tree", 0, (), (-1,)), "1 parents of 2"),
        (Draft((1, 2), "tree", 0, (), (-1, 1)), "neither the node before it"),
        (Draft((1, 2), "tree", 0, (), (0, 0)), "neither the node before it"),
        (Draft((1, 2), "tree", 0, (), (-1, -2)), "neither the node before it"),
        (Draft((1, 2, 3, 4), "tree", 0, (), (-1, 0, -1, 1)), "neither the node before it"),
        (Draft((1, 2), "tree", 0), "0 parents in a draft by 'tree'"),
        (Draft((1, 2), "eagle", 0, (), (-1, 0)), "2 parents in a draft by 'eagle'"),
        (Draft((1,) * 65, "tree", 0, (), (-1,) * 65), "asked for 64"),
    ],
)
def test_impossible_trees_are_our_own_fault(draft: Draft, fault: str) -> None:
    """Catches a tree that stages would refuse, or that no reply could be read by."""
    machine, request = idle_machine()
    with pytest.raises(LocalProtocolError, match=fault):
        machine.on_draft(request.request_id, draft, 0)


def test_a_tree_behind_other_frames_is_our_own_fault() -> None:
    """Catches a drafter that does not look whether the ring is idle."""
    machine, request = idle_machine()
    _, again = machine.on_draft(request.request_id, Draft((201,), "ngram", 1), 0)
    with pytest.raises(LocalProtocolError, match="behind 1 frames"):
        machine.on_draft(again.request_id, Draft((1,), "tree", 0, (), (-1,)), 0)


def test_a_tree_is_stale_when_its_job_is_given_up() -> None:
    """Catches a failed job whose tree has no outcome, or whose late reply is a broken protocol."""
    machine, request = idle_machine()
    machine.on_draft(request.request_id, Draft((201, 8), "tree", 0, (), (-1, -1)), 0)
    machine.abandon()
    assert machine.on_reply(0, 2, [201, 1, 1], Arrival(1)) == []
    record = machine.records()[1]
    assert (record.outcome, record.sent_len, record.draft_len) == ("stale", 2, 0)
    assert record.parents == (-1, -1) and machine.output_ids == [200]
