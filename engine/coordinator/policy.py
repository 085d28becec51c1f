"""Draft-length policies: how many tokens to draft next.

Guarantees: a policy is pure state: it is told of each round in order and asked for the next length;
stale frames never reach it. Adding one is one class and one registry entry. Must never know links,
clocks or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.coordinator.records import FrameRecord
from engine.defaults import DRAFT_LEN_MAX
from engine.errors import ConfigError, unknown_name


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy may look at."""

    committed_len: int  # output tokens so far
    remaining_len: int  # output tokens still allowed
    in_flight: int


class DraftPolicy(Protocol):
    """Chooses the next draft length."""

    name: str

    def next_len(self, situation: Situation) -> int:
        """Tokens to draft for the next frame; 0 drafts none."""

    def observe(self, record: FrameRecord) -> None:
        """One finished round (applied, refuted or closed), in order."""


class FixedK:
    """Always the same length."""

    name = "fixed-k"

    def __init__(self, draft_len: int) -> None:
        self._draft_len = draft_len

    def next_len(self, situation: Situation) -> int:
        return self._draft_len

    def observe(self, record: FrameRecord) -> None:
        return None


class TwoState:
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
        # A frame without drafts accepts nothing: it is no streak.
        full = record.draft_len > 0 and record.accepted_len == record.draft_len
        self._upsized = full or record.accepted_len >= self._up


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A registry entry: the parameters a policy takes, with their defaults, and its maker."""

    params: Mapping[str, int]  # besides draft_len
    make: Callable[[int, Mapping[str, int]], DraftPolicy]


POLICIES: Mapping[str, PolicyKind] = {
    "fixed-k": PolicyKind({}, lambda draft_len, params: FixedK(draft_len)),
    "two-state": PolicyKind(
        {"high": 16, "up": 6},
        lambda draft_len, params: TwoState(draft_len, params["high"], params["up"]),
    ),
}


def resolve_policy_params(name: str, params: Mapping[str, int]) -> dict[str, int]:
    """Fill in defaults and refuse what the policy does not take.

    Raises:
        ConfigError: unknown policy or parameter (the valid ones are listed), or a value out of
            range.
    """
    if name not in POLICIES:
        raise unknown_name("policy", name, POLICIES)
    allowed = POLICIES[name].params
    for key, value in params.items():
        if key not in allowed:
            raise unknown_name(f"parameter of policy {name!r}", key, allowed)
        if not 1 <= value <= DRAFT_LEN_MAX:
            raise ConfigError(f"{name}: {key} is {value}; allowed: 1..{DRAFT_LEN_MAX}")
    return {**allowed, **params}


def make_policy(name: str, draft_len: int, params: Mapping[str, int]) -> DraftPolicy:
    """Build a policy by name.

    Args:
        draft_len: its base length, 0..DRAFT_LEN_MAX.

    Raises:
        ConfigError: see `resolve_policy_params`.
    """
    resolved = resolve_policy_params(name, params)
    if not 0 <= draft_len <= DRAFT_LEN_MAX:
        raise ConfigError(f"draft_len is {draft_len}; allowed: 0..{DRAFT_LEN_MAX}")
    return POLICIES[name].make(draft_len, resolved)
