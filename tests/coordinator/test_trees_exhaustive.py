"""Every small tree, step by step against a reference that knows sets of runs and no nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from engine.coordinator.policy import FixedK
from engine.coordinator.records import (
    Action,
    Arrival,
    CommitTokens,
    FeedTaps,
    Finish,
    RequestDraft,
    SendFrame,
)
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import NO_DRAFT, Draft, DraftFate
from tests.coordinator.reference_rounds import EOS, Text, make_limits, make_text
from tests.coordinator.reference_trees import Expected, SlowTrees, all_shapes, runs_of

PROMPT_LEN = 2
MAX_NEW_TOKENS = 6
NUM_NODES = 4
FOLLOWING = ("nothing", "right chain", "wrong chain", "tree")


@dataclass(frozen=True, slots=True)
class Case:
    """One small job: a tree first, then something else that re-feeds its path."""

    max_new_tokens: int
    eos_at: int | None
    parents: tuple[int, ...]
    target: int  # the node that the text leads to; -1: the root
    following: str

    @property
    def text(self) -> Text:
        return make_text(PROMPT_LEN, self.max_new_tokens, self.eos_at)

    def drafts(self) -> list[Draft]:
        """The first tree, and what is drafted behind what it commits."""
        text = self.text
        first = tree_along(text, PROMPT_LEN + 1, self.parents, self.target)
        depth = 0
        at = self.target
        while at >= 0:
            depth, at = depth + 1, self.parents[at]
        later = PROMPT_LEN + 1 + depth + 1  # if nothing is cut
        if self.following == "nothing":
            return [first]
        if self.following == "tree":
            return [first, tree_along(text, later, (-1, 0, 0, -1), 2), first]
        ids = [text.token(at) for at in range(later, later + 2)]
        ids[1] = 999 if self.following == "wrong chain" else ids[1]
        return [first, Draft(tuple(ids), "eagle", 0)]


def tree_along(text: Text, start: int, parents: tuple[int, ...], target: int) -> Draft:
    """Tokens right on the way to `target`, each other one wrong in its own way; some are EOS."""
    ids = [900 + node for node in range(len(parents))]
    wrong_eos = next((node for node in range(len(parents)) if node != target), None)
    way = []
    at = target
    while at >= 0:
        way.append(at)
        at = parents[at]
    for depth, node in enumerate(reversed(way)):
        ids[node] = text.token(start + depth)
    if wrong_eos is not None and wrong_eos not in way:
        siblings = [node for node, parent in enumerate(parents) if parent == parents[wrong_eos]]
        if EOS not in [ids[node] for node in siblings] and not hits(text, start, parents, ids, EOS):
            ids[wrong_eos] = EOS
    return Draft(tuple(ids), "tree", 0, (), parents)


def hits(text: Text, start: int, parents: tuple[int, ...], ids: list[int], token: int) -> bool:
    """Whether the text has that token where the tree could follow it there."""
    return any(text.token(start + depth) == token for depth in range(len(parents) + 1))


def all_cases(following: str) -> Iterator[Case]:
    for max_new in range(1, MAX_NEW_TOKENS + 1):
        for eos_at in (*range(max_new), None):
            for num_nodes in range(1, NUM_NODES + 1):
                for parents in all_shapes(num_nodes):
                    for target in range(-1, num_nodes):
                        yield Case(max_new, eos_at, parents, target, following)


@dataclass(slots=True)
class Play:
    """The machine, one frame at a time; what is not drafted when idle is not drafted."""

    text: Text
    drafts: list[Draft]
    max_new_tokens: int
    depth: int
    machine: RoundMachine = field(init=False)
    wire: list[SendFrame] = field(default_factory=list)
    sent: list[SendFrame] = field(default_factory=list)
    committed: list[tuple[int, ...]] = field(default_factory=list)
    fed: set[int] = field(default_factory=set)
    fates: list[DraftFate] = field(default_factory=list)
    answered: SendFrame | None = None
    finish: Finish | None = None

    def __post_init__(self) -> None:
        limits = replace(make_limits(self.max_new_tokens, self.depth), wants_taps=True)
        self.machine = RoundMachine(
            self.text.prompt, limits, FixedK(8), tell_fate=self.fates.append
        )

    def run(self) -> None:
        self.take(self.machine.start(0))
        while self.finish is None:
            (frame,) = self.wire
            self.wire.clear()
            self.answered = frame
            ids = answers(self.text, frame)
            self.take(self.machine.on_reply(frame.epoch, frame.start, ids, Arrival(1)))
        assert not self.wire

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendFrame():
                    assert len(self.machine.flight) == 1
                    self.wire.append(action)
                    self.sent.append(action)
                case CommitTokens(ids):
                    self.committed.append(ids)
                case FeedTaps():
                    self.fed |= check_taps(self.text, self.answered, action, self.machine.frontier)
                case RequestDraft():
                    self.answer(action)
                case Finish():
                    self.finish = action

    def answer(self, request: RequestDraft) -> None:
        assert request.is_idle == (not len(self.machine.flight))
        assert self.fed == set(range(self.machine.frontier - 1)), "asked before it was fed"
        draft = self.drafts.pop(0) if request.is_idle and self.drafts else NO_DRAFT
        if not draft.parents:
            draft = replace(draft, ids=draft.ids[: request.max_len])
        self.take(self.machine.on_draft(request.request_id, draft, 1))


def rows_in(frame: SendFrame) -> list[tuple[int, int]]:
    """(position, token) of each row: what a tap of it says of where it comes from."""
    trunk = len(frame.ids) - len(frame.parents)
    rows = [(frame.start + idx, token) for idx, token in enumerate(frame.ids[:trunk])]
    nodes = frame.ids[trunk:]
    runs = runs_of(nodes, frame.parents)
    return rows + [(rows[-1][0] + len(run), token) for run, token in zip(runs, nodes, strict=True)]


def answers(text: Text, frame: SendFrame) -> list[int]:
    """The target's tokens; behind a wrong node it says what ends output, as poison."""
    trunk = len(frame.ids) - len(frame.parents)
    root = frame.start + trunk - 1
    ids = [text.token(at) for at in range(frame.answer_from + 1, root + 2)]
    for run in runs_of(frame.ids[trunk:], frame.parents):
        places = range(root + 1, root + 1 + len(run))
        right = run == tuple(text.token(at) for at in places)
        ids.append(text.token(root + len(run) + 1) if right else EOS)
    return ids


def check_taps(text: Text, frame: SendFrame | None, feed: FeedTaps, frontier: int) -> set[int]:
    """Each row is of its position and of the committed token there; returns the positions."""
    assert frame is not None and feed.positions_len == len(frame.ids) and feed.rows
    rows = rows_in(frame)
    for idx, row in enumerate(feed.rows):
        position, token = rows[row]
        assert position == feed.start + idx <= frontier - 2
        assert token == text.token(position)
    return set(range(feed.start, feed.start + len(feed.rows)))


def check_case(case: Case, depth: int) -> list[Expected]:
    running = Play(case.text, case.drafts(), case.max_new_tokens, depth)
    running.run()
    expected = SlowTrees(case.text, case.max_new_tokens).trace(case.drafts())
    assert running.machine.output_ids == list(case.text.output)
    assert running.sent[1:] == [found.send for found in expected]
    assert running.committed[1:] == [found.committed for found in expected]
    records = running.machine.records()[1:]
    told = list(running.fates)
    for record, found in zip(records, expected, strict=True):
        counts = (record.sent_len, record.draft_len, record.accepted_len, record.tested_len)
        wanted = (found.sent_len, found.draft_len, found.accepted_len, found.tested_len)
        assert counts == wanted
        assert record.committed_len == len(found.committed)
        assert record.positions_len == len(found.send.ids)
        assert record.parents == found.send.parents
        assert record.outcome == "applied" and record.unverified_len == 0
        assert record.source == "tree" if record.parents else record.source != "tree"
        if found.sent_len:
            fate = told.pop(0)
            assert (fate.source, fate.sent_len) == (record.source, record.sent_len)
            assert (fate.accepted_len, fate.tested_len) == (wanted[2], wanted[3])
    assert not told
    return expected


@pytest.mark.parametrize("following", FOLLOWING)
def test_every_small_tree(following: str) -> None:
    """Catches a wrong path, cut, anchor, answer, epoch, count or row of taps that a tree of at most
    four nodes can show, in a job of at most six tokens."""
    num_cases = 0
    accepted: set[int] = set()
    refed = 0
    for case in all_cases(following):
        try:
            expected = check_case(case, depth=1 + num_cases % 3)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error
        num_cases += 1
        accepted |= {found.accepted_len for found in expected if found.send.parents}
        refed += any(found.send.answer_from > found.send.start for found in expected)
    assert num_cases == 27 * (1 * 2 + 2 * 3 + 5 * 4 + 14 * 5)
    assert accepted == set(range(NUM_NODES + 1)), "some path was never taken"
    assert refed > 500, "hardly a path was carried anew"


@pytest.mark.parametrize("depth", [1, 4])
def test_a_tree_of_one_branch_is_the_chain(depth: int) -> None:
    """Catches a tree that commits, ends or counts otherwise than the chain of the same tokens."""
    for max_new in range(1, 8):
        for eos_at in (*range(max_new), None):
            for wrong_at in range(5):
                text = make_text(PROMPT_LEN, max_new, eos_at)
                ids = [text.token(PROMPT_LEN + 1 + idx) for idx in range(4)]
                ids[wrong_at:] = [999] * len(ids[wrong_at:])
                tree = Draft(tuple(ids), "tree", 0, (), (-1, 0, 1, 2))
                room = max(0, max_new - 2)
                chain = Draft(tuple(ids[:room]), "eagle", 0) if room else NO_DRAFT
                plays = [Play(text, [draft], max_new, depth) for draft in (tree, chain)]
                for running in plays:
                    running.run()
                assert plays[0].committed == plays[1].committed
                fates = [
                    [(r.accepted_len, r.tested_len) for r in p.machine.records()] for p in plays
                ]
                assert fates[0] == fates[1], (text, ids)
