"""Plan and receipts of one experiment, read from their folder and checked.

Guarantees: a document that is returned had its signature by a known key checked over its exact
bytes and belongs to the plan; a folder that mixes experiments, or holds foreign, damaged or
contradictory files, is refused by file name. Checks that these very bytes passed before, by this
very code, are not repeated (`analysis.receipt_cache`). Must never know metrics or comparisons.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from analysis.checks import check_identities, check_membership
from analysis.folders import RECEIPTS_FOLDER, SIGNATURE_ENDING, refuse_foreign_files
from analysis.receipt_cache import checks_key, is_known, keep, source_digest
from bench.receipt import load_signed
from bench.schema import Plan, Receipt
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity

PLAN_NAME = "plan.json"
# Taken when this is imported: a source that is edited later is not what checks here.
CHECKS = source_digest(__name__)


@dataclass(frozen=True, slots=True)
class Documents:
    """A plan and its receipts by job_idx, each with the SHA-256 of its bytes, hex."""

    plan: Plan
    plan_digest: str
    receipts: dict[int, tuple[Receipt, str]]


def load_documents(folder: Path, keys: dict[str, PublicIdentity]) -> Documents:
    """Read an experiment's documents and check them, unless they are known to pass.

    Raises:
        ReceiptError: named by file: foreign, unsigned, altered, misplaced, duplicate or
            contradictory.
    """
    refuse_foreign_files(folder)
    files = _read_files(folder)
    digests = {name: _sha256(body) for name, body in files.items()}
    key = checks_key(digests, keys, CHECKS)
    with _no_collection():
        if is_known(key, digests):
            return _decoded(files, digests)
        checked = _checked(folder, keys)
        if _read_files(folder) == files:  # what was checked is what has the digests
            keep(key, digests)
    return checked


def _read_files(folder: Path) -> dict[str, bytes]:
    """Every document and signature by its name in the folder: the plan's, then jobs in order.

    Raises:
        ReceiptError: one cannot be read.
    """
    receipts = sorted((folder / RECEIPTS_FOLDER).iterdir(), key=_job_of)
    bodies = {}
    for path in (*sorted(folder.glob("plan.*json")), *receipts):
        try:
            bodies[path.relative_to(folder).as_posix()] = path.read_bytes()
        except OSError as error:
            raise ReceiptError(f"{path}: cannot be read: {error.strerror}") from error
    return bodies


def _decoded(files: dict[str, bytes], digests: dict[str, str]) -> Documents:
    """Documents out of bytes that passed the checks."""
    receipts = {}
    for name, body in files.items():
        if name.startswith(f"{RECEIPTS_FOLDER}/") and not name.endswith(SIGNATURE_ENDING):
            receipt = msgspec.json.decode(body, type=Receipt)
            receipts[receipt.position.job_idx] = (receipt, digests[name])
    plan = msgspec.json.decode(files[PLAN_NAME], type=Plan)
    return Documents(plan, digests[PLAN_NAME], receipts)


def _checked(folder: Path, keys: dict[str, PublicIdentity]) -> Documents:
    """Documents that pass every check now."""
    plan, plan_body = load_signed(folder / PLAN_NAME, Plan, keys)
    plan_digest = _sha256(plan_body)
    loaded: dict[int, tuple[Receipt, str]] = {}
    nonces: dict[str, Path] = {}
    names = (folder / RECEIPTS_FOLDER).iterdir()
    documents = (path for path in names if not path.name.endswith(SIGNATURE_ENDING))
    for path in sorted(documents, key=_job_of):
        receipt, body = load_signed(path, Receipt, keys)
        try:
            check_membership(receipt, int(path.stem), plan, plan_digest)
            check_identities(receipt)
        except ReceiptError as error:
            raise ReceiptError(f"{path}: {error}") from error
        if receipt.job_nonce in nonces:
            first = nonces[receipt.job_nonce].name
            raise ReceiptError(f"{path}: duplicate: the same job (nonce) as {first}")
        nonces[receipt.job_nonce] = path
        loaded[receipt.position.job_idx] = (receipt, _sha256(body))
    return Documents(plan, plan_digest, loaded)


def _job_of(path: Path) -> tuple[int, str]:
    """Order of files by job, a document before its signature."""
    return int(path.name.partition(".")[0]), path.name


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection meanwhile.

    Documents are trees, of which nothing is garbage; looking for it takes most of the time in which
    they are decoded.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
