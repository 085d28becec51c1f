"""Does a ring's signed account of a job hold? Fails closed and names the first fault.

Guarantees: every check raises or passes, none only warns; the number of layers, the signers, the
nonce, the frames and the coordinator's own roots come from the verifier's side, never from a
statement. Must never know sockets or models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.errors import ReceiptError
from engine.model.tree import followed
from engine.trust.attestation import (
    STATEMENT_TYPE,
    Answer,
    FrameKey,
    StageStatement,
    open_envelope,
    parse_statement,
)
from engine.trust.identity import PublicIdentity

Said = Callable[[StageStatement], object]


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
class SentTree:
    """The nodes of a frame, as the coordinator sent them.

    Attributes:
        parents: of each node an earlier one; -1 the root (`engine.model.tree`).
        node_ids: token of each node.
    """

    parents: Sequence[int]
    node_ids: Sequence[int]


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
        trees: of the frames that had one: answers are to the root and each node, so the verifier
            must know the nodes to tell which of them are the output.
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
    trees: Mapping[FrameKey, SentTree] = field(default_factory=dict)


Known = Callable[[Expected, int], object]
Guard = Callable[[Sequence[StageStatement], Expected], None]


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
    for guard in GUARDS.values():
        guard(statements, expected)
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


def _says(code: str, name: str, said: Said, known: Known) -> Guard:
    """A guard by which every statement says what the verifier knows."""

    def guard(statements: Sequence[StageStatement], expected: Expected) -> None:
        for stage_idx, statement in enumerate(statements):
            theirs, ours = said(statement), known(expected, stage_idx)
            if theirs != ours:
                raise AttestationError(code, f"says {name} {theirs}; it was {ours}", stage_idx)

    return guard


def _check_work(statements: Sequence[StageStatement], expected: Expected) -> None:
    for stage_idx, statement in enumerate(statements):
        if statement.compute_ns == 0:
            raise AttestationError("no_work", "says that it computed in no time", stage_idx)


class ClaimsLayers(Protocol):
    """Any account of a stage that says which layers it ran."""

    @property
    def layer_start(self) -> int: ...
    @property
    def layer_end(self) -> int: ...


def check_tiling(claims: Sequence[ClaimsLayers]) -> None:
    """The layer ranges follow on each other from 0.

    Raises:
        AttestationError: one does not; named by its stage.
    """
    at = 0
    for stage_idx, claim in enumerate(claims):
        if claim.layer_start != at or claim.layer_end <= at:
            raise AttestationError(
                "layers",
                f"claims layers {claim.layer_start}..{claim.layer_end}; the one before it ends "
                f"at {at}",
                stage_idx,
            )
        at = claim.layer_end


def _check_depth(statements: Sequence[StageStatement], expected: Expected) -> None:
    """They end where the model does, by its own config."""
    end = statements[-1].layer_end
    if end != expected.num_layers:
        raise AttestationError(
            "layers",
            f"ends at layer {end}; the model has {expected.num_layers}",
            len(statements) - 1,
        )


def _check_roots(statements: Sequence[StageStatement], expected: Expected) -> None:
    """What one sent is what the next received, from the coordinator on."""
    sent, sender = expected.first_root, "the coordinator"
    for stage_idx, statement in enumerate(statements):
        if statement.in_root != sent:
            raise AttestationError(
                "chain",
                f"received {statement.in_root[:16]}…; {sender} sent {sent[:16]}…",
                stage_idx,
            )
        sent, sender = statement.out_root, f"stage {stage_idx}"


def _check_last_root(statements: Sequence[StageStatement], expected: Expected) -> None:
    """What the last one sent is what the coordinator received."""
    sent = statements[-1].out_root
    if sent != expected.last_root:
        raise AttestationError(
            "chain",
            f"sent {sent[:16]}…; the coordinator received {expected.last_root[:16]}…",
            len(statements) - 1,
        )


def _check_who_answers(statements: Sequence[StageStatement], expected: Expected) -> None:
    for stage_idx, statement in enumerate(statements[:-1]):
        if statement.answers is not None:
            raise AttestationError("answers", "answers, and is not the last stage", stage_idx)


def _check_answered_frames(statements: Sequence[StageStatement], expected: Expected) -> None:
    """The last stage answered the applied frames, and no others."""
    last_idx, answers = len(statements) - 1, statements[-1].answers
    if answers is None:
        raise AttestationError("answers", "the last stage states no answers", last_idx)
    keys = [(answer.epoch, answer.start) for answer in answers]
    applied: list[FrameKey] = [(epoch, start) for epoch, start, _ in expected.frames]
    if keys != applied:
        raise AttestationError("answers", "its answers are not to the applied frames", last_idx)


def _check_output(statements: Sequence[StageStatement], expected: Expected) -> None:
    """The committed output is what the last stage says that it answered."""
    last_idx, answers = len(statements) - 1, statements[-1].answers or ()
    # A position that was answered twice was refuted in between: the later answer stands.
    answered: dict[int, int] = {}
    for answer in answers:
        tree = expected.trees.get((answer.epoch, answer.start))
        ids = answer.ids if tree is None else _chosen_ids(answer, tree, last_idx)
        answered.update(enumerate(ids, start=answer.answer_from + 1))
    for position, token in enumerate(expected.output_ids, start=expected.prompt_len):
        if answered.get(position) != token:
            raise AttestationError(
                "answers",
                f"answered {answered.get(position)} for position {position}; the output has "
                f"{token}",
                last_idx,
            )


def _chosen_ids(answer: Answer, tree: SentTree, stage_idx: int) -> list[int]:
    """What the answers to a tree come to: the root's, and those of the nodes that were right."""
    if not len(answer.ids) - 1 == len(tree.parents) == len(tree.node_ids):
        raise AttestationError(
            "answers",
            f"{len(answer.ids)} answers to frame (epoch {answer.epoch}, start {answer.start}); it "
            f"had a root and {len(tree.parents)} nodes of {len(tree.node_ids)} tokens",
            stage_idx,
        )
    path = followed(tree.parents, tree.node_ids, answer.ids)
    return [answer.ids[0], *(answer.ids[idx + 1] for idx in path)]


# In this order; each is a fault that no other one sees (tests/trust/test_verify.py).
GUARDS: Mapping[str, Guard] = {
    "nonce": _says("replay", "nonce", lambda it: it.job_nonce, lambda known, _: known.job_nonce),
    "segment": _says("segment", "segment", lambda it: it.segment, lambda known, _: known.segment),
    "place": _says("place", "stage", lambda it: it.stage_idx, lambda _, stage_idx: stage_idx),
    "ring": _says(
        "place", "number of stages", lambda it: it.num_stages, lambda known, _: len(known.signers)
    ),
    "model": _says(
        "model", "model", lambda it: it.model_digest, lambda known, _: known.model_digest
    ),
    "frames": _says(
        "work", "number of frames", lambda it: it.frames, lambda known, _: len(known.frames)
    ),
    "positions": _says(
        "work",
        "number of positions",
        lambda it: it.positions,
        lambda known, _: sum(positions_len for _, _, positions_len in known.frames),
    ),
    "work": _check_work,
    "tiling": lambda statements, _: check_tiling(statements),
    "depth": _check_depth,
    "chain": _check_roots,
    "last root": _check_last_root,
    "who answers": _check_who_answers,
    "answered frames": _check_answered_frames,
    "output": _check_output,
}
