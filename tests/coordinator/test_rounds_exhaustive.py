"""Every small job there is, checked step by step against a slow reference.

Small scope: every acceptance pattern, depth, draft length, place of EOS, output limit and several
ways for drafts to be late or short. A wrong rule of DESIGN section 5 shows in one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from engine.coordinator.policy import FixedK
from engine.coordinator.records import (
    Action,
    Arrival,
    CancelDraft,
    CommitTokens,
    Finish,
    FrameRecord,
    RequestDraft,
    SendFrame,
)
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import Draft
from tests.coordinator.reference_rounds import (
    EOS,
    SlowRounds,
    Text,
    expected_row,
    make_limits,
    make_text,
    row_of,
    send_of,
)

PROMPT_LEN = 2
WRONG = 999
MAX_NEW_TOKENS = 7
# What happens next when a reply and a draft could both come: a word, repeated. "d" is the
# synchronous drafter.
SCHEDULES = ("d", "r", "dr", "rd", "rrd", "rdr", "ddr")
SHORT = {  # how many of the asked tokens the drafter returns, by the position where it starts
    "all": lambda position, asked: asked,
    "one fewer": lambda position, asked: asked - 1,
    "none at even": lambda position, asked: asked * (position % 2),
    "one": lambda position, asked: 1,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One small job."""

    max_new_tokens: int
    eos_at: int | None
    wrong_bits: int  # bit j: the draft for output index j + 1 is wrong
    depth: int
    draft_len: int
    short: str
    schedule: str

    def propose(self, text: Text, position: int, asked: int) -> tuple[int, ...]:
        """The drafter: right or wrong by position; a wrong token is sometimes EOS."""
        tokens = []
        for at in range(position, position + SHORT[self.short](position, asked)):
            if self.wrong_bits >> (at - PROMPT_LEN - 1) & 1:
                tokens.append(EOS if at % 2 and text.token(at) != EOS else WRONG)
            else:
                tokens.append(text.token(at))
        return tuple(tokens)


def all_cases(depth: int) -> Iterator[Case]:
    """Every case of one depth; bits that no draft can reach are not varied."""
    for max_new in range(1, MAX_NEW_TOKENS + 1):
        for eos_at in (*range(max_new), None):
            # The last output position is never drafted, what follows EOS is never tested.
            num_bits = max(0, min(max_new - 2, max_new if eos_at is None else eos_at))
            for draft_len in range(4):
                shorts = list(SHORT)[: 4 if draft_len > 1 else 3 if draft_len else 1]
                for bits in range(2**num_bits if draft_len else 1):
                    for short in shorts:
                        for schedule in SCHEDULES if draft_len else SCHEDULES[:1]:
                            yield Case(max_new, eos_at, bits, depth, draft_len, short, schedule)


@dataclass(slots=True)
class Play:
    """One job driven to its end, machine and reference in lock step."""

    case: Case
    text: Text
    machine: RoundMachine
    slow: SlowRounds
    wire: deque[SendFrame] = field(default_factory=deque)  # FIFO, stale frames too
    request: RequestDraft | None = None
    context: list[int] = field(default_factory=list)  # output that the request builds on
    sent: list[SendFrame] = field(default_factory=list)  # decode frames
    committed: list[int] = field(default_factory=list)
    finish: Finish | None = None
    now_ns: int = 0

    def run(self) -> list[FrameRecord]:
        self.take(self.machine.start(0), [])
        (prefill,) = self.wire
        assert prefill == SendFrame(0, 0, self.text.prompt, PROMPT_LEN - 1)
        self.deliver_reply(prefill=True)
        step = 0
        while self.finish is None:
            assert self.request is not None or self.wire, "nothing is awaited, yet no end"
            wants_draft = self.case.schedule[step % len(self.case.schedule)] == "d"
            if self.request is not None and (wants_draft or not self.slow.waiting):
                self.deliver_draft()
            else:
                self.deliver_reply()
            step += 1
        while self.wire:
            self.deliver_reply()
        return self.machine.records()

    def deliver_reply(self, prefill: bool = False) -> None:
        frame = self.wire.popleft()
        stale = self.finish is not None or frame.epoch != self.machine.epoch
        before = len(self.slow.frames)
        first = frame.answer_from + 1
        end = frame.start + len(frame.ids)
        # A stale frame was computed on a wrong past: its ids are poison.
        ids = [EOS if stale else self.text.token(at) for at in range(first, end + 1)]
        self.now_ns += 10
        actions = self.machine.on_reply(frame.epoch, frame.start, ids, Arrival(self.now_ns))
        if stale:
            assert actions == [], "a stale reply did something"
            return
        if prefill:
            self.slow.after_prefill()
        else:
            self.slow.deliver_reply()
        self.take(actions, self.slow.frames[before:])

    def deliver_draft(self) -> None:
        assert self.request is not None
        request, before = self.request, len(self.slow.frames)
        self.request = None
        self.now_ns += 1
        drafted = self.case.propose(self.text, self.slow.request[0], request.max_len)
        self.slow.deliver_draft()
        draft = Draft(drafted, "ngram" if drafted else "none", 3)
        actions = self.machine.on_draft(request.request_id, draft, self.now_ns)
        self.take(actions, self.slow.frames[before:])

    def take(self, actions: list[Action], expected_frames: list) -> None:
        """Carry out the actions; they and the machine's state must be the reference's."""
        sends = [action for action in actions if isinstance(action, SendFrame)]
        self.wire.extend(sends)
        for action in actions:
            match action:
                case CommitTokens(ids):
                    self.committed.extend(ids)
                case RequestDraft():
                    assert self.request is None, "two requests open"
                    self.request = action
                    self.context = [*self.committed, *action.speculative]
                case CancelDraft(request_id):
                    assert self.request is not None and self.request.request_id == request_id
                    self.request = None
                case Finish():
                    self.finish = action
        if not self.slow.frontier:
            return  # still before the prefill's reply
        self.sent += sends
        assert sends == [send_of(frame) for frame in expected_frames]
        assert self.machine.epoch == self.slow.epoch
        assert (self.finish is not None) == self.slow.finished == self.machine.finished
        assert len(self.machine.flight) == len(self.slow.waiting) <= self.case.depth
        assert self.machine.output_ids == self.committed
        assert self.machine.frontier == self.slow.frontier
        assert (self.request is None) == (self.slow.request is None)
        if self.request is not None:
            position, asked = self.slow.request
            past = [
                self.text.token(at) if at < self.slow.frontier else self.slow.sent[at]
                for at in range(PROMPT_LEN, position)
            ]
            assert (self.context, self.request.max_len) == (past, asked)


def play(case: Case) -> tuple[Play, list[FrameRecord]]:
    text = make_text(PROMPT_LEN, case.max_new_tokens, case.eos_at)
    limits = make_limits(case.max_new_tokens, case.depth)
    machine = RoundMachine(text.prompt, limits, FixedK(case.draft_len))
    slow = SlowRounds(text, limits, case.draft_len, lambda at, asked: case.propose(text, at, asked))
    running = Play(case, text, machine, slow)
    return running, running.run()


def check_stream(running: Play) -> None:
    """Frames of an epoch are contiguous, and no position goes out twice in it."""
    next_start = {0: PROMPT_LEN}
    for frame in running.sent:
        assert frame.start == next_start.get(frame.epoch, frame.start)
        # A new epoch starts at the corrected token, which the epoch before had sent or implied.
        assert frame.start <= max(next_start.values())
        next_start[frame.epoch] = frame.start + len(frame.ids)


def check_records(running: Play, records: list[FrameRecord]) -> None:
    """Each record is what the acceptance pattern says, and the sums are the output's."""
    prefill, *decode = records
    assert (prefill.outcome, prefill.committed_len, prefill.sent_len) == ("prefill", 1, 0)
    assert len(decode) == len(running.slow.frames)
    for record, frame in zip(decode, running.slow.frames, strict=True):
        epoch = [other for other in running.slow.frames if other.epoch == frame.epoch]
        assert row_of(record) == expected_row(frame, epoch, running.text), (record, frame)
        assert (record.epoch, record.start) == (frame.epoch, frame.start)
        assert record.positions_len == len(frame.ids)
        assert record.in_flight == frame.in_flight <= running.case.depth
        assert record.received_ns is not None and record.received_ns > record.sent_ns
        if record.outcome == "stale":
            assert record.accepted_len == record.tested_len == record.committed_len == 0
            continue
        assert record.accepted_len <= record.draft_len <= record.sent_len
        assert record.tested_len - record.accepted_len in (0, 1)
        assert record.tested_len <= record.draft_len
    assert sum(record.committed_len for record in decode) == len(running.text.output) - 1


def check_case(case: Case) -> list[FrameRecord]:
    running, records = play(case)
    text = running.text
    assert running.committed == list(text.output)
    assert running.finish == Finish("eos" if text.output[-1] == EOS else "length")
    check_stream(running)
    check_records(running, records)
    stale = [record for record in records if record.outcome in ("stale", "refuted", "closed")]
    assert running.machine.flight.stale_replies == len(stale), "a dropped reply is not counted"
    return records


NUM_CASES = {1: 19_131, 2: 19_131, 3: 19_131}


@pytest.mark.parametrize("depth", NUM_CASES)
def test_every_small_job(depth: int) -> None:
    """Catches any departure from DESIGN section 5 that a job of at most seven tokens can show."""
    seen: set[tuple] = set()
    count = 0
    for case in all_cases(depth):
        try:
            records = check_case(case)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error
        seen |= {(record.outcome, record.draft_len < record.sent_len) for record in records}
        count += 1
    assert count == NUM_CASES[depth]
    expected = {("prefill", False), ("applied", False), ("applied", True)}
    if depth > 1:  # every outcome, cut and uncut, did occur
        expected |= {("stale", True), ("refuted", False), ("refuted", True)}
        expected |= {("closed", False), ("closed", True)}
    assert seen == expected


def test_stale_records_count_nothing() -> None:
    """Catches a stale frame that still claims k: no draft of it was decided (DESIGN section 5)."""
    for case in all_cases(depth=3):
        for record in play(case)[1]:
            if record.outcome == "stale":
                assert record.draft_len == 0, (case, record)
