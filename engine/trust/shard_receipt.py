"""Reads the public `shard-receipt/1` format of the ring engine this suite studies.

One receipt a stage: Ed25519 over JSON with sorted keys and no spaces, all fields but `sig`; keys
and signatures in base64. Guarantees: fails closed and names the first fault; the number of layers
is the caller's; with keys given, only those may sign. What the format cannot prove is not claimed:
it binds no token, and without pinned keys anybody may have signed. Must never know our own format.

Source: `leyten/shard`, its receipts and verifier (see README, related work).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity, verify_raw
from engine.trust.verify import AttestationError, check_tiling

SCHEMA = "shard-receipt/1"
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ShardReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage's receipt. `n_chunks` counts frames; `nonce` may be missing in old ones."""

    swarm_id: str
    job_id: str
    layer_start: Count
    layer_end: Count
    n_chunks: Count
    in_root: Digest
    out_root: Digest
    pubkey: str
    sig: str
    schema: str = SCHEMA
    nonce: str | None = None


def verify_file(
    path: Path, num_layers: int, signers: Sequence[PublicIdentity] = ()
) -> list[ShardReceipt]:
    """Check a file: a list of receipts, or an object that holds one as `receipts`.

    Raises:
        ReceiptError: it cannot be read, or the first fault, by file.
    """
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ReceiptError(f"{path}: cannot be read: {error}") from error
    receipts = tree.get("receipts") if isinstance(tree, dict) else tree
    if not isinstance(receipts, list):
        raise ReceiptError(f"{path}: holds no list of receipts")
    try:
        return verify_shard_receipts(receipts, num_layers, None, signers)
    except AttestationError as error:
        raise ReceiptError(f"{path}: {error}") from error


def verify_shard_receipts(
    receipts: Sequence[object],
    num_layers: int,
    nonce: str | None = None,
    signers: Sequence[PublicIdentity] = (),
) -> list[ShardReceipt]:
    """Check a job's receipts, in any order.

    Args:
        receipts: as JSON gives them.
        nonce: the job's; None: they must only agree on one.
        signers: whom to believe; empty: anybody, each once.

    Returns:
        The receipts by layer.

    Raises:
        AttestationError: the first fault.
    """
    if not receipts:
        raise AttestationError("missing", "there is no receipt")
    found = [_authentic(receipt, idx) for idx, receipt in enumerate(receipts)]
    found.sort(key=lambda receipt: receipt.layer_start)
    _check_signers(found, signers)
    _check_one_job(found, nonce)
    _check_layers(found, num_layers)
    for stage_idx, (before, after) in enumerate(pairwise(found), start=1):
        if before.out_root != after.in_root:
            raise AttestationError(
                "chain",
                f"received {after.in_root[:16]}…; stage {stage_idx - 1} sent "
                f"{before.out_root[:16]}…",
                stage_idx,
            )
    return found


def _authentic(tree: object, idx: int) -> ShardReceipt:
    try:
        receipt = msgspec.convert(tree, ShardReceipt)
    except msgspec.ValidationError as error:
        raise AttestationError("form", f"receipt {idx}: {error}") from error
    if receipt.schema != SCHEMA:
        raise AttestationError("form", f"receipt {idx} is a {receipt.schema!r}, not {SCHEMA!r}")
    try:
        key = base64.b64decode(receipt.pubkey, validate=True)
        signature = base64.b64decode(receipt.sig, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AttestationError("signature", f"receipt {idx}: not base64: {error}") from error
    assert isinstance(tree, dict), "it converted"
    if not verify_raw(key, signature, signed_bytes(tree)):
        raise AttestationError("signature", f"receipt {idx}: its signature does not hold")
    return receipt


def signed_bytes(tree: dict[str, Any]) -> bytes:
    """What such a receipt signs: every field that it has but `sig`."""
    fields = {name: value for name, value in tree.items() if name != "sig"}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def _check_signers(receipts: Sequence[ShardReceipt], signers: Sequence[PublicIdentity]) -> None:
    keys = [receipt.pubkey for receipt in receipts]
    for stage_idx, key in enumerate(keys):
        if key in keys[:stage_idx]:
            raise AttestationError("duplicate", "signed by a key that signed before", stage_idx)
    known = [base64.b64encode(signer.raw).decode() for signer in signers]
    if not known:
        return
    for stage_idx, key in enumerate(keys):
        if key not in known:
            raise AttestationError("unknown_signer", f"key {key} is not among them", stage_idx)
    missing = [key for key in known if key not in keys]
    if missing:
        raise AttestationError("missing", f"no receipt of key {missing[0]}")


def _check_one_job(receipts: Sequence[ShardReceipt], nonce: str | None) -> None:
    first = receipts[0]
    wanted = first.nonce if nonce is None else nonce
    for stage_idx, receipt in enumerate(receipts):
        if receipt.nonce is None or receipt.nonce != wanted:
            raise AttestationError(
                "replay", f"says nonce {receipt.nonce}; the job's is {wanted}", stage_idx
            )
        if (receipt.swarm_id, receipt.job_id) != (first.swarm_id, first.job_id):
            raise AttestationError("replay", "is of another swarm or job", stage_idx)
        if receipt.n_chunks == 0:
            raise AttestationError("no_work", "says that it computed nothing", stage_idx)
        if receipt.n_chunks != first.n_chunks:
            raise AttestationError(
                "work",
                f"says {receipt.n_chunks} frames; stage 0 says {first.n_chunks}",
                stage_idx,
            )


def _check_layers(receipts: Sequence[ShardReceipt], num_layers: int) -> None:
    check_tiling(receipts)
    end = receipts[-1].layer_end
    if end != num_layers:
        raise AttestationError("layers", f"they end at layer {end}; the model has {num_layers}")
