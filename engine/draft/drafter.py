"""The interface of a drafter.

Guarantees: a drafter only ever proposes; nothing it returns can change the output, only how fast it
comes. Must never know the ring.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # n-grams need no tensors: who drafts with them alone never loads torch
    import torch


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens that follow committed + speculative tokens.

    Attributes:
        source: "ngram", "filler", "eagle", "tree", "oracle" or "none"; "tree" if and only if there
            are parents.
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


@dataclass(frozen=True, slots=True)
class DraftFate:
    """What became of a draft that was sent; see `engine.coordinator.records.FrameRecord`."""

    source: str
    match_len: int
    sent_len: int
    accepted_len: int
    tested_len: int  # accepted_len, and one more if a token was refuted
    unverified_len: int = 0  # drafts before its own whose fate was open when it was sent


class Drafter(ABC):
    """Proposes tokens; told of every committed token. By default it needs nothing but that.

    Attributes:
        goes_on: a longer draft begins with the shorter one, and when a text takes up a draft's
            first tokens, the draft behind them is the rest of it, counts and all, from a match
            longer by as many.
        degraded: why it fell back to n-grams; None: it did not.
    """

    name: str
    goes_on: bool = False
    degraded: str | None = None

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job: forget everything but this prompt."""
        return

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""
        return

    def feed(self, start: int, taps: Mapping[int, torch.Tensor]) -> None:
        """Outputs of the tapped layers at committed positions, once `extend` has told their tokens.

        Positions may come again, after a tree: what comes later counts.

        Args:
            start: position of the first row; the others follow it.
            taps: by layer of the target.

        Shapes:
            taps: f32 [T, H] each
        """
        return

    @abstractmethod
    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        """Propose what follows committed + `speculative`.

        Args:
            max_len: most tokens of a chain. A tree has at most DRAFT_LEN_MAX nodes; those too deep
                to be output are cut off it.
            is_idle: nothing is in flight. Else a tree, or a draft from taps, is not to be given.
        """

    def prepare(self, speculative: Sequence[int]) -> None:
        """Nothing has come: make ready what the next request will want."""
        return

    def observe(self, fate: DraftFate) -> None:
        """What became of a draft, in order; the tokens that tell it are committed after."""
        return

    def cancel(self) -> None:
        """The open request became void. Never computes."""
        return


class NoDrafter(Drafter):
    """Never proposes: with it the round machine is plain autoregressive decoding."""

    name = "none"

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        return NO_DRAFT
