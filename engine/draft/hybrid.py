"""Two sources in one drafter: n-grams that stream, and the head where text is new.

Guarantees: what is in flight is only ever followed by n-grams; the head is asked where nothing is,
and its draft goes out if the router finds it worth more. What was not sent is not counted. Never
knows what frames cost: that is the router's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from engine.draft.drafter import Draft, Drafter, DraftFate
from engine.draft.eagle import EagleDrafter
from engine.draft.tree import DraftTree


class Router(Protocol):
    """Chooses between the sources, and learns what they are worth."""

    def needs_head(self, ngram: Draft) -> bool:
        """Could a draft of the head be worth more than this one? False saves making it."""

    def prefers_tree(self, ngram: Draft, tree: DraftTree) -> bool:
        """Is the head's tree worth more than the n-gram's draft?"""

    def observe(self, fate: DraftFate) -> None:
        """What became of a round's draft."""


class HybridDrafter(Drafter):
    """See the module's header.

    Args:
        ngram: the drafter of what was there before.
        head: the learned one, which grows trees.
        router: chooses.
    """

    name = "hybrid"
    goes_on = False

    def __init__(self, ngram: Drafter, head: EagleDrafter, router: Router) -> None:
        self._ngram, self._head, self._router = ngram, head, router

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job."""
        self._ngram.begin(prompt_ids)
        self._head.begin(prompt_ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""
        self._ngram.extend(ids)
        self._head.extend(ids)

    def feed(self, start: int, taps: Mapping[int, torch.Tensor]) -> None:
        """Taps of committed positions."""
        self._head.feed(start, taps)

    def prepare(self, speculative: Sequence[int]) -> None:
        """Make the next n-gram draft ready, and the head fit for its turn."""
        self._ngram.prepare(speculative)
        self._head.prepare(speculative)

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        """The n-gram's draft, or the head's tree where that is worth more."""
        found = self._ngram.draft(speculative, max_len, is_idle)
        if max_len < 1 or speculative or not is_idle or not self._router.needs_head(found):
            return found
        tree = self._head.grow(max_len)
        if not tree.ids or not self._router.prefers_tree(found, tree):
            return found
        return Draft(tree.ids, "tree", 0, parents=tree.parents)

    def observe(self, fate: DraftFate) -> None:
        """What became of a round's draft."""
        self._router.observe(fate)
