"""Receipts on disk: canonical, signed, strict, and told by file when they are not."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from bench.receipt import (
    canonical_bytes,
    json_schema,
    load_signed,
    parse_document,
    receipt_id,
    signature_path,
    write_signed,
)
from bench.schema import Plan, Receipt, Signature
from engine.errors import ReceiptError
from engine.trust.identity import Identity
from tests.bench.receipt_builder import make_plan, make_receipt

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    plan = make_plan()
    return make_receipt(plan, "0" * 64, plan.jobs[0], None)


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity.load_or_create(tmp_path / "keys" / "harness.key")


@pytest.fixture
def path(tmp_path: Path, receipt: Receipt, identity: Identity) -> Path:
    write_signed(tmp_path / "0000.json", receipt, identity)
    return tmp_path / "0000.json"


def load(path: Path, identity: Identity) -> Receipt:
    return load_signed(path, Receipt, {identity.key_id: identity.public})[0]


def resign(path: Path, body: bytes, identity: Identity, type_name: str) -> None:
    """Sign any bytes as any type."""
    signature = Signature(
        key_id=identity.key_id,
        type=type_name,
        sha256=hashlib.sha256(body).hexdigest(),
        signature=base64.b64encode(identity.sign(type_name, body)).decode(),
    )
    path.write_bytes(body)
    signature_path(path).write_bytes(canonical_bytes(signature))


def test_round_trip(path: Path, receipt: Receipt, identity: Identity) -> None:
    """Catches a field that does not come back, and an id that is not of the bytes on disk."""
    loaded, body = load_signed(path, Receipt, {identity.key_id: identity.public})
    assert loaded == receipt
    assert body == path.read_bytes() == canonical_bytes(receipt)
    assert receipt_id(body) == hashlib.sha256(body).hexdigest()[:16]
    assert {entry.name for entry in path.parent.glob("*.json*")} == {"0000.json", "0000.sig.json"}
    plan = make_plan()
    digest = write_signed(path.with_name("plan.json"), plan, identity)
    keys = {identity.key_id: identity.public}
    assert load_signed(path.with_name("plan.json"), Plan, keys)[0] == plan
    assert digest == hashlib.sha256(path.with_name("plan.json").read_bytes()).hexdigest()


def test_canonical_bytes_are_those_of_rfc_8785(receipt: Receipt) -> None:
    """Catches another key order or spacing: digests would not compare between tools."""
    body = canonical_bytes(receipt)
    expected = json.dumps(
        msgspec.to_builtins(receipt), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    assert body == expected.encode()


def test_every_altered_byte_is_refused(path: Path, identity: Identity) -> None:
    """Catches a part of the file outside the signature."""
    body = path.read_bytes()
    for at in range(0, len(body), 61):
        altered = bytearray(body)
        altered[at] ^= 1
        path.write_bytes(bytes(altered))
        with pytest.raises(ReceiptError, match=r"0000\.json"):
            load(path, identity)
    for cut in (b"", body[:-1], body + b"\n"):
        path.write_bytes(cut)
        with pytest.raises(ReceiptError, match=r"0000\.json"):
            load(path, identity)


def test_altered_digest_does_not_help(path: Path, identity: Identity) -> None:
    """Catches a check that stops at the SHA-256 in the signature file, which anyone can write."""
    body = path.read_bytes().replace(b'"epoch":0', b'"epoch":1', 1)
    path.write_bytes(body)
    tree = msgspec.json.decode(signature_path(path).read_bytes())
    tree["sha256"] = hashlib.sha256(body).hexdigest()
    signature_path(path).write_bytes(msgspec.json.encode(tree))
    with pytest.raises(ReceiptError, match="signature"):
        load(path, identity)


def test_wrong_and_unknown_keys(path: Path, identity: Identity, tmp_path: Path) -> None:
    """Catches a key taken from the file instead of from the trusted ones."""
    other = Identity.load_or_create(tmp_path / "other.key")
    with pytest.raises(ReceiptError, match=f"unknown key {identity.key_id}.*{other.key_id}"):
        load_signed(path, Receipt, {other.key_id: other.public})
    with pytest.raises(ReceiptError, match="known: none"):
        load_signed(path, Receipt, {})
    with pytest.raises(ReceiptError, match="does not match"):
        load_signed(path, Receipt, {identity.key_id: other.public})


def test_unsigned_and_damaged_signatures(path: Path, identity: Identity) -> None:
    """Catches a document that is read because nothing speaks against it."""
    kept = signature_path(path).read_bytes()
    damaged = [b"", b"{}", b"?", kept[:-2], kept.replace(b'"key_id"', b'"key"'), b"\xff"]
    damaged.append(kept.replace(b'"signature":"', b'"signature":"!'))
    for body in damaged:
        signature_path(path).write_bytes(body)
        with pytest.raises(ReceiptError, match=r"0000\.sig\.json"):
            load(path, identity)
    signature_path(path).unlink()
    with pytest.raises(ReceiptError, match=r"unsigned.*0000\.sig\.json"):
        load(path, identity)


def test_bytes_signed_as_another_type_are_refused(path: Path, identity: Identity) -> None:
    """Catches type confusion: a receipt's bytes signed as a plan, or as anything else, by a key
    that also signs other things. The type must be the one the reader wants."""
    for type_name in ("longhaul-plan/1", "anything"):
        resign(path, path.read_bytes(), identity, type_name)
        with pytest.raises(ReceiptError):
            load(path, identity)


def test_plan_is_no_receipt(path: Path, identity: Identity) -> None:
    """Catches a document read as another kind."""
    write_signed(path, make_plan(), identity)
    with pytest.raises(ReceiptError, match="longhaul-plan"):
        load(path, identity)


def test_missing_document_is_told_like_any_other_defect(path: Path, identity: Identity) -> None:
    """Catches a bare `FileNotFoundError`: the promise is a `ReceiptError` that names the file."""
    path.unlink()
    with pytest.raises(ReceiptError, match=r"0000\.json"):
        load(path, identity)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"epoch":0', b'"epoch":0.0'),
        (b'"epoch":0', b'"epoch":0e0'),
        (b'"epoch":0', b'"epoch":"0"'),
        (b'"epoch":0', b'"epoch":-1'),
        (b'"epoch":0', b'"epoch":true'),
        (b'"epoch":0', b'"epoch":null'),
        (b'"epoch":0', b'"epoch":9007199254740992'),
        (b'"epoch":0', b'"epoch": 0'),
        (b'"epoch":0', b'"epoch":00'),
        (b'"epoch":0', b'"epoch":NaN'),
        (b'"epoch":0', b'"epoch":0,"epoch":0'),
        (b'"epoch":0', b'"epoch":1,"epoch":0'),
        (b'"epoch":0', b'"epoch":0,"extra":0'),
        (b'"epoch":0,', b""),
        (b'"invented":1', b'"invented":9007199254740992'),
        (b'"invented":1', b'"invented":1.5'),
        (b'"seed":"01"', b'"seed":"0x"'),
        (b'"seed":"01"', b'"seed":"\\u0030\\u0031"'),
        (b'"status":"ok"', b'"status":"fine"'),
        (b'"schema":"longhaul-receipt/1"', b'"schema":"longhaul-receipt/2"'),
    ],
)
def test_signed_but_not_strict(path: Path, identity: Identity, old: bytes, new: bytes) -> None:
    """Catches a lenient parser: signed nonsense, floats, big or doubled numbers, other spellings
    of the same value."""
    body = path.read_bytes()
    assert old in body
    resign(path, body.replace(old, new, 1), identity, "longhaul-receipt/1")
    with pytest.raises(ReceiptError, match=r"0000\.json"):
        load(path, identity)


@pytest.mark.parametrize("value", [1.0, 0.5, float("nan"), 2**53, -(2**53), 2**64])
def test_floats_and_big_numbers_are_never_written(receipt: Receipt, value: float) -> None:
    """Catches a number that another JSON reader would round."""
    with pytest.raises(ReceiptError):
        canonical_bytes(msgspec.structs.replace(receipt, host={"x": value}))
    # The last number that every reader holds exactly.
    assert canonical_bytes(msgspec.structs.replace(receipt, host={"x": 2**53 - 1}))


def test_nested_float_is_named(receipt: Receipt) -> None:
    """Catches an error that does not say where."""
    timing = msgspec.structs.replace(receipt.timing, draft_ns=0.5)
    with pytest.raises(ReceiptError, match=r"\$\.timing\.draft_ns"):
        canonical_bytes(msgspec.structs.replace(receipt, timing=timing))


def test_what_does_not_load_is_not_written(
    tmp_path: Path, receipt: Receipt, identity: Identity
) -> None:
    """Catches a signed document that its own reader refuses: the job's record would be lost."""
    for broken in (
        msgspec.structs.replace(receipt, output_ids=[-1]),
        msgspec.structs.replace(receipt, status="fine"),
        msgspec.structs.replace(receipt, host={"x": True}),
    ):
        with pytest.raises(ReceiptError):
            write_signed(tmp_path / "0001.json", broken, identity)
        assert not signature_path(tmp_path / "0001.json").exists()


def test_document_is_there_before_its_signature(
    tmp_path: Path, receipt: Receipt, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a crash that leaves a signature without its document, or half of either."""
    written: list[str] = []
    replace = Path.replace

    def crash_at_second(self: Path, target: Path) -> Path:
        if written:
            raise KeyboardInterrupt
        written.append(target.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", crash_at_second)
    with pytest.raises(KeyboardInterrupt):
        write_signed(tmp_path / "0001.json", receipt, identity)
    assert written == ["0001.json"]
    assert parse_document((tmp_path / "0001.json").read_bytes(), Receipt) == receipt
    with pytest.raises(ReceiptError, match="unsigned"):
        load(tmp_path / "0001.json", identity)


def test_committed_schema_is_generated() -> None:
    """Catches a schema file that was edited by hand or not regenerated."""
    committed = REPOSITORY / "receipts" / "schema" / "receipt-v1.json"
    assert committed.read_bytes() == json_schema()
    tree = json.loads(json_schema())
    assert {"Receipt", "Plan", "Signature", "FrameRow"} <= set(tree["$defs"])
    for name, definition in tree["$defs"].items():
        if definition.get("type") == "object":
            assert definition["additionalProperties"] is False, name
