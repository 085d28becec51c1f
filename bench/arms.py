"""The arms: every variant that a job can run, in one registry.

Guarantees: an arm is complete and immutable; every numeric configuration has one reference arm; a
null arm differs from what it repeats in name and description only. A new arm is one entry.
Must never know: cells, schedules, processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.defaults import DEPTH, DRAFT_LEN, DRAFTER, POLICY
from engine.errors import unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One variant of decoding; every field but the names is a job lever.

    Attributes:
        policy: name of the draft-length policy.
        policy_params: the policy's own numbers, by name.
        draft_len: k, or where an adaptive policy starts; 0 drafts nothing.
        depth: cap on frames in flight.
        drafter: name of the drafter; "none" is never called.
        numeric_config: weights, wire dtype and kernels; outputs compare within one only.
    """

    name: str
    policy: str
    policy_params: dict[str, int] = field(default_factory=dict)
    draft_len: int
    depth: int
    drafter: str
    numeric_config: str = "f32"
    description: str


def _autoregressive(name: str, description: str) -> Arm:
    return Arm(
        name=name,
        policy="fixed-k",
        draft_len=0,
        depth=1,
        drafter="none",
        description=description,
    )


def _chain(name: str, draft_len: int, description: str) -> Arm:
    return Arm(
        name=name,
        policy=POLICY,
        draft_len=draft_len,
        depth=DEPTH,
        drafter=DRAFTER,
        description=description,
    )


BASE_ARM = f"chain-k{DRAFT_LEN}"
REFERENCE_ARMS = {"f32": "ar"}  # numeric configuration -> the arm whose output defines lossless
NULL_PAIRS = {"null": BASE_ARM, "null-ar": "ar"}  # null arm -> the arm it repeats

ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        _autoregressive("ar", "One token a traversal: no drafts, one frame in flight."),
        _autoregressive("null-ar", "ar again under another name: the noise of ratios to ar."),
        _chain(BASE_ARM, DRAFT_LEN, f"Frames of {DRAFT_LEN} n-gram drafts, {DEPTH} in flight."),
        _chain("null", DRAFT_LEN, f"{BASE_ARM} again under another name: the noise band."),
        _chain("chain-k16", 16, f"Frames of 16 n-gram drafts, {DEPTH} in flight."),
        Arm(
            name="two-state",
            policy="two-state",
            policy_params={"high": 16, "up": 6},
            draft_len=8,
            depth=DEPTH,
            drafter=DRAFTER,
            description="8 drafts; 16 after a frame that fully accepted or accepted at least 6.",
        ),
    )
}

# What a decode experiment runs when nobody says otherwise, in this order in tables.
DECODE_ARMS = ("ar", "null-ar", BASE_ARM, "null", "chain-k16", "two-state")


def get_arm(name: str) -> Arm:
    """Return the arm of this name.

    Raises:
        ConfigError: the caller's name is unknown; the message lists the valid ones.
    """
    if name not in ARMS:
        raise unknown_name("arm", name, ARMS)
    return ARMS[name]


def reference_arm(numeric_config: str) -> Arm:
    """Return the arm that every job of this numeric configuration is compared with.

    Raises:
        ConfigError: no reference is registered for the configuration.
    """
    if numeric_config not in REFERENCE_ARMS:
        raise unknown_name("numeric configuration", numeric_config, REFERENCE_ARMS)
    return get_arm(REFERENCE_ARMS[numeric_config])
