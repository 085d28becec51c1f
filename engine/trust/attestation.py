"""What a stage states about a job: digests of frames, roots over them, one signed statement.

A frame's digest is SHA-256 over its kind and its payload as the peers exchange it: hidden states
packed for the wire, before sealing. A root is SHA-256 over the digests of the frames whose replies
the coordinator applied, in that order, so that what a stage sent is what the next one received,
root by root, whatever was dropped where. Guarantees: a statement is canonical JSON (RFC 8785),
signed with its type over the exact bytes; parsing refuses unknown, missing and mistyped fields.
Must never know sockets, models or what a number in a frame means. `engine.trust.verify` checks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
import rfc8785

from engine.errors import ReceiptError
from engine.trust.identity import Identity

STATEMENT_TYPE = "longhaul-stage-statement/1"
_ROOT_DOMAIN = b"longhaul-root/1"
FrameKey = tuple[int, int]  # epoch, start: names one frame of a job
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Nonce = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})+$")]


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the last stage answered one frame: `ids[j]` for position `answer_from + j + 1`."""

    epoch: Count
    start: Count
    answer_from: Count
    ids: tuple[Count, ...]


class StageStatement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage's account of one job.

    Attributes:
        job_nonce: the coordinator's, fresh for every job.
        segment: 0, or how often the job was resumed on a new ring before; digests restart then.
        frames: how many frames the roots are over.
        positions: how many positions those frames held.
        in_root, out_root: over the frames as received and as sent.
        hash_ns, compute_ns: spent on digests and on the layers, in the whole job.
        answers: the last stage's, one a frame; None from every other.
    """

    job_nonce: Nonce
    segment: Count
    stage_idx: Count
    num_stages: Count
    layer_start: Count
    layer_end: Count
    model_digest: Digest
    frames: Count
    positions: Count
    in_root: Digest
    out_root: Digest
    hash_ns: Count
    compute_ns: Count
    answers: tuple[Answer, ...] | None


class SignedStatement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A statement as it travels and as receipts keep it: the exact bytes, who signed, how."""

    key_id: str
    payload: str  # base64 of the canonical bytes
    signature: str  # base64, 64 bytes


def frame_digest(kind: int, payload: bytes | memoryview) -> bytes:
    """SHA-256 of one frame, 32 bytes."""
    digest = hashlib.sha256(bytes((kind,)))
    digest.update(payload)
    return digest.digest()


def root_of(digests: Sequence[bytes]) -> str:
    """The root over frames in order, as hex; their number is part of it."""
    root = hashlib.sha256(_ROOT_DOMAIN + len(digests).to_bytes(8, "big"))
    for digest in digests:
        root.update(digest)
    return root.hexdigest()


def sign_statement(statement: StageStatement, identity: Identity) -> str:
    """One line of JSON: the bytes, the key's fingerprint and the signature."""
    body = rfc8785.dumps(msgspec.to_builtins(statement))
    return _envelope(identity.key_id, body, identity.sign(STATEMENT_TYPE, body))


def _envelope(key_id: str, body: bytes, signature: bytes) -> str:
    signed = SignedStatement(
        key_id=key_id,
        payload=base64.b64encode(body).decode(),
        signature=base64.b64encode(signature).decode(),
    )
    return msgspec.json.encode(signed).decode()


def open_envelope(text: str) -> tuple[SignedStatement, bytes, bytes]:
    """Take a signed statement apart; nothing of it is believed yet.

    Returns:
        The envelope, the signed bytes and the signature.

    Raises:
        ReceiptError: it is no such envelope.
    """
    try:
        signed = msgspec.json.decode(text, type=SignedStatement)
        body = base64.b64decode(signed.payload, validate=True)
        signature = base64.b64decode(signed.signature, validate=True)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise ReceiptError(f"not a signed statement: {error}") from error
    if _envelope(signed.key_id, body, signature) != text:  # base64 and JSON have several spellings
        raise ReceiptError("not a signed statement in its one spelling")
    return signed, body, signature


def parse_statement(body: bytes) -> StageStatement:
    """Read the signed bytes.

    Raises:
        ReceiptError: they are no statement, or not its canonical form.
    """
    try:
        statement = msgspec.json.decode(body, type=StageStatement)
        canonical = rfc8785.dumps(msgspec.to_builtins(statement))
    except (msgspec.MsgspecError, rfc8785.CanonicalizationError) as error:
        raise ReceiptError(f"not a stage's statement: {error}") from error
    if canonical != body:
        raise ReceiptError("not a stage's statement in canonical form")
    return statement
