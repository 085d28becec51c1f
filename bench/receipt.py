"""Receipts, plans and studies on disk: canonical bytes, digests, signatures.

Guarantees: a file written here is RFC 8785 canonical JSON with a detached Ed25519 signature beside
it; a file read here had its signature checked over its exact bytes *before* parsing, and parses
strictly. Must never know the engine (but for `engine.trust.identity`), torch or how anything was
measured.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
import rfc8785

from bench.schema import (
    STUDY_SCHEMA,
    Plan,
    PlanSchema,
    Receipt,
    ReceiptSchema,
    Signature,
    Study,
)
from engine.errors import ReceiptError
from engine.trust.identity import Identity, PublicIdentity

RECEIPT_ID_LEN = 16  # hex digits of the SHA-256 of the receipt's bytes

# What a document of this kind may call itself; readers take every version, writers the newest.
SCHEMAS_OF: Mapping[type[Receipt | Plan | Study], tuple[str, ...]] = {
    Receipt: get_args(ReceiptSchema),
    Plan: get_args(PlanSchema),
    Study: (STUDY_SCHEMA,),
}

DocumentT = TypeVar("DocumentT", Receipt, Plan, Study)


def canonical_bytes(document: msgspec.Struct) -> bytes:
    """RFC 8785 bytes of a struct.

    Raises:
        ReceiptError: a value has no canonical form (a float, an integer beyond 2**53).
    """
    builtins = msgspec.to_builtins(document)
    _refuse_floats(builtins, "$")
    try:
        return rfc8785.dumps(builtins)
    except rfc8785.CanonicalizationError as error:
        raise ReceiptError(f"not canonical: {error}") from error


def receipt_id(body: bytes) -> str:
    """The id of a receipt: the start of its bytes' SHA-256."""
    return hashlib.sha256(body).hexdigest()[:RECEIPT_ID_LEN]


def write_signed(path: Path, document: DocumentT, identity: Identity) -> str:
    """Write a document and its signature, each atomically, signature last.

    A reader that finds the signature finds the whole document; a crash between the two leaves a
    document that `load_signed` refuses as unsigned and the harness runs again.

    Returns:
        The SHA-256 of the document's bytes, hex.

    Raises:
        ReceiptError: the document does not fit its own schema; nothing was written.
    """
    body = canonical_bytes(document)
    parse_document(body, type(document))  # what its own reader would refuse is not written
    digest = hashlib.sha256(body).hexdigest()
    signature = Signature(
        key_id=identity.key_id,
        type=document.schema,
        sha256=digest,
        signature=base64.b64encode(identity.sign(document.schema, body)).decode(),
    )
    _write_atomically(path, body)
    _write_atomically(signature_path(path), canonical_bytes(signature))
    return digest


def signature_path(path: Path) -> Path:
    """`x.json` → `x.sig.json`."""
    return path.with_name(f"{path.stem}.sig.json")


def load_signed(
    path: Path, kind: type[DocumentT], keys: dict[str, PublicIdentity]
) -> tuple[DocumentT, bytes]:
    """Read a document whose signature, by a known key, covers its exact bytes.

    Returns:
        The document and its bytes.

    Raises:
        ReceiptError: named by file: missing or damaged signature, unknown key, altered bytes,
            bytes that are not canonical, or a document that does not fit the schema.
    """
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ReceiptError(f"{path}: cannot be read: {error.strerror}") from error
    signature = proven_signature(path, body, keys)
    if signature.type not in SCHEMAS_OF[kind]:
        wanted = " or ".join(SCHEMAS_OF[kind])
        raise ReceiptError(f"{path}: signed as {signature.type!r}, not as {wanted}")
    try:
        document = parse_document(body, kind)
    except ReceiptError as error:
        raise ReceiptError(f"{path}: {error}") from error
    if document.schema != signature.type:
        raise ReceiptError(f"{path}: is a {document.schema}, signed as {signature.type!r}")
    return document, body


def proven_signature(path: Path, body: bytes, keys: Mapping[str, PublicIdentity]) -> Signature:
    """The signature beside a document, by a known key and over these bytes.

    It says which schema was signed; whether the bytes fit it is `load_signed`'s question.

    Raises:
        ReceiptError: named by file: missing or damaged signature, unknown key, other bytes.
    """
    signature, raw_signature = _read_signature(path)
    if signature.key_id not in keys:
        known = ", ".join(sorted(keys)) or "none"
        raise ReceiptError(f"{path}: signed by unknown key {signature.key_id}; known: {known}")
    if hashlib.sha256(body).hexdigest() != signature.sha256:
        signed_by = signature_path(path).name
        raise ReceiptError(f"{path}: its bytes are not the ones that {signed_by} signs")
    try:
        keys[signature.key_id].verify(signature.type, body, raw_signature)
    except ReceiptError as error:
        raise ReceiptError(f"{path}: {error}") from error
    return signature


def signed_kind(path: Path) -> type[Receipt | Plan | Study]:
    """What a document's signature says that it is; `load_signed` proves it.

    Raises:
        ReceiptError: missing or damaged signature, or one of an unknown type.
    """
    signature, _ = _read_signature(path)
    for kind, schemas in SCHEMAS_OF.items():
        if signature.type in schemas:
            return kind
    known = ", ".join(schema for schemas in SCHEMAS_OF.values() for schema in schemas)
    raise ReceiptError(f"{path}: signed as {signature.type!r}; known: {known}")


def parse_document(body: bytes, kind: type[DocumentT]) -> DocumentT:
    """Parse strictly and insist on canonical bytes.

    Raises:
        ReceiptError: the bytes do not fit the schema or are not in canonical form.
    """
    try:
        document = msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ReceiptError(f"does not fit the schema {kind.__name__}: {error}") from error
    # Also catches duplicate keys, which a JSON parser silently merges.
    if canonical_bytes(document) != body:
        raise ReceiptError("its bytes are not in canonical form (RFC 8785)")
    return document


def _refuse_floats(value: object, where: str) -> None:
    if isinstance(value, float):
        raise ReceiptError(f"a float at {where}: receipts hold integers and decimal strings")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_floats(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for idx, item in enumerate(value):
            _refuse_floats(item, f"{where}[{idx}]")


def _read_signature(path: Path) -> tuple[Signature, bytes]:
    """The signature file beside a document, and the raw signature in it."""
    signature_file = signature_path(path)
    if not path.exists():
        raise ReceiptError(f"{path}: cannot be read: no such file")
    if not signature_file.exists():
        raise ReceiptError(f"{path}: unsigned: {signature_file.name} is missing")
    try:
        signature = msgspec.json.decode(signature_file.read_bytes(), type=Signature)
        return signature, base64.b64decode(signature.signature, validate=True)
    except (msgspec.DecodeError, ValueError) as error:
        raise ReceiptError(f"{signature_file}: not a signature file: {error}") from error


def _write_atomically(path: Path, body: bytes) -> None:
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    with staging.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
