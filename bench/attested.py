"""Verifies the attestations that a receipt carries: what `engine verify` and `bench check` ask.

Guarantees: what statements are held against comes from the receipt's own rows, counted anew, and
from keys that the caller trusts; a receipt that was asked for attestation and carries none fails.
Must never know how a job was run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.receipt import load_signed
from bench.schema import AttestedRow, Receipt
from engine.errors import ReceiptError
from engine.trust.attestation import StageStatement
from engine.trust.identity import PublicIdentity
from engine.trust.verify import AttestationError, Expected, SentTree, verify_job

Keys = Mapping[str, PublicIdentity]


def expected_of(receipt: Receipt, keys: Keys, used_nonces: frozenset[str]) -> Expected:
    """What the receipt's own rows say that statements must agree with.

    Raises:
        AttestationError: the job was not attested, or a signer of its ring is nobody known.
    """
    attested = receipt.attested
    if not receipt.requested.attestation:
        raise AttestationError("missing", "the job did not ask for attestation")
    if not isinstance(attested, AttestedRow):
        raise AttestationError("missing", "the job asked for attestation and was not attested")
    signers = receipt.ring.signers or []
    if len(signers) != receipt.ring.num_stages:
        raise AttestationError(
            "missing", f"{len(signers)} signers are pinned for {receipt.ring.num_stages} stages"
        )
    unknown = [key_id for key_id in signers if key_id not in keys]
    if unknown:
        raise AttestationError("unknown_signer", f"no public key {unknown[0]} is at hand")
    return Expected(
        signers=[keys[key_id] for key_id in signers],
        num_layers=receipt.model.num_layers,
        model_digest=receipt.model.model_digest,
        job_nonce=receipt.job_nonce,
        frames=[
            (frame.epoch, frame.start, frame.positions_len)
            for frame in receipt.frames
            if frame.outcome in ("prefill", "applied") and frame.received_ns is not None
        ],
        first_root=attested.first_root,
        last_root=attested.last_root,
        prompt_len=len(receipt.prompt_ids),
        output_ids=receipt.output_ids,
        segment=attested.segment,
        used_nonces=used_nonces,
        trees={
            (frame.epoch, frame.start): SentTree(frame.parents, frame.node_ids or ())
            for frame in receipt.frames
            if frame.parents
        },
    )


def verify_receipt(
    receipt: Receipt, keys: Keys, used_nonces: frozenset[str] = frozenset()
) -> list[StageStatement]:
    """Check one receipt's attestations.

    Raises:
        AttestationError: the first fault.
    """
    return verify_job(receipt.attestations, expected_of(receipt, keys, used_nonces))


def attestation_faults(receipts: Mapping[int, Receipt], keys: Keys) -> Iterator[tuple[int, str]]:
    """Of an experiment's receipts, by job: what does not hold; nonces may be used once."""
    used: set[str] = set()
    for job_idx, receipt in sorted(receipts.items()):
        is_attested = isinstance(receipt.attested, AttestedRow)
        if not receipt.requested.attestation:
            if is_attested or receipt.attestations:
                yield job_idx, "carries attestations that nobody asked for"
        elif is_attested or receipt.status == "ok":
            try:
                verify_receipt(receipt, keys, frozenset(used))
            except AttestationError as error:
                if receipt.failure is None or receipt.failure.code != "attestation":
                    yield job_idx, str(error)
            used.add(receipt.job_nonce)


def verify_files(paths: list[Path], keys: dict[str, PublicIdentity]) -> Iterator[str]:
    """Receipts on disk, one line each; their own signatures are checked first.

    Raises:
        ReceiptError: named by file: the first one that does not hold.
    """
    used: set[str] = set()
    for path in paths:
        receipt, _ = load_signed(path, Receipt, keys)
        try:
            statements = verify_receipt(receipt, keys, frozenset(used))
        except AttestationError as error:
            raise ReceiptError(f"{path}: {error}") from error
        used.add(receipt.job_nonce)
        hashing = sum(statement.hash_ns for statement in statements)
        computing = sum(statement.compute_ns for statement in statements)
        yield (
            f"{path}: {len(statements)} stages attest {statements[0].frames} frames of "
            f"{statements[0].positions} positions over layers 0..{statements[-1].layer_end}; "
            f"hashing {hashing / computing:.3%} of computing"
        )
