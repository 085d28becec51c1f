"""Draft-length policies: how many tokens to draft and send next.

Guarantees: a policy is pure state: it is told of each round in order and asked for the next length;
stale frames never reach it, and nothing it answers can change the output. Must never know links,
clocks or the tokens of the target. By name: `engine.coordinator.policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from engine.coordinator.records import FrameRecord
from engine.draft.drafter import Draft


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy may look at when the next frame is prepared."""

    committed_len: int  # output tokens so far
    remaining_len: int  # output tokens still allowed
    in_flight: int
    unverified_len: int  # drafts on their way whose fate is open
    anchor_len: int  # committed tokens that the next frame has to carry


class DraftPolicy(ABC):
    """Chooses draft lengths and, by keeping nothing while frames are in flight, the depth."""

    name: str

    @abstractmethod
    def next_len(self, situation: Situation) -> int:
        """Most tokens to ask the drafter for; 0 drafts none."""

    def keep_len(self, situation: Situation, draft: Draft) -> int:
        """How many of the drafted tokens to send.

        0 sends the anchor alone or, if there is none, nothing until the next token is committed.
        """
        return len(draft.ids)

    def observe(self, record: FrameRecord) -> None:  # noqa: B027 - most learn nothing
        """One finished round (applied, refuted or closed), in order."""


class FixedK(DraftPolicy):
    """Always the same length."""

    name = "fixed-k"

    def __init__(self, draft_len: int) -> None:
        self._draft_len = draft_len

    def next_len(self, situation: Situation) -> int:
        return self._draft_len


def is_full(record: FrameRecord) -> bool:
    """Was every draft accepted? A frame without drafts accepts nothing: it is no streak."""
    return record.draft_len > 0 and record.accepted_len == record.draft_len


class TwoState(DraftPolicy):
    """`base` tokens, or `high` after a round that fully accepted or accepted at least `up`.

    Source: public pull request 31 of the ring engine this suite studies (see README, related work).
    """

    name = "two-state"

    def __init__(self, base: int, high: int, up: int) -> None:
        self._base, self._high, self._up = base, high, up
        self._upsized = False

    def next_len(self, situation: Situation) -> int:
        return self._high if self._upsized else self._base

    def observe(self, record: FrameRecord) -> None:
        self._upsized = is_full(record) or record.accepted_len >= self._up


class Streak(DraftPolicy):
    """Two-state's trigger, doubling on consecutive full accepts up to `cap`.

    A round that accepts `up` or more without being full keeps the length where it is.
    """

    name = "streak"

    def __init__(self, base: int, cap: int, up: int) -> None:
        self._base, self._cap, self._up = base, max(base, cap), up
        self._len = base

    def next_len(self, situation: Situation) -> int:
        return self._len

    def observe(self, record: FrameRecord) -> None:
        if is_full(record):
            self._len = min(self._cap, 2 * self._len)
        elif record.accepted_len < self._up:
            self._len = self._base
