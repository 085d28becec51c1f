"""The worked example of DESIGN section 5, line by line.

Prompt of 10 tokens; `a` is committed at position 10 by the prefill; truth after it: b c d X p q r…;
the drafter believes b c d e f g h i j until it sees X.
"""

from __future__ import annotations

import pytest

from engine.coordinator.policy import FixedK
from engine.coordinator.records import Action, Arrival, CommitTokens, RequestDraft, SendFrame
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import Draft
from engine.errors import RemoteProtocolError
from tests.coordinator.reference_rounds import make_limits

PROMPT = tuple(range(10))
BELIEF = "bcdefghij"
LOOP_NS = 1000


def ids_of(letters: str) -> tuple[int, ...]:
    return tuple(ord(letter) for letter in letters)


class Scene:
    """The machine with a drafter that reads from a script."""

    def __init__(self) -> None:
        limits = make_limits(64, 3)
        self.machine = RoundMachine(PROMPT, limits, FixedK(3))
        self.sends: list[SendFrame] = []
        self.commits: list[int] = []
        self.believes = BELIEF

    def carry_out(self, actions: list[Action], now_ns: int) -> None:
        for action in actions:
            match action:
                case SendFrame():
                    self.sends.append(action)
                case CommitTokens(ids):
                    self.commits.extend(ids)
                case RequestDraft(request_id, speculative, max_len):
                    said = self.believes[len(speculative) : len(speculative) + max_len]
                    draft = Draft(ids_of(said), "ngram", 4)
                    self.carry_out(self.machine.on_draft(request_id, draft, now_ns), now_ns)

    def begin(self) -> None:
        self.carry_out(self.machine.start(0), 0)
        self.carry_out(self.machine.on_reply(0, 0, ids_of("a"), Arrival(0)), 0)

    def reply_to_f1(self) -> None:
        self.believes = "pqrstuvwxyz"
        actions = self.machine.on_reply(0, 10, ids_of("bcdX"), Arrival(LOOP_NS))
        self.carry_out(actions, LOOP_NS)


def test_line_0_three_frames_fill_the_pipe() -> None:
    """Catches a wrong first frame, a frame that repeats a position, a depth not kept."""
    scene = Scene()
    scene.begin()
    assert scene.sends == [
        SendFrame(0, 0, PROMPT, 9),
        SendFrame(0, 10, ids_of("abcd"), 10),
        SendFrame(0, 14, ids_of("efg"), 14),
        SendFrame(0, 17, ids_of("hij"), 17),
    ]
    assert (scene.machine.frontier, len(scene.machine.flight)) == (11, 3)


def test_line_t_reply_commits_refutes_and_flushes() -> None:
    """Catches a correction applied to the wrong frame, or a divergence without a new epoch."""
    scene = Scene()
    scene.begin()
    scene.reply_to_f1()
    assert scene.commits == list(ids_of("abcdX"))
    assert (scene.machine.frontier, scene.machine.epoch) == (15, 1)
    records = [frame.record() for frame in scene.machine.flight.frames[1:4]]
    rows = [
        (row.outcome, row.sent_len, row.accepted_len, row.tested_len, row.committed_len)
        for row in records
    ]
    assert rows == [("applied", 3, 3, 3, 4), ("refuted", 3, 0, 1, 0), ("stale", 3, 0, 0, 0)]


def test_line_t_next_frames_start_at_the_corrected_token() -> None:
    """Catches a new epoch that starts one position off, or drafts from the refuted past."""
    scene = Scene()
    scene.begin()
    scene.reply_to_f1()
    assert scene.sends[4:6] == [
        SendFrame(1, 14, ids_of("Xpqr"), 14),
        SendFrame(1, 18, ids_of("stu"), 18),
    ]


def test_line_later_stale_replies_are_counted_and_dropped() -> None:
    """Catches a stale reply that commits, and one that is answered twice unnoticed."""
    scene = Scene()
    scene.begin()
    scene.reply_to_f1()
    for start, said in ((14, "mno"), (17, "mno")):
        assert scene.machine.on_reply(0, start, ids_of(said), Arrival(LOOP_NS + start)) == []
    assert scene.machine.flight.stale_replies == 2
    assert scene.commits == list(ids_of("abcdX"))
    with pytest.raises(RemoteProtocolError):
        scene.machine.on_reply(0, 14, ids_of("mno"), Arrival(9999))
