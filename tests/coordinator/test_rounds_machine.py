"""The round machine under weather: random delays, failures, late drafts, lost stale replies."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.coordinator.policy import DraftPolicy, FixedK, Situation
from engine.coordinator.records import (
    Action,
    Arrival,
    CancelDraft,
    CommitTokens,
    Finish,
    FrameRecord,
    RequestDraft,
    RoundLimits,
    SendFrame,
)
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import NO_DRAFT, Draft
from engine.errors import JobError, LocalProtocolError, RemoteProtocolError
from tests.coordinator.reference_rounds import EOS, Text, make_limits, make_text

ROUNDS = ("applied", "refuted", "closed")


class ScriptedPolicy(DraftPolicy):
    """Any length at any time; remembers what it was told."""

    name = "scripted"

    def __init__(self, lengths: list[int], kept: list[int] | None = None) -> None:
        self.lengths = lengths
        self.kept = kept or [99]
        self.asked = self.cut = 0
        self.observed: list[FrameRecord] = []

    def next_len(self, situation: Situation) -> int:
        assert situation.remaining_len >= 1 and situation.committed_len >= 1
        self.asked += 1
        return self.lengths[self.asked % len(self.lengths)]

    def keep_len(self, situation: Situation, draft: Draft) -> int:
        self.cut += 1
        return min(self.kept[self.cut % len(self.kept)], len(draft.ids))

    def observe(self, record: FrameRecord) -> None:
        self.observed.append(record)


@dataclass(slots=True)
class Storm:
    """A ring and a drafter whose every choice is drawn."""

    text: Text
    machine: RoundMachine
    draw: st.DataObject
    wire: deque[SendFrame] = field(default_factory=deque)
    request: RequestDraft | None = None
    void: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    finish: Finish | None = None
    now_ns: int = 0

    def choose(self, *choices: object) -> object:
        return self.draw.draw(st.sampled_from(choices))

    def run(self) -> None:
        self.take(self.machine.start(0))
        while self.finish is None:
            assert self.wire or self.request, "nothing is awaited, yet no end"
            self.now_ns += self.draw.draw(st.integers(0, 3))
            if self.request and (not self.live() or self.choose(True, False)):
                self.answer_draft()
            else:
                self.answer_frame()
            if self.void and self.choose(True, False, False):
                late = Draft((EOS,), "ngram", 1)
                assert self.machine.on_draft(self.void.pop(), late, self.now_ns) == []

    def live(self) -> bool:
        return any(frame.epoch == self.machine.epoch for frame in self.wire)

    def answer_frame(self) -> None:
        frame = self.wire.popleft()
        end = frame.start + len(frame.ids)
        if frame.epoch < self.machine.epoch:
            if self.choose(True, False):
                return  # a stage dropped it
            ids = [EOS] * (end - frame.answer_from)
        else:
            ids = [self.text.token(at) for at in range(frame.answer_from + 1, end + 1)]
        arrival = Arrival(self.now_ns)
        self.take(self.machine.on_reply(frame.epoch, frame.start, ids, arrival))

    def answer_draft(self) -> None:
        request, self.request = self.request, None
        asked = self.draw.draw(st.integers(0, request.max_len))
        start = self.machine.frontier + len(request.speculative)
        right = [self.text.token(at) for at in range(start, start + asked)]
        tokens = tuple(token if self.choose(True, True, False) else EOS for token in right)
        draft = Draft(tokens, "ngram", 3) if tokens else NO_DRAFT
        self.take(self.machine.on_draft(request.request_id, draft, self.now_ns))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.finish is None, "an action after the end"
            match action:
                case SendFrame():
                    self.wire.append(action)
                case CommitTokens(ids):
                    assert ids
                    self.committed.extend(ids)
                case RequestDraft():
                    assert self.request is None and action.max_len > 0
                    self.request = action
                case CancelDraft(request_id):
                    assert self.request is not None and self.request.request_id == request_id
                    self.request = None
                    self.void.append(request_id)
                case Finish():
                    self.finish = action


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Text, RoundLimits, ScriptedPolicy]:
    prompt_len = draw(st.integers(1, 9))
    max_new = draw(st.integers(1, 30))
    eos_at = draw(st.none() | st.integers(0, 30))
    limits = make_limits(
        max_new,
        draw(st.integers(1, 5)),
        prefill_chunk=draw(st.integers(1, 12)),
        prefill_depth=draw(st.integers(1, 3)),
    )
    few = st.lists(st.integers(0, 6), min_size=1, max_size=5)
    policy = ScriptedPolicy(draw(few), draw(st.none() | few))
    return make_text(prompt_len, max_new, eos_at), limits, policy


@settings(max_examples=300)
@given(job=jobs(), draw=st.data())
def test_any_weather_gives_the_targets_text(
    job: tuple[Text, RoundLimits, ScriptedPolicy], draw: st.DataObject
) -> None:
    """Catches output that depends on delays, drafts, cancelled requests or lost stale replies."""
    text, limits, policy = job
    machine = RoundMachine(text.prompt, limits, policy)
    storm = Storm(text, machine, draw)
    storm.run()
    assert storm.committed == machine.output_ids == list(text.output)
    records = machine.records()
    rounds = [record for record in records if record.outcome in ROUNDS]
    assert sum(record.committed_len for record in rounds) == len(text.output) - 1
    for record in records:
        depth = limits.prefill_depth if record.outcome == "prefill" else limits.depth
        assert 1 <= record.in_flight <= depth
        assert record.accepted_len <= record.draft_len <= record.sent_len
        assert 0 <= record.tested_len - record.accepted_len <= 1
        assert record.tested_len <= record.draft_len
    for before, after in pairwise(records):
        assert before.epoch <= after.epoch and before.sent_ns <= after.sent_ns
        if before.epoch == after.epoch:
            assert after.start == before.start + before.positions_len


@settings(max_examples=100)
@given(job=jobs(), draw=st.data())
def test_each_answered_frame_is_measured_once(
    job: tuple[Text, RoundLimits, ScriptedPolicy], draw: st.DataObject
) -> None:
    """Catches frames whose times are learned twice or never: stale ones slow others too. What is
    answered after the end, of a frame that was given up, is measured as well."""
    text, limits, policy = job
    measured: list[tuple[FrameRecord, int]] = []
    machine = RoundMachine(
        text.prompt, limits, policy, measure=lambda *times: measured.append(times)
    )
    Storm(text, machine, draw).run()
    records = machine.records()
    answered = {(r.epoch, r.start) for r in records if r.received_ns is not None}
    assert sorted((r.epoch, r.start) for r, _ in measured) == sorted(answered)
    assert all(0 <= company < len(records) for _, company in measured)


def test_company_is_who_was_on_the_ring_at_the_same_time() -> None:
    """Catches a frame that counts itself, one that was gone, and followers that are forgotten."""
    measured: list[int] = []
    machine = RoundMachine(
        (1, 3),
        make_limits(20, 2),
        ScriptedPolicy([2]),
        measure=lambda record, company: measured.append(company),
    )
    machine.start(0)
    request = request_in(machine.on_reply(0, 0, [200], Arrival(10)))
    request = request_in(drafted(machine, request, 201, 202, now_ns=11))
    drafted(machine, request, 203, 204, now_ns=12)
    machine.on_reply(0, 2, [201, 202, 203], Arrival(30))
    assert measured == [0, 1]


@settings(max_examples=150)
@given(job=jobs(), draw=st.data(), lost_after=st.integers(0, 40))
def test_a_job_goes_on_elsewhere_from_what_was_committed(
    job: tuple[Text, RoundLimits, ScriptedPolicy], draw: st.DataObject, lost_after: int
) -> None:
    """Catches a coordinator or ring that is lost at any moment and cannot be followed: a machine
    whose prompt is what was committed gives the rest of the very same text."""
    text, limits, policy = job
    storm = Storm(text, RoundMachine(text.prompt, limits, policy), draw)
    storm.take(storm.machine.start(0))
    for _ in range(lost_after):
        if storm.finish is not None or not storm.wire:
            break
        if storm.request and (not storm.live() or storm.choose(True, False)):
            storm.answer_draft()
        else:
            storm.answer_frame()
    storm.machine.abandon()
    assert len(storm.machine.flight) == 0 and storm.machine.next_deadline_ns() is None
    committed = storm.machine.output_ids
    if storm.finish is not None:
        assert committed == list(text.output)
        return
    rest = replace(limits, max_new_tokens=limits.max_new_tokens - len(committed))
    later = Text((*text.prompt, *committed), text.output[len(committed) :])
    follower = Storm(later, RoundMachine(later.prompt, rest, policy), draw)
    follower.run()
    assert committed + follower.committed == list(text.output)


@settings(max_examples=150)
@given(job=jobs(), draw=st.data())
def test_policy_sees_every_round_once_and_nothing_else(
    job: tuple[Text, RoundLimits, ScriptedPolicy], draw: st.DataObject
) -> None:
    """Catches a stale or prefill frame that feeds the policy, and a round it never hears of."""
    text, limits, policy = job
    machine = RoundMachine(text.prompt, limits, policy)
    Storm(text, machine, draw).run()
    rounds = [record for record in machine.records() if record.outcome in ROUNDS]
    told = [(r.epoch, r.start, r.outcome, r.accepted_len, r.tested_len) for r in policy.observed]
    assert told == [(r.epoch, r.start, r.outcome, r.accepted_len, r.tested_len) for r in rounds]


def machine_at_decode(
    max_new: int = 20, depth: int = 2, lengths: tuple[int, ...] = (2,)
) -> tuple[RoundMachine, list[Action]]:
    """Prompt of 2, the first token (200, position 2) committed at time 0."""
    machine = RoundMachine((1, 3), make_limits(max_new, depth), ScriptedPolicy(list(lengths)))
    machine.start(0)
    return machine, machine.on_reply(0, 0, [200], Arrival(0))


def request_in(actions: list[Action]) -> RequestDraft:
    (request,) = [action for action in actions if isinstance(action, RequestDraft)]
    return request


def drafted(machine: RoundMachine, request: RequestDraft, *ids: int, now_ns: int = 0) -> list:
    draft = Draft(ids, "ngram", 3) if ids else NO_DRAFT
    return machine.on_draft(request.request_id, draft, now_ns)


def test_bonus_token_voids_the_draft_that_wanted_its_place() -> None:
    """Catches a draft that lands on a position where a committed token stands by now."""
    machine, actions = machine_at_decode()
    actions = drafted(machine, request_in(actions), 201, 202)  # start 2: [200 201 202]
    outstanding = request_in(actions)  # for position 5
    assert outstanding.speculative == (201, 202)
    actions = machine.on_reply(0, 2, [201, 202, 203], Arrival(1))  # 203 is position 5
    assert CancelDraft(outstanding.request_id) in actions
    assert request_in(actions).speculative == ()
    assert drafted(machine, outstanding, 7, 7) == []


def test_change_of_wanted_length_cancels_the_request() -> None:
    """Catches a policy change that leaves the old request standing (DESIGN section 6)."""
    machine, actions = machine_at_decode(depth=3)
    first = drafted(machine, request_in(actions), 201, 202)
    second = drafted(machine, request_in(first), 203, 204)
    outstanding = request_in(second)
    machine._policy.lengths = [5]
    actions = machine.on_reply(0, 2, [201, 202, 203], Arrival(1))
    assert CancelDraft(outstanding.request_id) in actions
    assert request_in(actions).max_len == 5


def test_divergence_voids_the_request() -> None:
    """Catches a draft built on a refuted past that is sent in the new epoch."""
    machine, actions = machine_at_decode()
    outstanding = request_in(drafted(machine, request_in(actions), 201, 9))
    actions = machine.on_reply(0, 2, [201, 202, 203], Arrival(1))
    assert CancelDraft(outstanding.request_id) in actions
    assert drafted(machine, outstanding, 7, 7) == []
    assert machine.output_ids == [200, 201, 202]


def test_failed_drafter_leaves_plain_decoding() -> None:
    """Catches a job that stalls, or asks for ever, when the drafter has nothing."""
    machine, actions = machine_at_decode(max_new=4)
    for position in range(2, 5):
        actions = drafted(machine, request_in(actions))
        assert actions == [SendFrame(0, position, (198 + position,), position)]
        actions = machine.on_reply(0, position, [199 + position], Arrival(position))
        if position == 3:  # one output position is left: nothing to draft, sent at once
            assert actions[1:] == [SendFrame(0, 4, (202,), 4)]
            actions = machine.on_reply(0, 4, [203], Arrival(4))
            break
    assert actions[-1] == Finish("length")


def test_too_long_a_draft_is_our_own_fault() -> None:
    """Catches a drafter that returns more than asked, which would overrun the output limit."""
    machine, actions = machine_at_decode()
    with pytest.raises(LocalProtocolError, match="asked for 2"):
        drafted(machine, request_in(actions), 1, 2, 3)


@pytest.mark.parametrize(
    ("epoch", "start", "num_ids"),
    [
        (0, 3, 3),  # no frame starts there
        (0, 5, 2),  # out of order: the next but one
        (0, 2, 2),  # too few ids
        (0, 2, 4),  # too many
        (0, 2, 0),
        (1, 2, 3),  # an epoch that never was
        (0, 0, 1),  # answered before
        (-1, 2, 3),
    ],
)
def test_wrong_replies_are_protocol_errors(epoch: int, start: int, num_ids: int) -> None:
    """Catches a reply that is applied to the wrong frame or position."""
    machine, actions = machine_at_decode()
    actions = drafted(machine, request_in(actions), 201, 202)
    drafted(machine, request_in(actions), 203, 204)
    before = machine.output_ids
    with pytest.raises(RemoteProtocolError):
        machine.on_reply(epoch, start, [201] * num_ids, Arrival(1))
    assert machine.output_ids == before


def test_stale_reply_of_a_frame_never_sent_or_answered_twice() -> None:
    """Catches stale replies that are swallowed without being matched to a frame."""
    machine, actions = machine_at_decode(depth=2)
    actions = drafted(machine, request_in(actions), 9, 9)
    drafted(machine, request_in(actions), 9, 9)
    machine.on_reply(0, 2, [201, 202, 203], Arrival(1))  # diverges; start 5 is stale
    with pytest.raises(RemoteProtocolError):
        machine.on_reply(0, 4, [1, 1], Arrival(2))
    assert machine.on_reply(0, 5, [1, 1], Arrival(2)) == []
    with pytest.raises(RemoteProtocolError):
        machine.on_reply(0, 5, [1, 1], Arrival(3))
    assert machine.flight.stale_replies == 1


def test_decode_deadline_counts_the_oldest_frame_of_this_epoch() -> None:
    """Catches a deadline that stale replies push back, or that a flushed frame keeps running."""
    machine, actions = machine_at_decode()
    actions = drafted(machine, request_in(actions), 9, 9, now_ns=100)
    drafted(machine, request_in(actions), 9, 9, now_ns=200)
    assert machine.next_deadline_ns() == 1_000_100
    machine.on_timer(1_000_099)
    with pytest.raises(JobError, match="epoch 0 start 2") as caught:
        machine.on_timer(1_000_100)
    assert caught.value.code == "reply_timeout"
    actions = machine.on_reply(0, 2, [201, 202, 203], Arrival(900_000))
    drafted(machine, request_in(actions), 202, now_ns=950_000)
    assert machine.next_deadline_ns() == 1_950_000
    machine.on_reply(0, 5, [1, 1], Arrival(1_500_000))  # stale: no restart
    assert machine.next_deadline_ns() == 1_950_000
    with pytest.raises(JobError, match="epoch 1 start 3"):
        machine.on_timer(1_950_000)


def test_prefill_deadline_covers_the_pass_as_a_whole() -> None:
    """Catches a prefill deadline that each chunk restarts, or none at all."""
    limits = make_limits(4, 1, prefill_chunk=1, prefill_depth=1)
    machine = RoundMachine((1, 2, 3), limits, FixedK(0))
    machine.start(50)
    machine.on_reply(0, 0, [], Arrival(9_000_000))
    machine.on_timer(10_000_049)
    with pytest.raises(JobError):
        machine.on_timer(10_000_050)


def test_nothing_is_awaited_after_the_end() -> None:
    """Catches a finished job that still times out because of stale frames."""
    machine, actions = machine_at_decode(max_new=3)
    actions = drafted(machine, request_in(actions), 201)
    assert machine.on_reply(0, 2, [201, 202], Arrival(1))[-1] == Finish("length")
    assert machine.next_deadline_ns() is None
    machine.on_timer(10**15)


def test_abandoned_job_keeps_valid_records() -> None:
    """Catches a failed job whose receipt cannot be written because frames have no outcome."""
    machine, actions = machine_at_decode()
    drafted(machine, request_in(actions), 201, 202)
    machine.abandon()
    assert [record.outcome for record in machine.records()] == ["prefill", "stale"]
    assert machine.next_deadline_ns() is None


def test_reply_after_abandoning_is_counted_and_dropped() -> None:
    """Catches an honest reply, still on its way when a job failed, that is taken for a broken
    protocol: one job's error would cost the ring (DESIGN section 12)."""
    machine, actions = machine_at_decode()
    request = request_in(drafted(machine, request_in(actions), 201, 202))
    machine.abandon()
    assert machine.on_reply(0, 2, [201, 202, 203], Arrival(1)) == []
    assert machine.flight.stale_replies == 1
    assert machine.output_ids == [200]
    assert drafted(machine, request, 204) == [], "a frame of an abandoned job"


@pytest.mark.parametrize(
    ("prompt_len", "chunk", "in_flight", "spans"),
    [
        (3, 5, 2, [(0, 3)]),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (5, 6)]),
        (11, 4, 1, [(0, 4), (4, 8), (8, 11)]),
        (12, 4, 8, [(0, 4), (4, 8), (8, 12)]),
        (1, 1, 1, [(0, 1)]),
    ],
)
def test_prefill_chunks(
    prompt_len: int, chunk: int, in_flight: int, spans: list[tuple[int, int]]
) -> None:
    """Catches chunks that overlap or gap, too many in flight, a first token asked twice."""
    limits = make_limits(4, 1, prefill_chunk=chunk, prefill_depth=in_flight)
    machine = RoundMachine(tuple(range(prompt_len)), limits, FixedK(0))
    waiting = deque(machine.start(0))
    seen = []
    while waiting:
        assert len(waiting) <= in_flight
        frame = waiting.popleft()
        end = frame.start + len(frame.ids)
        seen.append((frame.start, end))
        last = end == prompt_len
        assert frame.ids == tuple(range(frame.start, end)) and frame.epoch == 0
        assert frame.answer_from == (end - 1 if last else end)
        actions = machine.on_reply(0, frame.start, [77] if last else [], Arrival(1))
        assert last or not [action for action in actions if isinstance(action, CommitTokens)]
        waiting += [] if last else actions
    assert seen == spans
    assert machine.output_ids == [77]


def test_one_token_job_ends_with_its_prefill() -> None:
    """Catches a decode frame or a draft request behind the last token."""
    _, actions = machine_at_decode(max_new=1)
    assert actions == [CommitTokens((200,)), Finish("length")]


def test_eos_as_first_token() -> None:
    """Catches EOS that is only looked for in decoding; EOS is an output id."""
    machine = RoundMachine((1, 3), make_limits(9, 2), FixedK(2))
    machine.start(0)
    assert machine.on_reply(0, 0, [EOS], Arrival(1)) == [CommitTokens((EOS,)), Finish("eos")]


def test_stop_check_cuts_inside_an_accepted_draft() -> None:
    """Catches tokens behind a stop string that are committed because their draft was right."""
    limits = make_limits(20, 2)
    machine = RoundMachine((1, 3), limits, FixedK(3), lambda out: out[-1] == 202)
    machine.start(0)
    request = request_in(machine.on_reply(0, 0, [200], Arrival(0)))
    drafted(machine, request, 201, 202, 203)
    actions = machine.on_reply(0, 2, [201, 202, 203, 204], Arrival(1))
    assert actions[0] == CommitTokens((201, 202)) and actions[-1] == Finish("stop")
    record = machine.records()[1]
    assert (record.sent_len, record.draft_len, record.accepted_len, record.tested_len) == (
        3,
        2,
        2,
        2,
    )


@pytest.mark.parametrize("bad", ["prompt", "max_new", "depth"])
def test_impossible_jobs_are_refused(bad: str) -> None:
    """Catches a job that would never end or never begin."""
    limits = make_limits(0 if bad == "max_new" else 4, 0 if bad == "depth" else 1)
    with pytest.raises(LocalProtocolError):
        RoundMachine(() if bad == "prompt" else (1,), limits, FixedK(0))
