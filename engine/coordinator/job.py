"""What a job is asked to do and what it leaves behind.

Guarantees: plain values; every lever has one name here, in `reset` and in the receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from engine import defaults
from engine.coordinator.attested import Account
from engine.coordinator.policies import POLICIES, make_policy, resolve_policy_params
from engine.coordinator.policy import DraftPolicy
from engine.coordinator.records import FinishReason, FrameRecord, Standing, never_stops
from engine.coordinator.ring_cost import RingCost
from engine.draft.drafter import Drafter
from engine.draft.registry import drafter_kind, make_drafter, resolve_drafter_params
from engine.errors import ConfigError, JobError, unknown_name
from engine.model.sampling import SamplingParams
from engine.numeric import NUMERIC_CONFIGS
from engine.transport.connection import WireUse
from engine.transport.hidden_wire import WIRES
from engine.transport.keep_warm import check_interval
from engine.transport.message import REPLIES, Levers, ResetAck, Sampling, Statement

# New ids, and what counts where the job stands.
OnCommit = Callable[[Sequence[int], Callable[[], Standing]], None]


def make_levers(
    *,
    policy: str = defaults.POLICY,
    policy_params: Mapping[str, int] | None = None,
    draft_len: int | None = None,
    depth: int | None = None,
    drafter: str = defaults.DRAFTER,
    drafter_params: Mapping[str, int] | None = None,
    min_match_len: int = defaults.MIN_MATCH_LEN,
    prefill_chunk: int = defaults.PREFILL_CHUNK,
    max_new_tokens: int = defaults.MAX_NEW_TOKENS,
    numeric_config: str = "f32",
    temperature: str = "0",
    top_k: int = 0,
    top_p: str = "1",
    sampling_seed: str = "0000000000000000",
    reply: str = "ids",
    keepwarm_ms: int = defaults.KEEPWARM_MS,
    attestation: bool = False,
    tap_wire: str = defaults.TAP_WIRE,
) -> Levers:
    """Every job lever, checked; where a job's defaults, and its policy's, are applied, once.

    Raises:
        ConfigError: an unknown name (the valid ones are listed) or a value out of range.
    """
    params = resolve_policy_params(policy, policy_params or {})
    draft_len, depth = _lengths(policy, draft_len, depth)
    drafter_params = _drafter_params(drafter, min_match_len, drafter_params or {})
    SamplingParams.parse(temperature, top_k, top_p, sampling_seed)
    _check_names(numeric_config, reply, tap_wire)
    _check_sizes(prefill_chunk, max_new_tokens, keepwarm_ms)
    return Levers(
        policy=policy,
        policy_params=params,
        draft_len=draft_len,
        depth=depth,
        drafter=drafter,
        drafter_params=drafter_params,
        min_match_len=min_match_len,
        prefill_chunk=prefill_chunk,
        max_new_tokens=max_new_tokens,
        numeric_config=numeric_config,
        sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=sampling_seed),
        reply=reply,
        attestation=attestation,
        keepwarm_ms=keepwarm_ms,
        tap_layers=drafter_kind(drafter).tap_layers(),
        tap_wire=tap_wire,
    )


def _lengths(policy: str, draft_len: int | None, depth: int | None) -> tuple[int, int]:
    """Draft length and depth, the policy's own where none was asked for."""
    kind = POLICIES[policy]
    draft_len = kind.draft_len if draft_len is None else draft_len
    depth = kind.depth if depth is None else depth
    _check("draft_len", draft_len, 0, defaults.DRAFT_LEN_MAX)
    _check("depth", depth, 1, defaults.DEPTH_MAX)
    return draft_len, depth


def _drafter_params(drafter: str, min_match_len: int, params: Mapping[str, int]) -> dict[str, int]:
    """The drafter's own numbers, complete; whether one can be made of them is tried."""
    resolved = resolve_drafter_params(drafter, params)
    make_drafter(drafter, min_match_len, resolved)
    return resolved


def _check_names(numeric_config: str, reply: str, tap_wire: str) -> None:
    _check_name("numeric configuration", numeric_config, NUMERIC_CONFIGS)
    _check_name("reply", reply, REPLIES)
    _check_name("wire of taps", tap_wire, WIRES)


def _check_sizes(prefill_chunk: int, max_new_tokens: int, keepwarm_ms: int) -> None:
    _check("prefill_chunk", prefill_chunk, 1, 4096)
    _check("max_new_tokens", max_new_tokens, 1, 2**20)
    check_interval(keepwarm_ms)


def _check_name(kind: str, name: str, valid: Collection[str]) -> None:
    if name not in valid:
        raise unknown_name(kind, name, valid)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}; allowed: {low}..{high}")


def policy_by_name(levers: Levers, cost: RingCost) -> DraftPolicy:
    """The policy that the levers name."""
    return make_policy(levers.policy, levers.draft_len, levers.policy_params, levers.depth, cost)


def drafter_by_name(levers: Levers) -> Drafter:
    """The drafter that the levers name."""
    return make_drafter(levers.drafter, levers.min_match_len, levers.drafter_params)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One decode.

    Attributes:
        make_policy, make_drafter: how to build what the levers name; a caller who knows more than a
            registry can (such as the answer) brings its own.
        on_logits: with the lever `reply` "logits": called with the position of the first token
            that a reply committed and the f16 logits [n, V] of it and those behind it; each output
            token once, in order.
    """

    prompt_ids: tuple[int, ...]
    levers: Levers
    eos_ids: frozenset[int]
    nonce: str  # hex, fresh for every job
    should_stop: Callable[[Sequence[int]], bool] = never_stops
    on_logits: Callable[[int, torch.Tensor], None] | None = None
    make_policy: Callable[[Levers, RingCost], DraftPolicy] = policy_by_name
    make_drafter: Callable[[Levers], Drafter] = drafter_by_name


@dataclass(slots=True)
class JobResult:
    """What came out. Times are ns since the job's start on the coordinator's clock."""

    output_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "none"
    failure: JobError | None = None
    frames: list[FrameRecord] = field(default_factory=list)
    acks: list[ResetAck] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    prefill_sent_ns: int | None = None
    first_commit_ns: int | None = None
    last_commit_ns: int | None = None
    end_ns: int = 0
    draft_ns: int = 0  # drafting and planning between an event and the frames it leads to
    prepare_ns: int = 0  # drafting while nothing had come
    wire_use: WireUse = field(default_factory=WireUse)  # the coordinator's own
    stale_replies: int = 0
    uncorrelated: int = 0
    account: Account | None = None  # of an attested job
    degraded: str | None = None  # why the drafter fell back to n-grams
    ring_usable: bool = True  # False: nothing is known of what is pending; build a new ring

    @property
    def decode_tok_per_s(self) -> float | None:
        """(output tokens − 1) / (last commit − first commit); None below two tokens."""
        if self.first_commit_ns is None or self.last_commit_ns is None:
            return None
        if self.last_commit_ns == self.first_commit_ns:
            return None
        decode_s = (self.last_commit_ns - self.first_commit_ns) / 1e9
        return (len(self.output_ids) - 1) / decode_s
