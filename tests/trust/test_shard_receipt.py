"""The public `shard-receipt/1`: five real receipts pass, each of twenty planted faults fails."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.__main__ import main
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity
from engine.trust.shard_receipt import (
    SCHEMA,
    signed_bytes,
    verify_file,
    verify_shard_receipts,
)
from engine.trust.verify import AttestationError

PUBLIC_FILE = (
    Path(__file__).resolve().parents[3]
    / "shared/data/shard-receipts/m25-realring-loop-receipts-20260707.json"
)
NUM_LAYERS = 62
RANGES = ((0, 10), (10, 23), (23, 36), (36, 49), (49, 62))
ROOTS = [f"{idx:064x}" for idx in range(len(RANGES) + 1)]
Tree = dict[str, Any]


class Maker:
    """Receipts of the public form, signed by keys made here."""

    def __init__(self) -> None:
        self.keys = [Ed25519PrivateKey.generate() for _ in RANGES]
        self.receipts: list[Tree] = [
            {
                "swarm_id": "swarm",
                "job_id": "job",
                "layer_start": start,
                "layer_end": end,
                "nonce": "6910282c",
                "schema": SCHEMA,
                "n_chunks": 637,
                "in_root": ROOTS[idx],
                "out_root": ROOTS[idx + 1],
            }
            for idx, (start, end) in enumerate(RANGES)
        ]
        for idx in range(len(RANGES)):
            self.sign(idx)

    def sign(self, idx: int, key_idx: int | None = None) -> None:
        key, tree = self.keys[idx if key_idx is None else key_idx], self.receipts[idx]
        tree["pubkey"] = base64.b64encode(key.public_key().public_bytes_raw()).decode()
        tree.pop("sig", None)
        tree["sig"] = base64.b64encode(key.sign(signed_bytes(tree))).decode()

    def change(self, idx: int, sign: bool = True, **fields: object) -> None:
        self.receipts[idx].update(fields)
        if sign:
            self.sign(idx)

    def signers(self) -> list[PublicIdentity]:
        return [PublicIdentity(key.public_key().public_bytes_raw()) for key in self.keys]


@pytest.fixture(scope="module")
def pristine() -> Maker:
    return Maker()


@pytest.fixture
def maker(pristine: Maker) -> Maker:
    made = copy.copy(pristine)
    made.receipts = copy.deepcopy(pristine.receipts)
    return made


def drop(maker: Maker, idx: int, name: str) -> None:
    del maker.receipts[idx][name]


# What is done to an honest job, and the kind of fault that is named.
FAULTS: dict[str, tuple[Callable[[Maker], object], str]] = {
    "nothing at all": (lambda m: m.receipts.clear(), "missing"),
    "a byte altered after signing": (lambda m: m.change(1, sign=False, n_chunks=638), "signature"),
    "a root altered after signing": (
        lambda m: m.change(2, sign=False, out_root="f" * 64), "signature"),
    "another's signature": (
        lambda m: m.change(1, sign=False, sig=m.receipts[0]["sig"]), "signature"),
    "a signature that is no base64": (lambda m: m.change(1, sign=False, sig="!!"), "signature"),
    "a key that is no key": (lambda m: m.change(1, sign=False, pubkey="AAAA"), "signature"),
    "a field added after signing": (lambda m: m.change(0, sign=False, stage=0), "form"),
    "a field more, signed": (lambda m: m.change(0, stage=0), "form"),
    "a field less": (lambda m: drop(m, 3, "in_root"), "form"),
    "a root that is none": (lambda m: m.change(0, out_root="xyz"), "form"),
    "another format": (lambda m: m.change(0, schema="shard-receipt/2"), "form"),
    "negative work": (lambda m: m.change(0, n_chunks=-1), "form"),
    "no work": (lambda m: m.change(4, n_chunks=0), "no_work"),
    "other work than the rest": (lambda m: m.change(2, n_chunks=600), "work"),
    "a gap in the layers": (lambda m: m.change(1, layer_start=11), "layers"),
    "layers twice": (lambda m: m.change(1, layer_start=9), "layers"),
    "an empty range": (lambda m: m.change(1, layer_end=10), "layers"),
    "a stage left out": (lambda m: m.receipts.pop(), "layers"),
    "one signer for two stages": (lambda m: m.sign(1, key_idx=0), "duplicate"),
    "a receipt twice": (lambda m: m.receipts.append(dict(m.receipts[0])), "duplicate"),
    "another job's receipt": (lambda m: m.change(1, nonce="00"), "replay"),
    "another swarm's": (lambda m: m.change(1, swarm_id="other"), "replay"),
    "no nonce": (lambda m: (m.receipts[1].pop("nonce"), m.sign(1)), "replay"),
    "a broken chain": (lambda m: m.change(3, in_root="f" * 64), "chain"),
}  # fmt: skip


def test_an_honest_job_passes_in_any_order(maker: Maker) -> None:
    found = verify_shard_receipts(maker.receipts[::-1], NUM_LAYERS, "6910282c", maker.signers())
    assert [(receipt.layer_start, receipt.layer_end) for receipt in found] == list(RANGES)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_refused_and_named(maker: Maker, fault: str) -> None:
    plant, code = FAULTS[fault]
    plant(maker)
    with pytest.raises(AttestationError) as caught:
        verify_shard_receipts(maker.receipts, NUM_LAYERS)
    assert caught.value.code == code


def test_the_depth_is_the_verifiers(maker: Maker) -> None:
    """Catches a ring that leaves the last layers out, all properly signed."""
    for num_layers in (61, 63):
        with pytest.raises(AttestationError, match="layers"):
            verify_shard_receipts(maker.receipts, num_layers)


def test_pinned_keys_alone_may_sign(maker: Maker) -> None:
    signers = maker.signers()
    with pytest.raises(AttestationError, match="unknown_signer"):
        verify_shard_receipts(maker.receipts, NUM_LAYERS, None, signers[1:])
    stranger = PublicIdentity(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    with pytest.raises(AttestationError, match="missing"):
        verify_shard_receipts(maker.receipts, NUM_LAYERS, None, [*signers, stranger])


def test_another_nonce_than_the_jobs_is_a_replay(maker: Maker) -> None:
    with pytest.raises(AttestationError, match="replay"):
        verify_shard_receipts(maker.receipts, NUM_LAYERS, "fresh")


def test_the_command_names_the_file_and_the_fault(
    maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "receipts.json"
    path.write_text(json.dumps({"receipts": maker.receipts}))
    asked = ["verify", "--format", SCHEMA, str(path)]
    assert main([*asked, "--num-layers", "62"]) == 0
    assert "5 stages, layers 0..62, keys that nobody pinned" in capsys.readouterr().out
    assert main(asked) == 2
    assert "--num-layers" in capsys.readouterr().err
    assert main([*asked, "--num-layers", "60"]) == 2
    assert str(path) in capsys.readouterr().err
    for body in ("{}", "[", '{"receipts": 5}'):
        path.write_text(body)
        assert main([*asked, "--num-layers", "62"]) == 2
    keys = tmp_path / "keys"
    keys.mkdir()
    for signer in maker.signers():
        (keys / f"{signer.key_id}.pub").write_text(signer.to_text())
    path.write_text(json.dumps(maker.receipts))
    assert main([*asked, "--num-layers", "62", "--keys", str(keys)]) == 0
    assert "pinned keys" in capsys.readouterr().out


needs_public_file = pytest.mark.skipif(not PUBLIC_FILE.is_file(), reason="no public receipts here")


@needs_public_file
def test_five_real_receipts_verify_and_chain() -> None:
    found = verify_file(PUBLIC_FILE, NUM_LAYERS)
    assert len(found) == 5 and found[0].n_chunks == 637
    assert len({receipt.pubkey for receipt in found}) == 5


@needs_public_file
@pytest.mark.parametrize("name", ["n_chunks", "layer_end", "in_root", "nonce", "job_id"])
@pytest.mark.parametrize("idx", range(5))
def test_real_receipts_do_not_bear_a_change(idx: int, name: str) -> None:
    tree = json.loads(PUBLIC_FILE.read_bytes())
    value = tree["receipts"][idx][name]
    altered = (
        value + 1 if isinstance(value, int) else value[:-1] + ("0" if value[-1] != "0" else "1")
    )
    tree["receipts"][idx][name] = altered
    with pytest.raises(AttestationError, match="signature"):
        verify_shard_receipts(tree["receipts"], NUM_LAYERS)


def test_a_missing_file_is_an_error_not_a_pass(tmp_path: Path) -> None:
    with pytest.raises(ReceiptError, match="cannot be read"):
        verify_file(tmp_path / "none.json", NUM_LAYERS)
