"""Draft-length policies by name. Adding one is one class and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.coordinator.planner import LearnedOutlook, Planner
from engine.coordinator.policy import DraftPolicy, FixedK, Streak, TwoState
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.survival import Survival, load_prior
from engine.defaults import DEPTH, DEPTH_MAX, DRAFT_LEN, DRAFT_LEN_MAX
from engine.errors import ConfigError, unknown_name


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """What a policy is made from.

    Attributes:
        draft_len: base length; for a policy that chooses its own, the longest.
        depth: most frames in flight.
        params: the policy's own numbers, complete.
        cost: what frames cost on this ring, kept by the session.
    """

    draft_len: int
    depth: int
    params: Mapping[str, int]
    cost: RingCost


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A registry entry: the parameters a policy takes, with their defaults, and its maker."""

    params: Mapping[str, int]  # besides draft_len and depth
    make: Callable[[PolicySetting], DraftPolicy]
    draft_len: int = DRAFT_LEN
    depth: int = DEPTH


def _planner(setting: PolicySetting) -> DraftPolicy:
    outlook = LearnedOutlook(Survival(load_prior()))
    return Planner(outlook, setting.cost, setting.draft_len, setting.depth)


POLICIES: Mapping[str, PolicyKind] = {
    "fixed-k": PolicyKind({}, lambda setting: FixedK(setting.draft_len)),
    "two-state": PolicyKind(
        {"high": 16, "up": 6},
        lambda setting: TwoState(setting.draft_len, setting.params["high"], setting.params["up"]),
    ),
    "streak": PolicyKind(
        {"cap": DRAFT_LEN_MAX, "up": 6},
        lambda setting: Streak(setting.draft_len, setting.params["cap"], setting.params["up"]),
    ),
    # It chooses both: what it is given are limits.
    "planner": PolicyKind({}, _planner, DRAFT_LEN_MAX, DEPTH_MAX),
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


def make_policy(
    name: str,
    draft_len: int,
    params: Mapping[str, int],
    depth: int = DEPTH_MAX,
    cost: RingCost | None = None,
) -> DraftPolicy:
    """Build a policy by name.

    Args:
        draft_len: its base length, 0..DRAFT_LEN_MAX.
        depth: most frames in flight.
        cost: what frames cost on this ring; None: nothing is known yet.

    Raises:
        ConfigError: see `resolve_policy_params`.
    """
    resolved = resolve_policy_params(name, params)
    if not 0 <= draft_len <= DRAFT_LEN_MAX:
        raise ConfigError(f"draft_len is {draft_len}; allowed: 0..{DRAFT_LEN_MAX}")
    setting = PolicySetting(draft_len, depth, resolved, cost or RingCost())
    return POLICIES[name].make(setting)
