"""Spot recompute: is what a stage sent what its layers make of what it received?

Statements prove who sent which bytes, not that they were computed. So a verifier draws a seed and
takes its `commitment` as the job's nonce, which every statement signs. Only when all have signed
does it tell the seed. The seed draws frames and signs; a stage then hands over the frames that it
received, as they were, and a sketch of what it sent for the drawn ones. The verifier puts the
frames through the same layers of its own and compares sketches, position by position; what the
last stage answered is compared with the replica's scores.

Guarantees: what was received is bound by the stage's signed root, what was sent by what the next
stage received: a sketch of something else is found out. Every check raises or passes. A verifier
cannot pick the seed after it saw the job, nor a stage its answer after it saw the seed. Must never
know sockets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from engine.errors import ConfigError, JobError, RemoteProtocolError
from engine.model.sampling import SamplingParams
from engine.model.tree import answered_positions, check_root, check_tree
from engine.transport.frame import Kind
from engine.transport.hidden_wire import pack_states, unpack_states
from engine.transport.message import Verify
from engine.trust.answer_check import fault_of
from engine.trust.attestation import FrameKey, StageStatement, frame_digest, root_of
from engine.trust.frame_payload import key_of, states_of, verify_of
from engine.trust.limits import Limits, first_beyond, first_coarse
from engine.trust.sketch import NUM_SIGNS, SEED_LEN, Floats, relative_errors, sketch
from engine.trust.verify import AttestationError

_COMMIT_DOMAIN = b"longhaul-challenge/1"
_DRAW_DOMAIN = b"longhaul-drawn-frames/1"
SAME_BYTES_ERROR = 1e-6  # two sketches of the same bytes, one of them rounded to float32


class Replica(Protocol):
    """The verifier's own copy of a stage's layers; `DecoderExecutor` is one."""

    layer_start: int
    layer_end: int
    is_first: bool
    is_last: bool

    def reset(self) -> None: ...
    def embed(self, ids: Sequence[int]) -> torch.Tensor: ...
    def forward(
        self, hidden: torch.Tensor, start: int, parents: Sequence[int] = ()
    ) -> torch.Tensor: ...
    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What the job was run with, and how far honest computations may be apart.

    Attributes:
        wire: of hidden states, by name.
        limits: of states, as they travel, and of scores.
        num_frames: how many frames are drawn from each stage.
    """

    wire: str
    sampling: SamplingParams
    limits: Limits
    num_frames: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one stage hands over when the seed is told.

    Attributes:
        received: payloads of the attested frames, all of them, in the order of the statement.
        sketches: of what it sent for the drawn frames; empty from the last stage.
    """

    received: Sequence[bytes]
    sketches: Mapping[FrameKey, Floats]


@dataclass(frozen=True, slots=True)
class Compared:
    """One drawn frame that passed; `errors` [T] relative, of the last stage none."""

    key: FrameKey
    errors: Floats


def commitment(seed: bytes) -> str:
    """The nonce of a job that is to be challenged with this seed.

    Raises:
        ConfigError: the seed is not `SEED_LEN` bytes long.
    """
    if len(seed) != SEED_LEN:
        raise ConfigError(f"a seed of {len(seed)} bytes; draw {SEED_LEN} from the system's source")
    return hashlib.sha256(_COMMIT_DOMAIN + seed).hexdigest()


def drawn_frames(seed: bytes, stage_idx: int, keys: Sequence[FrameKey], num: int) -> list[FrameKey]:
    """Which frames of a stage are compared, in the order in which they were applied."""

    def rank(key: FrameKey) -> bytes:
        place = stage_idx.to_bytes(4, "big") + b"".join(part.to_bytes(8, "big") for part in key)
        return hashlib.sha256(_DRAW_DOMAIN + seed + place).digest()

    drawn = set(sorted(keys, key=rank)[:num])
    return [key for key in keys if key in drawn]


def sketch_payload(payload: bytes, wire: str, seed: bytes, sender_idx: int) -> Floats:
    """Sketch the states of one frame between stages: its sender's account of it, or a witness's.

    Shapes:
        return: [T, NUM_SIGNS]

    Raises:
        RemoteProtocolError: it is no frame of states.
    """
    verify, states = states_of(payload, wire)
    return sketch(states, seed, sender_idx, verify.start)


def spot_check(
    statements: Sequence[StageStatement],
    evidence: Mapping[int, Evidence],
    stage_idx: int,
    replica: Replica,
    seed: bytes,
    terms: Terms,
) -> list[Compared]:
    """Recompute drawn frames of one stage.

    Args:
        statements: in ring order, as `verify_job` passed them.
        evidence: by stage: this one's, and its successor's as the witness of what it sent.

    Raises:
        AttestationError: the first fault; named as that stage's whose fault it is.
        ConfigError: the replica is not of this stage's layers, or nothing is drawn.
    """
    statement = statements[stage_idx]
    if (replica.layer_start, replica.layer_end) != (statement.layer_start, statement.layer_end):
        raise ConfigError(
            f"a replica of layers {replica.layer_start}..{replica.layer_end} for a stage of "
            f"{statement.layer_start}..{statement.layer_end}; load the stage's own"
        )
    if terms.num_frames < 1:
        raise ConfigError(f"num_frames {terms.num_frames}: draw at least one")
    if commitment(seed) != statement.job_nonce:
        raise AttestationError("seed", "it is not what this job's nonce commits to", stage_idx)
    frames = _received(statements, evidence, stage_idx)
    drawn = drawn_frames(seed, stage_idx, list(frames), terms.num_frames)
    check = _Check(statement, replica, seed, terms)
    if not replica.is_last:
        check.witness(drawn, evidence[stage_idx], _received(statements, evidence, stage_idx + 1))
    return check.replay(frames, drawn, evidence[stage_idx])


def _received(
    statements: Sequence[StageStatement], evidence: Mapping[int, Evidence], stage_idx: int
) -> dict[FrameKey, bytes]:
    """The payloads that a stage received, bound by its root."""
    if stage_idx not in evidence:
        raise AttestationError("evidence", "none was handed over", stage_idx)
    payloads = evidence[stage_idx].received
    root = root_of([frame_digest(Kind.VERIFY, payload) for payload in payloads])
    if root != statements[stage_idx].in_root:
        raise AttestationError("evidence", "not the frames that it attested", stage_idx)
    try:
        return {key_of(payload): payload for payload in payloads}
    except RemoteProtocolError as error:
        raise AttestationError("evidence", str(error), stage_idx) from error


@dataclass(frozen=True, slots=True)
class _Check:
    statement: StageStatement
    replica: Replica
    seed: bytes
    terms: Terms

    def witness(
        self, drawn: Sequence[FrameKey], own: Evidence, next_received: Mapping[FrameKey, bytes]
    ) -> None:
        """A sketch is of what the next stage received, which the chain of roots says was sent."""
        stage_idx = self.statement.stage_idx
        for key in drawn:
            theirs = own.sketches.get(key)
            if theirs is None or theirs.ndim != 2 or theirs.shape[1] != NUM_SIGNS:
                raise self._fault("sketch", key, "has none, or one of another form")
            if key not in next_received:
                raise self._fault("evidence", key, "is not among those that the next one received")
            seen = sketch_payload(next_received[key], self.terms.wire, self.seed, stage_idx)
            if theirs.shape != seen.shape or not _are_one(theirs, seen):
                raise self._fault("forged", key, "is not sketched from what was sent")

    def replay(
        self, frames: Mapping[FrameKey, bytes], drawn: Sequence[FrameKey], own: Evidence
    ) -> list[Compared]:
        """Put every frame up to the last drawn one through the replica."""
        left, compared = set(drawn), []
        self.replica.reset()
        for key, payload in frames.items():
            if not left:
                break
            try:
                verify, states = self._input_of(payload)
                check_tree(verify.parents, len(states))
                check_root(verify.parents, verify.start, len(states), verify.answer_from)
                hidden = self.replica.forward(states, verify.start, verify.parents)
            except (JobError, RemoteProtocolError) as error:
                raise self._fault("evidence", key, str(error)) from error
            if key in left:
                left.remove(key)
                if self.replica.is_last:
                    self._compare_ids(verify, hidden)
                    compared.append(Compared(key, np.zeros(0)))
                else:
                    compared.append(self._compare(key, verify, hidden, own.sketches[key]))
        coarse = first_coarse([it.errors for it in compared], self.terms.limits)
        if coarse is not None:
            detail = f"off by {coarse[1]:.2e} at its median, {self.terms.limits.median:.2e} passes"
            raise self._fault("recompute", compared[coarse[0]].key, detail)
        return compared

    def _input_of(self, payload: bytes) -> tuple[Verify, torch.Tensor]:
        if not self.replica.is_first:
            return states_of(payload, self.terms.wire)
        verify, _ = verify_of(payload)
        return verify, self.replica.embed(verify.ids or ())

    def _compare(
        self, key: FrameKey, verify: Verify, hidden: torch.Tensor, claimed: Floats
    ) -> Compared:
        sent = unpack_states(pack_states({"hidden": hidden}, self.terms.wire), self.terms.wire)
        states = sent["hidden"]
        own = sketch(states, self.seed, self.statement.stage_idx, verify.start)
        if claimed.shape != own.shape:
            raise self._fault("recompute", key, f"{len(claimed)} positions, not {len(own)}")
        errors = relative_errors(claimed, own, states)
        beyond = first_beyond(errors, self.terms.limits)
        if beyond is not None:
            detail = (
                f"position {verify.start + beyond} is off by {errors[beyond]:.2e} of its length; "
                f"{self.terms.limits.position:.2e} is allowed"
            )
            raise self._fault("recompute", key, detail)
        return Compared(key, errors)

    def _compare_ids(self, verify: Verify, hidden: torch.Tensor) -> None:
        key = (verify.epoch, verify.start)
        said = {(it.epoch, it.start): it.ids for it in self.statement.answers or ()}.get(key)
        positions = answered_positions(
            verify.parents, verify.start, len(hidden), verify.answer_from
        )
        if said is None or len(said) != len(positions):
            raise self._fault("answers", key, "is not answered in the statement, or not in full")
        if positions:
            logits = self.replica.logits(hidden[-len(positions) :])
            sampling, limit = self.terms.sampling, self.terms.limits.score
            fault = fault_of(logits, said, positions, sampling, limit)
            if fault:
                raise self._fault("recompute", key, fault)

    def _fault(self, code: str, key: FrameKey, detail: str) -> AttestationError:
        where = f"frame (epoch {key[0]}, start {key[1]})"
        return AttestationError(code, f"{where} {detail}", self.statement.stage_idx)


def _are_one(theirs: Floats, seen: Floats) -> bool:
    """Sketches of the same bytes, NaN in them or not."""
    if np.array_equal(theirs, seen, equal_nan=True):
        return True
    return bool(np.linalg.norm(theirs - seen) <= SAME_BYTES_ERROR * np.linalg.norm(seen))
