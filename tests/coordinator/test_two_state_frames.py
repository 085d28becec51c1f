"""Two-state against the published rule, frame by frame and byte by byte."""

from __future__ import annotations

import random
from collections import deque

import pytest

from engine.coordinator.policies import make_policy
from engine.coordinator.policy import DraftPolicy, FixedK
from engine.coordinator.records import (
    Action,
    Arrival,
    CancelDraft,
    FrameRecord,
    RequestDraft,
    SendFrame,
)
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import NO_DRAFT, Draft
from engine.transport.connection import Connection
from engine.transport.message import Verify
from tests.coordinator.reference_rounds import EOS, make_limits

NUM_DECODES = 180
WRONG = 7


class Decode:
    """One random job; drafts may come late, so that replies overtake them."""

    def __init__(self, seed: int, policy: DraftPolicy) -> None:
        rng = random.Random(seed)
        self.max_new = rng.randrange(2, 120)
        self.truth = [rng.randrange(10, 50) for _ in range(self.max_new)]
        if rng.random() < 0.3:
            self.truth[rng.randrange(self.max_new)] = EOS
        rate = rng.choice((0.5, 0.85, 0.97))
        self.right = [rng.random() < rate for _ in range(self.max_new)]
        self.known = [rng.random() < 0.9 for _ in range(self.max_new)]
        self.prompt = tuple(range(100, 100 + rng.randrange(1, 20)))
        self.late_rate = rng.choice((0.0, 0.3))
        self.machine = RoundMachine(self.prompt, make_limits(self.max_new, 1 + seed % 4), policy)
        self.sends: list[SendFrame] = []
        self.wire: deque[SendFrame] = deque()
        self.asked: deque[tuple[RequestDraft, int]] = deque()  # and the output index it is for
        self.now_ns = 0
        self.rng = rng

    def run(self) -> Decode:
        self._take(self.machine.start(self.now_ns))
        while not self.machine.finished:
            self.now_ns += 1
            late = self.wire and self.rng.random() < self.late_rate
            if self.asked and not late:
                self._draft(*self.asked.popleft())
            else:
                self._reply(self.wire.popleft())
        return self

    def _token(self, position: int) -> int:
        idx = position - len(self.prompt)
        return self.truth[idx] if idx < self.max_new else 0

    def _draft(self, request: RequestDraft, at: int) -> None:
        ids = tuple(
            self.truth[idx] if self.right[idx] else WRONG for idx in range(at, at + request.max_len)
        )
        draft = Draft(ids, "ngram", 3) if self.known[at] else NO_DRAFT
        self._take(self.machine.on_draft(request.request_id, draft, self.now_ns))

    def _reply(self, frame: SendFrame) -> None:
        if frame.epoch != self.machine.epoch:
            return
        positions = range(frame.answer_from + 1, frame.start + len(frame.ids) + 1)
        ids = [self._token(position) for position in positions]
        arrival = Arrival(self.now_ns)
        self._take(self.machine.on_reply(frame.epoch, frame.start, ids, arrival))

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendFrame):
                self.sends.append(action)
                self.wire.append(action)
            elif isinstance(action, RequestDraft):
                at = self.machine.frontier + len(action.speculative) - len(self.prompt)
                self.asked.append((action, at))
            elif isinstance(action, CancelDraft):
                assert self.asked.pop()[0].request_id == action.request_id


def wire_bytes(sends: list[SendFrame]) -> bytes:
    """What the coordinator's first link would carry."""
    connection = Connection()
    frames = [
        connection.send(
            Verify(
                job=1,
                epoch=send.epoch,
                start=send.start,
                positions_len=len(send.ids),
                answer_from=send.answer_from,
                ids=send.ids,
            )
        )
        for send in sends
    ]
    return b"".join(bytes(frame) for frame in frames)


@pytest.mark.parametrize("draft_len", [1, 4, 8, 16])
@pytest.mark.parametrize("up", [1, 6, 64])
def test_off_means_the_frames_of_fixed_k(draft_len: int, up: int) -> None:
    """Catches a two-state that differs from fixed-k in more than its second length."""
    for seed in range(NUM_DECODES // 12):
        fixed = Decode(seed, FixedK(draft_len)).run()
        policy = make_policy("two-state", draft_len, {"high": draft_len, "up": up})
        two_state = Decode(seed, policy).run()
        assert two_state.sends == fixed.sends, seed
        assert wire_bytes(two_state.sends) == wire_bytes(fixed.sends), seed
        assert two_state.machine.records() == fixed.machine.records(), seed


def test_on_means_other_frames() -> None:
    """Catches the test above comparing nothing: with a second length, bytes differ."""
    differing = 0
    for seed in range(20):
        fixed = Decode(seed, FixedK(4)).run()
        two_state = Decode(seed, make_policy("two-state", 4, {"high": 9})).run()
        differing += wire_bytes(fixed.sends) != wire_bytes(two_state.sends)
    assert differing > 10


def decided_ns(record: FrameRecord, records: list[FrameRecord]) -> int:
    """When a round became known: with its own reply or, if refuted or closed, the one before."""
    if record.outcome == "applied":
        assert record.received_ns is not None
        return record.received_ns
    (before,) = [
        other
        for other in records
        if other.epoch == record.epoch and other.start + other.positions_len == record.start
    ]
    assert before.received_ns is not None
    return before.received_ns


def expected_len(history: list[FrameRecord], base: int, high: int, up: int) -> int:
    """The published rule: high after a frame that fully accepted or accepted at least `up`."""
    if not history:
        return base
    last = history[-1]
    full = last.draft_len > 0 and last.accepted_len == last.draft_len
    return high if full or last.accepted_len >= up else base


def test_every_length_follows_from_the_rounds_seen_before() -> None:
    """Catches a length decided by a stale frame, by a round too late or by one too early.

    180 random decodes at depths 1–4, late drafts included; the rule sees the records alone.
    """
    lengths: set[str] = set()
    outcomes: set[str] = set()
    for seed in range(NUM_DECODES):
        rng = random.Random(-seed)
        base, high, up = (8, 16, 6) if seed % 2 else (rng.randrange(1, 9), rng.randrange(1, 20), 3)
        job = Decode(seed, make_policy("two-state", base, {"high": high, "up": up})).run()
        end = job.truth.index(EOS) + 1 if EOS in job.truth else job.max_new
        assert job.machine.output_ids == job.truth[:end], seed
        records = job.machine.records()
        rounds = [r for r in records if r.outcome in ("applied", "refuted", "closed")]
        outcomes |= {r.outcome for r in records}
        seen = sorted(rounds, key=lambda r: (decided_ns(r, records), r.epoch, r.start))
        for record in records:
            if not record.sent_len:
                continue
            history = [r for r in seen if decided_ns(r, records) <= record.sent_ns]
            wanted = expected_len(history, base, high, up)
            first_draft = record.start + record.positions_len - record.sent_len
            room = len(job.prompt) + job.max_new - 1 - first_draft
            assert record.sent_len == min(wanted, room), (seed, record)
            lengths.add("cut" if room < wanted else "high" if wanted == high else "base")
    assert lengths == {"base", "high", "cut"}, "the fuzz missed a state"
    assert outcomes == {"prefill", "applied", "refuted", "closed", "stale"}
