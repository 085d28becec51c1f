"""Receipts on disk: canonical, signed, strict, and told by file when they are not."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from bench.json_schema import SCHEMA_DIR, json_schemas
from bench.receipt import (
    canonical_bytes,
    load_signed,
    parse_document,
    receipt_id,
    signature_path,
    signed_kind,
    write_signed,
)
from bench.schema import Plan, Receipt, Signature
from bench.schema_versions import VERSIONS, version_defects
from engine.errors import ReceiptError
from engine.trust.identity import Identity, load_public_keys
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
    for type_name in ("longhaul-plan/7", "longhaul-receipt/1", "longhaul-study/1", "anything"):
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
        (b'"schema":"longhaul-receipt/7"', b'"schema":"longhaul-receipt/8"'),
        (b'"schema":"longhaul-receipt/7"', b'"schema":"longhaul-receipt/1"'),
        (b'"reply":"ids"', b'"reply":"text"'),
        (b'"reply":"ids"', b'"reply":null'),
    ],
)
def test_signed_but_not_strict(path: Path, identity: Identity, old: bytes, new: bytes) -> None:
    """Catches a lenient parser: signed nonsense, floats, big or doubled numbers, other spellings
    of the same value."""
    body = path.read_bytes()
    assert old in body
    resign(path, body.replace(old, new, 1), identity, "longhaul-receipt/7")
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


def test_the_kind_is_read_from_the_signature(path: Path, identity: Identity) -> None:
    """Catches a file that is explained as what it is not, or a type that nobody knows."""
    assert signed_kind(path) is Receipt
    write_signed(path, make_plan(), identity)
    assert signed_kind(path) is Plan
    resign(path, path.read_bytes(), identity, "longhaul-plan/9")
    with pytest.raises(ReceiptError, match=r"longhaul-plan/9.*known: longhaul-receipt/1"):
        signed_kind(path)


def test_committed_schemas_are_generated() -> None:
    """Catches a schema file that was edited by hand, not regenerated, or of no version."""
    schemas = json_schemas()
    assert {path.name: path.read_bytes() for path in SCHEMA_DIR.iterdir()} == schemas
    for name, body in schemas.items():
        tree = json.loads(body)
        assert {"Signature", "Build"} <= set(tree["$defs"])
        for title, definition in tree["$defs"].items():
            assert definition["additionalProperties"] is False, (name, title)
            required = set(definition["required"]) | {"schema"} & set(definition["properties"])
            assert required == set(definition["properties"]), (name, title)


def added_fields(older: dict, newer: dict) -> dict[str, set[str]]:
    added = {
        name: set(definition["properties"]) - set(older[name]["properties"])
        for name, definition in newer.items()
        if name in older
    }
    return {name: fields for name, fields in added.items() if fields}


def test_each_schema_has_the_fields_of_its_version_only() -> None:
    """Catches one lenient schema for all versions."""
    one, two, three, four, five, six, seven = (
        json.loads(json_schemas()[f"receipt-v{n}.json"])["$defs"] for n in VERSIONS
    )
    assert seven.keys() == six.keys()
    assert added_fields(six, seven) == {
        "FrameRow": {"parents", "node_ids"},
        "JobConfig": {"drafter_params", "tap_layers", "tap_wire"},
        "Receipt": {"degraded"},
    }
    assert six.keys() == five.keys()
    assert added_fields(five, six) == {"LinkRow": {"stall_ns", "stall_every_ns"}}
    assert five.keys() - four.keys() == {"AttestedRow"}
    assert added_fields(four, five) == {
        "HopRow": {"noops"},
        "Plan": {"stopping"},
        "Receipt": {"attested"},
        "RingConfig": {"signers"},
    }
    packets = {"queue_bytes", "loss_ppm", "reorder_ppm"}
    assert four.keys() - three.keys() == {"LinkTest"}
    assert added_fields(three, four) == {
        "LinkRow": {"jitter_distribution", "congestion_control", *packets},
        "Receipt": {"link_test"},
        "RingConfig": {"links"},
    }
    assert two.keys() - one.keys() == {"HopRow", "SamplingRow"}
    assert added_fields(two, three) == {
        "CellRow": {"group"},
        "FrameRow": {"frontier", "draft_ns"},
        "HopRow": {"codec_ns", "seal_ns"},
        "RingConfig": {"max_kv_size"},
        "StageObserved": {"max_kv_size"},
        "Timing": {"prepare_ns"},
    }
    sources = [set(tree["FrameRow"]["properties"]["source"]["enum"]) for tree in (one, two, three)]
    assert sources[0] == sources[1] == sources[2] - {"filler", "oracle"}
    assert added_fields(one, two) == {
        "Counters": {"bytes_on_wire", "hops", "stages_uncorrelated"},
        "JobConfig": {"reply", "sampling"},
        "LinkRow": {"payload_bytes", "payload_rtt_ns", "idle_payload_rtt_ns"},
        "Plan": {"arm_rings"},
    }
    assert two["Receipt"]["properties"]["schema"]["enum"] == ["longhaul-receipt/2"]
    assert one["Plan"]["properties"]["schema"]["enum"] == ["longhaul-plan/1"]


@pytest.mark.parametrize(("experiment", "version"), [("decode", 1), ("seal", 2), ("acceptance", 3)])
def test_committed_experiments_of_older_versions_are_read_byte_for_byte(
    experiment: str, version: int
) -> None:
    """Catches a new schema that cannot read, or would rewrite, what was signed before."""
    folder = REPOSITORY / "receipts" / experiment
    keys = load_public_keys(REPOSITORY / "receipts" / "keys")
    plan, body = load_signed(folder / "plan.json", Plan, keys)
    assert canonical_bytes(plan) == body and plan.schema == f"longhaul-plan/{version}"
    assert list(version_defects(plan)) == [] and plan.ring_of("ar") == plan.ring
    for path in sorted((folder / "receipts").glob("*[0-9].json"))[:8]:
        old, body = load_signed(path, Receipt, keys)
        assert canonical_bytes(old) == body and old.schema == f"longhaul-receipt/{version}"
        assert list(version_defects(old)) == []


def test_versions_are_not_mixed(receipt: Receipt) -> None:
    """Catches a field of a later version in an earlier one, or one that is missing in its own."""
    assert list(version_defects(receipt)) == [] == list(version_defects(make_plan()))
    since_2 = 4 + 3 + 3 * len(receipt.links)
    hops, stages = len(receipt.counters.hops), len(receipt.stages)
    since_3 = 2 * len(receipt.frames) + 2 * hops + stages + 2
    since = [
        since_2,
        since_3,
        5 * len(receipt.links) + 2,
        2 + hops,
        2 * len(receipt.links),
        3 * 2 + 2 * len(receipt.frames) + 1,
    ]
    for version in range(1, 7):
        older = msgspec.structs.replace(receipt, schema=f"longhaul-receipt/{version}")
        assert len(list(version_defects(older))) == sum(since[version - 1 :])
    middle = msgspec.structs.replace(receipt, schema="longhaul-receipt/2")
    oracle = msgspec.structs.replace(receipt.frames[1], source="oracle")
    guessed = msgspec.structs.replace(middle, frames=[oracle])
    assert "$.frames[0].source 'oracle' is none of longhaul-receipt/2" in version_defects(guessed)
    counters = msgspec.structs.replace(receipt.counters, hops=msgspec.UNSET)
    lacking = msgspec.structs.replace(receipt, counters=counters)
    assert list(version_defects(lacking)) == [
        "$.counters.hops is missing: a field of longhaul-receipt/7"
    ]
