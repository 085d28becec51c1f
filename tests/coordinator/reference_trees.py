"""Test only: what rounds of trees and chains must do, written down from the text's side.

A tree is the set of token runs that lead to its nodes. What a reply commits is read off the text:
the longest run that the tree holds, and the token behind it. Shares no code with the machine, which
walks nodes by index. One frame at a time: the drafter has nothing while one is under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.coordinator.records import SendFrame
from engine.draft.drafter import Draft
from tests.coordinator.reference_rounds import Text

Run = tuple[int, ...]


def all_shapes(num_nodes: int) -> Iterator[tuple[int, ...]]:
    """Parents of every ordered forest under the root, depth first."""
    if num_nodes == 0:
        yield ()
        return
    for shorter in all_shapes(num_nodes - 1):
        branch = [len(shorter) - 1] if shorter else [-1]  # who may have the next child
        while branch[-1] != -1:
            branch.append(shorter[branch[-1]])
        for parent in branch:
            yield (*shorter, parent)


def runs_of(ids: Sequence[int], parents: Sequence[int]) -> list[Run]:
    """The tokens from the root's child down to each node."""
    runs: list[Run] = []
    for token, parent in zip(ids, parents, strict=True):
        runs.append((*(runs[parent] if parent >= 0 else ()), token))
    return runs


@dataclass(frozen=True, slots=True)
class Expected:
    """One decode frame and what becomes of it."""

    send: SendFrame
    committed: Run
    sent_len: int
    draft_len: int
    accepted_len: int
    tested_len: int


@dataclass(slots=True)
class SlowTrees:
    """The whole trace of a job, from its text and the drafts it is given."""

    text: Text
    max_new_tokens: int
    epoch: int = 0
    unsent: int = field(init=False)  # first position to be sent
    frontier: int = field(init=False)

    def __post_init__(self) -> None:
        self.unsent = len(self.text.prompt)
        self.frontier = self.unsent + 1

    @property
    def end(self) -> int:
        return len(self.text.prompt) + len(self.text.output)

    @property
    def room(self) -> int:
        """Drafts that can be decided: the last output position is not one."""
        return len(self.text.prompt) + self.max_new_tokens - 1 - self.frontier

    def trace(self, drafts: Sequence[Draft]) -> list[Expected]:
        rounds = []
        waiting = list(drafts)
        while self.frontier < self.end:
            draft = waiting.pop(0) if waiting and self.room > 0 else Draft((), "none", 0)
            rounds.append(self.tree(draft) if draft.parents else self.chain(draft))
        return rounds

    def tokens(self, start: int, end: int) -> Run:
        return tuple(self.text.token(at) for at in range(start, end))

    def tree(self, draft: Draft) -> Expected:
        whole = runs_of(draft.ids, draft.parents)
        runs = [run for run in whole if len(run) <= self.room]
        assert len(set(runs)) == len(runs), "the reference knows no twins"
        ids = tuple(run[-1] for run in runs)
        parents = tuple(runs.index(run[:-1]) if len(run) > 1 else -1 for run in runs)
        left = self.end - self.frontier
        right = [run for run in runs if run == self.tokens(self.frontier, self.frontier + len(run))]
        accepted = min(left, max(map(len, right), default=0))
        taken = self.tokens(self.frontier, self.frontier + accepted)
        goes_on = any(run[:-1] == taken for run in runs) and accepted < left
        return self.note(draft, ids, parents, accepted, len(ids), goes_on, self.frontier)

    def chain(self, draft: Draft) -> Expected:
        ids = draft.ids[: self.room]
        left = self.end - self.frontier
        accepted = 0
        while accepted < min(len(ids), left) and ids[accepted] == self.text.token(
            self.frontier + accepted
        ):
            accepted += 1
        counted = min(len(ids), left)
        refuted = accepted < counted
        start_again = self.frontier + min(accepted + 1, left) - 1
        found = self.note(draft, ids, (), accepted, counted, refuted, start_again)
        self.epoch -= not refuted  # nothing was wrong: the epoch goes on
        return found

    def note(
        self,
        draft: Draft,
        ids: Run,
        parents: Run,
        accepted: int,
        counted: int,
        refuted: bool,
        start_again: int,
    ) -> Expected:
        """Write the round down and step behind it."""
        anchor = self.tokens(self.unsent, self.frontier)
        send = SendFrame(self.epoch, self.unsent, anchor + ids, self.frontier - 1, parents)
        committed = self.tokens(self.frontier, min(self.end, self.frontier + accepted + 1))
        self.epoch += 1
        self.unsent = start_again
        self.frontier += len(committed)
        return Expected(send, committed, len(ids), counted, accepted, accepted + refuted)
