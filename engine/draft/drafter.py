"""The interface of a drafter.

Guarantees: a drafter only ever proposes; nothing it returns can change the output, only how fast it
comes. Must never know the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens that follow committed + speculative tokens.

    Attributes:
        source: "ngram", "filler", "eagle", "tree", "oracle" or "none".
        match_len: length of the suffix that was matched; 0 for none.
        counts: by token: earlier occurrences of the match that went on so up to there; () if the
            drafter counts none.
        parents: a tree's: of each token the index of the one before it, -1: what was committed
            last; depth first. (): a chain.
    """

    ids: tuple[int, ...]
    source: str
    match_len: int
    counts: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


NO_DRAFT = Draft((), "none", 0)


class Drafter(Protocol):
    """Proposes tokens; told of every committed token.

    Attributes:
        goes_on: a longer draft begins with the shorter one, and when a text takes up a draft's
            first tokens, the draft behind them is the rest of it, counts and all, from a match
            longer by as many.
    """

    name: str
    goes_on: bool

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job: forget everything but this prompt."""

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""

    def draft(self, speculative: Sequence[int], max_len: int) -> Draft:
        """Propose at most `max_len` tokens after committed + `speculative`."""


class NoDrafter:
    """Never proposes: with it the round machine is plain autoregressive decoding."""

    name = "none"
    goes_on = False

    def begin(self, prompt_ids: Sequence[int]) -> None:
        return None

    def extend(self, ids: Sequence[int]) -> None:
        return None

    def draft(self, speculative: Sequence[int], max_len: int) -> Draft:
        return NO_DRAFT
