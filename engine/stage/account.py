"""A stage's account of the current job, and the statement it signs at the end.

Guarantees: counts what was computed, frame by frame; states only frames that it computed, received
and sent; without attestation it keeps nothing. Must never know sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import JobError
from engine.transport.message import Reset, Verify
from engine.trust.attestation import Answer, FrameKey, StageStatement, sign_statement
from engine.trust.frame_digests import FrameDigests, MissingFrameError
from engine.trust.identity import Identity
from engine.trust.job_digests import JobDigests


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What does not change from job to job."""

    stage_idx: int
    num_stages: int
    layer_start: int
    layer_end: int
    is_last: bool
    model_digest: str


@dataclass(frozen=True, slots=True)
class Attested:
    """A closed job that was signed for: what it may be challenged about until the next begins."""

    nonce: str
    keys: tuple[FrameKey, ...]
    frames: FrameDigests


class JobAccount:
    """Of one job after another.

    Args:
        identity: signs; None: this stage has no key and refuses jobs that ask for attestation.
        digests: what crossed this stage's links.
    """

    def __init__(self, identity: Identity | None, digests: JobDigests) -> None:
        self._identity = identity
        self._digests = digests
        self._nonce = ""
        self._is_attested = False
        self._computed: dict[FrameKey, tuple[int, Answer]] = {}  # positions, answer
        self._compute_ns = 0
        self.attested: Attested | None = None

    def begin(self, reset: Reset) -> None:
        """Open a job.

        Raises:
            JobError: it asks for attestation and this stage has no key.
        """
        self._computed, self._compute_ns = {}, 0
        self._nonce, self._is_attested, self.attested = reset.nonce, False, None
        if reset.levers.attestation and self._identity is None:
            raise JobError("attestation", "this stage has no signing key; give it one, or ask none")
        self._is_attested = reset.levers.attestation

    def note(self, verify: Verify, ids: Sequence[int], compute_ns: int) -> None:
        """One frame was computed."""
        if self._is_attested:
            key = (verify.epoch, verify.start)
            answer = Answer(verify.epoch, verify.start, verify.answer_from, tuple(ids))
            self._computed[key] = (verify.positions_len, answer)
            self._compute_ns += compute_ns

    def signed(self, keys: Sequence[FrameKey], facts: StageFacts) -> str:
        """The statement over these frames; empty if the job asked for none.

        Raises:
            JobError: one of them was not computed, received or sent here.
        """
        if not self._is_attested:
            return ""
        assert self._identity is not None, "such a job was refused"
        for key in keys:
            if key not in self._computed:
                raise JobError(
                    "attestation", f"frame (epoch {key[0]}, start {key[1]}) was not computed here"
                )
        try:
            roots = self._digests.frames.roots(keys)
        except MissingFrameError as error:
            raise JobError("attestation", str(error)) from error
        rows = [self._computed[key] for key in keys]
        statement = StageStatement(
            job_nonce=self._nonce,
            segment=0,
            stage_idx=facts.stage_idx,
            num_stages=facts.num_stages,
            layer_start=facts.layer_start,
            layer_end=facts.layer_end,
            model_digest=facts.model_digest,
            frames=len(keys),
            positions=sum(positions_len for positions_len, _ in rows),
            in_root=roots.in_root,
            out_root=roots.out_root,
            hash_ns=roots.hash_ns,
            compute_ns=self._compute_ns,
            answers=tuple(answer for _, answer in rows) if facts.is_last else None,
        )
        self.attested = Attested(self._nonce, tuple(keys), self._digests.frames)
        return sign_statement(statement, self._identity)
