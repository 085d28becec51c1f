"""Attestations in receipts: verified from the rows beside them, refused for any fault in a part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench.attested import attestation_faults, verify_files, verify_receipt
from bench.check_plan import check_plan
from bench.receipt import write_signed
from bench.schema import AttestedRow, Receipt
from engine.__main__ import main
from engine.errors import ReceiptError
from engine.trust.attestation import Answer, StageStatement, root_of, sign_statement
from engine.trust.identity import Identity, PublicIdentity
from engine.trust.verify import AttestationError
from tests.bench.receipt_builder import make_plan, make_receipt

PLAN = make_plan()
JOB = next(job for job in PLAN.jobs if job.arm == "chain-k4" and job.role == "measured")
ROOTS = [root_of([bytes([hop])]) for hop in range(3)]


class Attested:
    """A receipt of two stages with valid statements, and the keys."""

    def __init__(self, folder: Path) -> None:
        self.identities = [Identity.load_or_create(folder / f"{idx}.key") for idx in range(2)]
        self.keys: dict[str, PublicIdentity] = {one.key_id: one.public for one in self.identities}
        plain = make_receipt(PLAN, "0" * 64, JOB, None)
        asked = msgspec.structs.replace(plain.requested, attestation=True)
        ring = msgspec.structs.replace(
            plain.ring, signers=[identity.key_id for identity in self.identities]
        )
        row = AttestedRow(segment=0, first_root=ROOTS[0], last_root=ROOTS[2])
        self.receipt = msgspec.structs.replace(
            plain, requested=asked, observed=asked, ring=ring, attested=row
        )
        self.receipt = msgspec.structs.replace(self.receipt, attestations=self.signed())

    def signed(self) -> list[str]:
        receipt = self.receipt
        applied = [
            frame
            for frame in receipt.frames
            if frame.outcome in ("prefill", "applied") and frame.received_ns is not None
        ]
        answers = [Answer(frame.epoch, frame.start, frame.start, ()) for frame in applied]
        last, prompt_len = applied[-1], len(receipt.prompt_ids)
        # The later answer stands: the last frame may as well answer everything.
        answers[-1] = Answer(last.epoch, last.start, prompt_len - 1, tuple(receipt.output_ids))
        return [
            sign_statement(
                StageStatement(
                    job_nonce=receipt.job_nonce,
                    segment=0,
                    stage_idx=idx,
                    num_stages=2,
                    layer_start=receipt.ring.layer_plan[idx][0],
                    layer_end=receipt.ring.layer_plan[idx][1],
                    model_digest=receipt.model.model_digest,
                    frames=len(applied),
                    positions=sum(frame.positions_len for frame in applied),
                    in_root=ROOTS[idx],
                    out_root=ROOTS[idx + 1],
                    hash_ns=3,
                    compute_ns=1000,
                    answers=tuple(answers) if idx == 1 else None,
                ),
                identity,
            )
            for idx, identity in enumerate(self.identities)
        ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Attested:
    return Attested(tmp_path_factory.mktemp("keys"))


def altered(receipt: Receipt, **changes: object) -> Receipt:
    return msgspec.structs.replace(receipt, **changes)


def without_last_frame(receipt: Receipt) -> Receipt:
    return altered(receipt, frames=receipt.frames[:-1])


def other_output(receipt: Receipt) -> Receipt:
    return altered(receipt, output_ids=[*receipt.output_ids[:-1], receipt.output_ids[-1] + 1])


FAULTS: dict[str, tuple[Callable[[Receipt], Receipt], str]] = {
    "no statements": (lambda r: altered(r, attestations=[]), "missing"),
    "one statement": (lambda r: altered(r, attestations=r.attestations[:1]), "missing"),
    "no account": (lambda r: altered(r, attested=None), "missing"),
    "another nonce": (lambda r: altered(r, job_nonce="ff" * 16), "replay"),
    "a frame fewer": (without_last_frame, "work"),
    "another output": (other_output, "answers"),
    "another first root": (
        lambda r: altered(r, attested=msgspec.structs.replace(r.attested, first_root="1" * 64)),
        "chain",
    ),
    "another last root": (
        lambda r: altered(r, attested=msgspec.structs.replace(r.attested, last_root="1" * 64)),
        "chain",
    ),
    "another segment": (
        lambda r: altered(r, attested=msgspec.structs.replace(r.attested, segment=1)),
        "segment",
    ),
    "a deeper model": (
        lambda r: altered(r, model=msgspec.structs.replace(r.model, num_layers=10)),
        "layers",
    ),
    "no signers": (
        lambda r: altered(r, ring=msgspec.structs.replace(r.ring, signers=[])),
        "missing",
    ),
    "unknown signers": (
        lambda r: altered(r, ring=msgspec.structs.replace(r.ring, signers=["0" * 16, "1" * 16])),
        "unknown_signer",
    ),
    "signers in another order": (
        lambda r: altered(
            r, ring=msgspec.structs.replace(r.ring, signers=list(reversed(r.ring.signers)))
        ),
        "unknown_signer",
    ),
}


def test_an_attested_receipt_verifies_from_its_own_rows(made: Attested) -> None:
    assert len(verify_receipt(made.receipt, made.keys)) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_each_part_of_the_receipt_is_held(made: Attested, fault: str) -> None:
    """Catches a part of an attested receipt that could be changed without anybody noticing."""
    alter, code = FAULTS[fault]
    with pytest.raises(AttestationError) as caught:
        verify_receipt(alter(made.receipt), made.keys)
    assert caught.value.code == code


def test_a_folder_is_checked_as_a_whole(made: Attested) -> None:
    """Catches one job's statements under two receipts, and attestations that nobody asked for."""
    receipt = made.receipt
    assert list(attestation_faults({1: receipt}, made.keys)) == []
    ((job_idx, detail),) = attestation_faults({1: receipt, 2: receipt}, made.keys)
    assert job_idx == 2 and detail.startswith("replay")
    plain = msgspec.structs.replace(receipt.requested, attestation=False)
    unasked = altered(receipt, requested=plain)
    assert list(attestation_faults({1: unasked}, made.keys)) == [
        (1, "carries attestations that nobody asked for")
    ]
    failed = altered(receipt, status="failed", attested=None, attestations=[])
    assert list(attestation_faults({1: failed}, made.keys)) == [], "it failed before it could"
    lost = altered(receipt, attested=None, attestations=[])
    ((_, detail),) = attestation_faults({1: lost}, made.keys)
    assert detail.startswith("missing")


def test_a_ring_that_is_to_be_attested_has_signers() -> None:
    """Catches a plan that pins nobody, or one key for two stages."""
    config = msgspec.structs.replace(PLAN.arms["chain-k4"], attestation=True)
    plan = msgspec.structs.replace(PLAN, arms={**PLAN.arms, "chain-k4": config})
    assert any("has no signers" in detail for _, detail in check_plan(plan))
    for signers in (["0" * 16], ["0" * 16] * 2):
        ring = msgspec.structs.replace(PLAN.ring, signers=signers)
        found = [detail for _, detail in check_plan(msgspec.structs.replace(PLAN, ring=ring))]
        assert any("signers for 2 stages" in detail for detail in found)


def test_the_command_verifies_files_and_names_the_fault(
    made: Attested, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    bench = Identity.load_or_create(tmp_path / "home" / "bench.key")
    for one in (bench, *made.identities):
        (keys / f"{one.key_id}.pub").write_text(one.public.to_text())
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write_signed(good, made.receipt, bench)
    write_signed(bad, other_output(made.receipt), bench)
    assert main(["verify", str(good), "--keys", str(keys)]) == 0
    assert "2 stages attest" in capsys.readouterr().out
    assert main(["verify", str(good), str(bad), "--keys", str(keys)]) == 2
    shown = capsys.readouterr()
    assert str(bad) in shown.err
    all_keys = {**made.keys, bench.key_id: bench.public}
    with pytest.raises(ReceiptError, match="replay"):
        list(verify_files([good, good], all_keys))
