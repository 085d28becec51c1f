"""Does a ring's signed account of a job hold? Fails closed and names the first fault.

Guarantees: every check raises or passes, none only warns; the number of layers, the signers, the
nonce, the frames and the coordinator's own roots come from the verifier's side, never from a
statement. Must never know sockets or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.errors import ReceiptError
from engine.trust.attestation import (
    STATEMENT_TYPE,
    FrameKey,
    StageStatement,
    open_envelope,
    parse_statement,
)
from engine.trust.identity import PublicIdentity


class AttestationError(ReceiptError):
    """The first fault, and whose it is.

    Attributes:
        code: one word for the kind of fault.
        stage_idx: which stage's statement; None if no single one's.
    """

    def __init__(self, code: str, detail: str, stage_idx: int | None = None) -> None:
        where = "" if stage_idx is None else f"stage {stage_idx}: "
        super().__init__(f"{where}{code}: {detail}")
        self.code, self.detail, self.stage_idx = code, detail, stage_idx


@dataclass(frozen=True, slots=True)
class Expected:
    """What the verifier knows by itself.

    Attributes:
        signers: the stages' public keys, in ring order, pinned by the plan.
        num_layers: from the model's own config.
        frames: (epoch, start, positions) of the frames whose replies were applied, in that order.
        first_root, last_root: over those frames as the coordinator sent and received them.
        output_ids: what the coordinator committed, the first at position `prompt_len`.
        used_nonces: of earlier jobs; a statement of one of them is a replay.
    """

    signers: Sequence[PublicIdentity]
    num_layers: int
    model_digest: str
    job_nonce: str
    frames: Sequence[tuple[int, int, int]]
    first_root: str
    last_root: str
    prompt_len: int
    output_ids: Sequence[int]
    segment: int = 0
    used_nonces: frozenset[str] = field(default_factory=frozenset)


def verify_job(signed: Sequence[str], expected: Expected) -> list[StageStatement]:
    """Check a job's statements, in ring order.

    Raises:
        AttestationError: the first fault.
    """
    if not signed:
        raise AttestationError("missing", "the job has no statement at all")
    if not expected.frames or not expected.output_ids:
        raise AttestationError("no_work", "no frame was applied, so nothing is attested")
    if expected.job_nonce in expected.used_nonces:
        raise AttestationError("replay", f"nonce {expected.job_nonce} was used by an earlier job")
    statements = _authentic(signed, expected)
    for stage_idx, statement in enumerate(statements):
        _check_job(statement, stage_idx, expected)
    _check_tiling(statements, expected.num_layers)
    _check_roots(statements, expected)
    _check_answers(statements[-1], expected)
    return statements


def _authentic(signed: Sequence[str], expected: Expected) -> list[StageStatement]:
    """Every pinned signer exactly once, in ring order, over bytes that say so."""
    if len(set(signed)) < len(signed):
        raise AttestationError("duplicate", "one statement is given twice")
    statements = []
    for stage_idx, text in enumerate(signed):
        try:
            envelope, body, signature = open_envelope(text)
            if stage_idx >= len(expected.signers):
                raise AttestationError(
                    "unknown_signer", f"key {envelope.key_id} is not in the plan", stage_idx
                )
            signer = expected.signers[stage_idx]
            if envelope.key_id != signer.key_id:
                raise AttestationError(
                    "unknown_signer",
                    f"signed by key {envelope.key_id}; the plan has {signer.key_id}",
                    stage_idx,
                )
            signer.verify(STATEMENT_TYPE, body, signature)
            statements.append(parse_statement(body))
        except AttestationError:
            raise
        except ReceiptError as error:
            raise AttestationError("signature", str(error), stage_idx) from error
    if len(statements) < len(expected.signers):
        missing = ", ".join(signer.key_id for signer in expected.signers[len(statements) :])
        raise AttestationError("missing", f"no statement of key {missing}", len(statements))
    return statements


def _check_job(statement: StageStatement, stage_idx: int, expected: Expected) -> None:
    """It is this job's, this stage's, and over the frames that were applied."""
    positions = sum(positions_len for _, _, positions_len in expected.frames)
    claims = (
        ("replay", "nonce", statement.job_nonce, expected.job_nonce),
        ("segment", "segment", statement.segment, expected.segment),
        ("place", "stage", statement.stage_idx, stage_idx),
        ("place", "number of stages", statement.num_stages, len(expected.signers)),
        ("model", "model", statement.model_digest, expected.model_digest),
        ("work", "number of frames", statement.frames, len(expected.frames)),
        ("work", "number of positions", statement.positions, positions),
    )
    for code, name, said, known in claims:
        if said != known:
            raise AttestationError(code, f"says {name} {said}; it was {known}", stage_idx)
    if statement.compute_ns == 0:
        raise AttestationError("no_work", "says that it computed in no time", stage_idx)


def _check_tiling(statements: Sequence[StageStatement], num_layers: int) -> None:
    """The layer ranges follow on each other from 0 to the model's own depth."""
    at = 0
    for stage_idx, statement in enumerate(statements):
        if statement.layer_start != at or statement.layer_end <= at:
            raise AttestationError(
                "layers",
                f"claims layers {statement.layer_start}..{statement.layer_end}; the one before "
                f"it ends at {at}",
                stage_idx,
            )
        at = statement.layer_end
    if at != num_layers:
        last_idx = len(statements) - 1
        raise AttestationError(
            "layers", f"ends at layer {at}; the model has {num_layers}", last_idx
        )


def _check_roots(statements: Sequence[StageStatement], expected: Expected) -> None:
    """What one sent is what the next received, from the coordinator round to the coordinator."""
    sent, sender = expected.first_root, "the coordinator"
    for stage_idx, statement in enumerate(statements):
        if statement.in_root != sent:
            raise AttestationError(
                "chain",
                f"received {statement.in_root[:16]}…; {sender} sent {sent[:16]}…",
                stage_idx,
            )
        sent, sender = statement.out_root, f"stage {stage_idx}"
    if sent != expected.last_root:
        raise AttestationError(
            "chain",
            f"sent {sent[:16]}…; the coordinator received {expected.last_root[:16]}…",
            len(statements) - 1,
        )
    for stage_idx, statement in enumerate(statements[:-1]):
        if statement.answers is not None:
            raise AttestationError("answers", "answers, and is not the last stage", stage_idx)


def _check_answers(last: StageStatement, expected: Expected) -> None:
    """The committed output is what the last stage says that it answered."""
    last_idx = len(expected.signers) - 1
    if last.answers is None:
        raise AttestationError("answers", "the last stage states no answers", last_idx)
    keys = [(answer.epoch, answer.start) for answer in last.answers]
    applied: list[FrameKey] = [(epoch, start) for epoch, start, _ in expected.frames]
    if keys != applied:
        raise AttestationError("answers", "its answers are not to the applied frames", last_idx)
    # A position that was answered twice was refuted in between: the later answer stands.
    answered = {
        answer.answer_from + 1 + idx: token
        for answer in last.answers
        for idx, token in enumerate(answer.ids)
    }
    for position, token in enumerate(expected.output_ids, start=expected.prompt_len):
        if answered.get(position) != token:
            raise AttestationError(
                "answers",
                f"answered {answered.get(position)} for position {position}; the output has "
                f"{token}",
                last_idx,
            )
