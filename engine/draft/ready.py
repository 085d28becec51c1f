"""Drafts made ready while the coordinator waits for a reply.

What the next request will build on is mostly known before the reply comes: the tokens already sent
are accepted, and so is the token that the drafter expects behind them. So the draft behind them is
made ahead, longer than will be asked for, and a request that goes on along it is answered from it.
Guarantees: an answer is the very draft that the drafter would have given then (`Drafter.goes_on`);
a divergence makes it void. Must never know links.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.defaults import DRAFT_LEN_MAX
from engine.draft.drafter import NO_DRAFT, Draft, Drafter


class ReadyDrafts(Drafter):
    """A drafter with one draft prepared.

    Args:
        drafter: who drafts; from tokens alone, of which it is told.
        ahead_len: tokens to prepare; at least twice what is asked for at once.
    """

    def __init__(self, drafter: Drafter, ahead_len: int) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._ahead_len = ahead_len
        self._draft = NO_DRAFT
        self._path: list[int] = []  # speculative when prepared, then the draft
        self._since: list[int] = []  # committed since then
        self._behind_len = 0

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job."""
        self._forget()
        self._drafter.begin(prompt_ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""
        self._since += ids
        self._drafter.extend(ids)

    def prepare(self, speculative: Sequence[int]) -> None:
        """Make the draft behind committed + `speculative` ready, unless half of it is."""
        if not self._drafter.goes_on or 2 * len(self._remainder(speculative)) >= self._ahead_len:
            return
        draft = self._drafter.draft(speculative, self._ahead_len, False)
        self._forget()
        self._draft, self._path = draft, [*speculative, *draft.ids]
        self._behind_len = len(speculative)

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        """As the drafter's own, from what is ready if the text went on along it."""
        ready = self._remainder(speculative)
        if not 1 <= max_len <= len(ready):
            return self._drafter.draft(speculative, max_len, is_idle)
        followed_len = len(self._since) + len(speculative) - self._behind_len
        return Draft(
            tuple(ready[:max_len]),
            self._draft.source,
            self._draft.match_len + followed_len,
            self._draft.counts[followed_len:][:max_len],
        )

    def _remainder(self, speculative: Sequence[int]) -> list[int]:
        """What is ready behind committed + `speculative`; empty if the text left the path."""
        taken = [*self._since, *speculative]
        if not self._draft.ids or len(taken) < self._behind_len:
            return []
        return self._path[len(taken) :] if self._path[: len(taken)] == taken else []

    def _forget(self) -> None:
        self._draft, self._path, self._since, self._behind_len = NO_DRAFT, [], [], 0


def with_ready(drafter: Drafter) -> Drafter:
    """Have its drafts made ready ahead, if they go on along what the text takes up."""
    return ReadyDrafts(drafter, 2 * DRAFT_LEN_MAX) if drafter.goes_on else drafter
