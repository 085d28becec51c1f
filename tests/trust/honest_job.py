"""Test only: a job that three honest stages attest, and what a verifier knows of it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import rfc8785

from engine.trust.attestation import (
    STATEMENT_TYPE,
    Answer,
    StageStatement,
    root_of,
    sign_statement,
)
from engine.trust.identity import Identity
from engine.trust.verify import Expected

NUM_STAGES = 3
PROMPT_LEN = 6
MODEL = hashlib.sha256(b"model").hexdigest()
NONCE = "00ff"
# (epoch, start, positions), answer_from, answered ids. Position 9 is answered twice: refuted.
FRAMES = (
    ((0, 0, 4), 4, ()),
    ((0, 4, 2), 5, (40,)),
    ((0, 6, 3), 6, (41, 42, 99)),
    ((1, 8, 2), 8, (43, 44)),
)
OUTPUT_IDS = (40, 41, 42, 43, 44)  # positions 6 …


def hop_digests(hop: int) -> list[bytes]:
    """What crossed one of the N + 1 links, frame by frame."""
    return [hashlib.sha256(f"{hop} {frame}".encode()).digest() for frame, _, _ in FRAMES]


@dataclass(frozen=True)
class HonestJob:
    """Statements and the verifier's side of them."""

    identities: tuple[Identity, ...]
    statements: tuple[StageStatement, ...]
    expected: Expected

    def signed(self) -> list[str]:
        return [
            sign_statement(statement, identity)
            for statement, identity in zip(self.statements, self.identities, strict=True)
        ]

    def lying(self, liar: int, **changes: object) -> HonestJob:
        """One stage signs something else."""
        statements = list(self.statements)
        statements[liar] = msgspec.structs.replace(statements[liar], **changes)
        return replace(self, statements=tuple(statements))

    def knowing(self, **changes: object) -> HonestJob:
        """The verifier knows something else."""
        return replace(self, expected=replace(self.expected, **changes))


def make_job(folder: Path) -> HonestJob:
    identities = tuple(Identity.load_or_create(folder / f"{idx}.key") for idx in range(NUM_STAGES))
    roots = [root_of(hop_digests(hop)) for hop in range(NUM_STAGES + 1)]
    answers = tuple(
        Answer(epoch, start, answer_from, ids) for (epoch, start, _), answer_from, ids in FRAMES
    )
    statements = tuple(
        StageStatement(
            job_nonce=NONCE,
            segment=0,
            stage_idx=idx,
            num_stages=NUM_STAGES,
            layer_start=4 * idx,
            layer_end=4 * idx + 4,
            model_digest=MODEL,
            frames=len(FRAMES),
            positions=sum(frame[2] for frame, _, _ in FRAMES),
            in_root=roots[idx],
            out_root=roots[idx + 1],
            hash_ns=5,
            compute_ns=1000,
            answers=answers if idx == NUM_STAGES - 1 else None,
        )
        for idx in range(NUM_STAGES)
    )
    expected = Expected(
        signers=[identity.public for identity in identities],
        num_layers=4 * NUM_STAGES,
        model_digest=MODEL,
        job_nonce=NONCE,
        frames=[frame for frame, _, _ in FRAMES],
        first_root=roots[0],
        last_root=roots[-1],
        prompt_len=PROMPT_LEN,
        output_ids=OUTPUT_IDS,
    )
    return HonestJob(identities, statements, expected)


def sign_body(body: bytes, identity: Identity, type_name: str = STATEMENT_TYPE) -> str:
    """An envelope around any bytes, properly signed."""
    return msgspec.json.encode(
        {
            "key_id": identity.key_id,
            "payload": base64.b64encode(body).decode(),
            "signature": base64.b64encode(identity.sign(type_name, body)).decode(),
        }
    ).decode()


def body_of(statement: StageStatement, extra: Sequence[tuple[str, object]] = ()) -> bytes:
    """Canonical bytes, with further fields."""
    return rfc8785.dumps({**msgspec.to_builtins(statement), **dict(extra)})
