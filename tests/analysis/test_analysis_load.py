"""The loader refuses what it must, by file name, and lists what it leaves out."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from analysis.load import find_experiment, jobs_frame, load_experiment, rounds_frame
from bench.receipt import parse_document, receipt_id, signature_path, write_signed
from bench.schema import Failure, Lossless, Plan, PlannedJobRow, Receipt
from engine.errors import ConfigError, ReceiptError
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import (
    build_experiment,
    make_identity,
    make_receipt,
    receipt_path,
)
from tests.analysis.plan_builder import Recipe


@pytest.fixture
def folder(invented: Invented, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(invented.folder, tmp_path / "copy"))


def rewrite(
    folder: Path, invented: Invented, job_idx: int, change: Callable[[Receipt], Receipt]
) -> None:
    """Alter a receipt and sign it again, as a buggy harness would."""
    path = receipt_path(folder, job_idx)
    changed = change(parse_document(path.read_bytes(), Receipt))
    write_signed(path, changed, invented.identity)


def changed(**fields: object) -> Callable[[Receipt], Receipt]:
    return lambda receipt: msgspec.structs.replace(receipt, **fields)


def moved(**fields: object) -> Callable[[Receipt], Receipt]:
    return lambda receipt: msgspec.structs.replace(
        receipt, position=msgspec.structs.replace(receipt.position, **fields)
    )


def first_frame(**fields: object) -> Callable[[Receipt], Receipt]:
    return lambda receipt: msgspec.structs.replace(
        receipt,
        frames=[
            receipt.frames[0],
            msgspec.structs.replace(receipt.frames[1], **fields),
            *receipt.frames[2:],
        ],
    )


def test_whole_experiment_loads(invented: Invented) -> None:
    experiment = load_experiment(invented.folder, invented.key_folders)
    assert len(experiment.receipts) == len(experiment.plan.jobs) == 8 * 7
    assert experiment.exclusions.empty
    jobs = jobs_frame(experiment)
    assert len(jobs) == 8 * 6, "reference jobs are not measured"
    body = receipt_path(invented.folder, 3).read_bytes()
    assert experiment.receipt_ids[3] == receipt_id(body)
    assert experiment.measured_arms()[:3] == ["ar", "null-ar", "chain-k8"]


def flip_byte(folder: Path) -> None:
    path = receipt_path(folder, 3)
    path.write_bytes(path.read_bytes().replace(b'"seed":"00"', b'"seed":"01"'))


def alter_plan(folder: Path) -> None:
    path = folder / "plan.json"
    path.write_bytes(path.read_bytes().replace(b'"alpha":"0.05"', b'"alpha":"0.50"'))


def garble_signature(folder: Path) -> None:
    signature_path(receipt_path(folder, 3)).write_text("{}")


def signature_as_folder(folder: Path) -> None:
    signature_path(receipt_path(folder, 3)).unlink()
    signature_path(receipt_path(folder, 3)).mkdir()


@pytest.mark.parametrize(
    ("damage", "name", "reason"),
    [
        (flip_byte, "0003.json", "bytes are not the ones"),
        (alter_plan, "plan.json", "bytes are not the ones"),
        (garble_signature, "0003.sig.json", "not a signature file"),
        (signature_as_folder, "0003.sig.json", "cannot be read: Is a directory"),
        (lambda f: signature_path(receipt_path(f, 3)).unlink(), "0003.json", "unsigned"),
        (lambda f: receipt_path(f, 3).unlink(), "0003.sig.json", "which is missing"),
        (lambda f: (f / "plan.json").unlink(), "plan.json", "no experiment's folder"),
        (lambda f: (f / "notes.txt").write_text("x"), "notes.txt", "foreign"),
        (lambda f: (f / "receipts" / "3.json").write_text("x"), "3.json", "foreign"),
        (lambda f: (f / "receipts" / "x.json").write_text("x"), "x.json", "foreign"),
        (lambda f: (f / "receipts" / ".0003.json.7").write_text(""), ".0003.json.7", "foreign"),
        (lambda f: shutil.rmtree(f / "receipts"), "receipts", "one receipt per job"),
    ],
)
def test_damaged_folder_is_refused_by_name(
    folder: Path, invented: Invented, damage: Callable[[Path], object], name: str, reason: str
) -> None:
    damage(folder)
    with pytest.raises(ReceiptError, match=reason) as caught:
        load_experiment(folder, invented.key_folders)
    assert f"{name}:" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (moved(job_idx=4), "under the name of job 3"),
        (moved(plan_digest="0" * 64), "another plan"),
        (moved(rep=3), "rep is 3"),
        (moved(cell="chat"), "cell is 'chat'"),
        (moved(block_idx=5), "block_idx is 5"),
        (moved(order_idx=0), "order_idx is 0"),
        (moved(role="warmup"), "role is 'warmup'"),
        (changed(prompt_digest="0" * 64), "prompt_digest"),
        (
            lambda r: msgspec.structs.replace(
                r, requested=msgspec.structs.replace(r.requested, arm="null")
            ),
            "arm is 'null'",
        ),
        (
            lambda r: msgspec.structs.replace(
                r, requested=msgspec.structs.replace(r.requested, depth=9)
            ),
            "requested levers",
        ),
        (
            lambda r: msgspec.structs.replace(
                r, build=msgspec.structs.replace(r.build, source_digest="0" * 64)
            ),
            "source_digest",
        ),
        (
            lambda r: msgspec.structs.replace(
                r, ring=msgspec.structs.replace(r.ring, num_stages=2)
            ),
            "ring is",
        ),
        (changed(output_ids=[1, 2, 3]), "its rounds commit"),
        (changed(output_ids=[]), "without output"),
        (first_frame(accepted_len=9), r"\(k, a\)"),
        (first_frame(tested_len=2), r"\(k, a, tested\)"),
        (first_frame(received_ns=1), "before it was sent"),
        (lambda r: msgspec.structs.replace(r, output_ids=r.output_ids[::-1]), "say otherwise"),
        (changed(lossless=Lossless(
            verdict="identical", reference_id="00", first_difference=None
        )), "no reference job"),
    ],
)  # fmt: skip
def test_contradictory_receipt_is_refused_by_name(
    folder: Path, invented: Invented, change: Callable[[Receipt], Receipt], reason: str
) -> None:
    rewrite(folder, invented, 3, change)
    with pytest.raises(ReceiptError, match=reason) as caught:
        load_experiment(folder, invented.key_folders)
    assert "0003.json:" in str(caught.value)


def test_duplicate_job_is_refused(folder: Path, invented: Invented) -> None:
    nonce = parse_document(receipt_path(folder, 3).read_bytes(), Receipt).job_nonce
    rewrite(folder, invented, 4, changed(job_nonce=nonce))
    with pytest.raises(ReceiptError, match=r"0004\.json: duplicate.*0003\.json"):
        load_experiment(folder, invented.key_folders)


def test_mixed_experiments_are_refused(folder: Path, invented: Invented, tmp_path: Path) -> None:
    other = build_experiment(
        tmp_path / "other", invented.identity, Recipe(experiment="other", reps=1)
    )
    for path in (receipt_path(other, 3), signature_path(receipt_path(other, 3))):
        shutil.copy(path, folder / "receipts")
    with pytest.raises(ReceiptError, match=r"0003\.json: belongs to another plan.*'other'"):
        load_experiment(folder, invented.key_folders)


def test_unknown_key_is_refused(invented: Invented, tmp_path: Path) -> None:
    make_identity(tmp_path / "stranger")
    with pytest.raises(ReceiptError, match=r"plan\.json: signed by unknown key"):
        load_experiment(invented.folder, [tmp_path / "stranger" / "keys"])


def test_unused_jobs_are_listed_with_reasons(folder: Path, invented: Invented) -> None:
    for path in (receipt_path(folder, 3), signature_path(receipt_path(folder, 3))):
        path.unlink()
    failure = Failure(code="kv_gap", detail="start beyond kv_len", stage_idx=1)
    rewrite(folder, invented, 4, changed(status="failed", failure=failure))
    reference = parse_document(receipt_path(folder, 5).read_bytes(), Receipt).lossless
    differs = msgspec.structs.replace(reference, verdict="different", first_difference=2)
    rewrite(
        folder,
        invented,
        5,
        lambda r: msgspec.structs.replace(
            r, lossless=differs, output_ids=[*r.output_ids[:2], 5000, *r.output_ids[3:]]
        ),
    )
    rewrite(folder, invented, 7, changed(status="failed", failure=failure))
    experiment = load_experiment(folder, invented.key_folders)
    reasons = dict(
        zip(experiment.exclusions["job_idx"], experiment.exclusions["reason"], strict=True)
    )
    assert reasons[3] == "missing: no receipt"
    assert reasons[4] == "failed: kv_gap: start beyond kv_len"
    assert reasons[5] == "not lossless: differs from its reference at output 2"
    assert reasons[7].startswith("failed")
    block = dict.fromkeys(range(8, 14), "its block has no finished reference job")
    assert {idx: reasons[idx] for idx in block} == block
    assert len(reasons) == 4 + len(block)
    assert set(jobs_frame(experiment)["job_idx"]).isdisjoint(reasons)


def test_receipt_set_digest_follows_every_receipt(folder: Path, invented: Invented) -> None:
    before = load_experiment(folder, invented.key_folders).receipt_set_digest
    rewrite(folder, invented, 55, changed(seed="01"))
    assert load_experiment(folder, invented.key_folders).receipt_set_digest != before
    bodies = [path.read_bytes() for path in sorted((folder / "receipts").glob("????.json"))]
    digests = [hashlib.sha256(body).hexdigest() for body in bodies]
    plan_digest = hashlib.sha256((folder / "plan.json").read_bytes()).hexdigest()
    expected = hashlib.sha256("\n".join([plan_digest, *digests]).encode()).hexdigest()
    assert load_experiment(folder, invented.key_folders).receipt_set_digest == expected


def test_frames_are_each_callers_own(invented: Invented) -> None:
    """Catches a column that one table writes and another one reads, and a frame of other jobs."""
    experiment = load_experiment(invented.folder, invented.key_folders)
    for make in (jobs_frame, rounds_frame):
        first = make(experiment)
        first["arm"] = "mine"
        first.loc[0, "rep"] = 99
        second = make(experiment)
        assert "mine" not in set(second["arm"]) and second.loc[0, "rep"] == 0
        assert list(second.columns) == list(first.columns)
    fewer = replace(experiment, receipts=experiment.receipts[:7], receipt_ids=("id",) * 7)
    assert len(jobs_frame(fewer)) == 6 and set(rounds_frame(fewer)["receipt_id"]) == {"id"}
    none = replace(experiment, receipts=(), receipt_ids=())
    assert rounds_frame(none).empty and list(rounds_frame(none).columns) == []


def test_unknown_experiment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="committed experiment 'decod'"):
        find_experiment("", "decod")
    with pytest.raises(ConfigError, match="no such folder"):
        find_experiment(tmp_path / "nothing")


def test_a_reference_on_the_wrong_links_still_says_what_the_text_is(
    invented: Invented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches blocks dropped, or speeds kept, because of the links of a reference job alone."""

    def slow_reference(plan: Plan, digest: str, row: PlannedJobRow, *more: object) -> Receipt:
        receipt = make_receipt(plan, digest, row, *more)  # type: ignore[arg-type]
        if row.role != "reference":
            return receipt
        failure = Failure(code="link_mismatch", detail="planted", stage_idx=None)
        return msgspec.structs.replace(receipt, status="failed", failure=failure)

    monkeypatch.setattr("tests.analysis.experiment_builder.make_receipt", slow_reference)
    folder = build_experiment(tmp_path / "experiment", invented.identity, Recipe(reps=1))
    experiment = load_experiment(folder, invented.key_folders)
    measured = [row for row in experiment.plan.jobs if row.role == "measured"]
    assert len(experiment.measured()) == len(measured)
    assert set(experiment.exclusions["role"]) == {"reference"}
    assert set(experiment.exclusions["reason"]) == {"failed: link_mismatch: planted"}
