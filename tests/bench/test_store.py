"""An experiment's folder after a kill at every possible moment between two writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from receipt_builder import SmallExperiment, make_plan

from bench.receipt import signature_path
from bench.store import ExperimentStore
from engine.errors import ConfigError, ReceiptError
from engine.trust.identity import Identity


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity.load_or_create(tmp_path / "keys" / "bench.key")


@pytest.fixture
def store(tmp_path: Path, identity: Identity) -> ExperimentStore:
    """A finished small experiment."""
    return ExperimentStore(SmallExperiment(tmp_path / "small", identity).folder, identity)


def resume(store: ExperimentStore) -> dict[int, str]:
    """What `bench run` does before it goes on; job_idx → receipt id."""
    store.clean()
    store.repair_log()
    return {job_idx: name for job_idx, (_, name) in store.load_receipts().items()}


def logged_jobs(store: ExperimentStore) -> list[int]:
    lines = (store.folder / "log.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [entry["job_idx"] for entry in entries if entry["event"] == "job"]


def test_a_receipt_without_its_signature_runs_again(store: ExperimentStore) -> None:
    """Catches a half-written receipt that is kept, or that blocks every later run."""
    whole = resume(store)
    last = max(whole)
    signature_path(store.receipt_path(last)).unlink()
    (store.folder / "receipts" / f".{last:04d}.json.99").write_text("half")
    assert resume(store) == {job: name for job, name in whole.items() if job != last}
    assert not list((store.folder / "receipts").glob(".*"))


def test_a_receipt_that_was_not_logged_is_logged(store: ExperimentStore) -> None:
    """Catches a finished job that the log, and so the check, never hears of."""
    log = store.folder / "log.jsonl"
    whole = log.read_text().splitlines(keepends=True)
    log.write_text("".join(whole[:-1]) + whole[-1][:10])  # torn in the middle of the last line
    resume(store)
    assert logged_jobs(store) == sorted(store.load_receipts())


def test_a_missing_log_is_written_again(store: ExperimentStore) -> None:
    (store.folder / "log.jsonl").unlink()
    resume(store)
    assert logged_jobs(store) == sorted(store.load_receipts())
    first = json.loads((store.folder / "log.jsonl").read_text().splitlines()[0])
    assert first["event"] == "plan" and first["plan_digest"] == store.load_plan()[1]


def test_a_plan_without_its_signature_was_never_promised(
    store: ExperimentStore, tmp_path: Path, identity: Identity
) -> None:
    unfinished = ExperimentStore(tmp_path / "unfinished", identity)
    (unfinished.folder / "receipts").mkdir(parents=True)
    unfinished.plan_path.write_bytes(store.plan_path.read_bytes())
    assert not unfinished.has_plan()
    with pytest.raises(ConfigError, match="not empty"):
        unfinished.open_plan(make_plan())  # it might be somebody's own plan.json


def test_what_is_not_ours_is_never_touched(
    store: ExperimentStore, tmp_path: Path, identity: Identity
) -> None:
    """Catches a clean-up that removes files of a folder somebody named by mistake."""
    foreign = tmp_path / "home"
    (foreign / "receipts").mkdir(parents=True)
    names = [".bashrc", ".plan", "plan.json", "receipts/2024.json", "receipts/.0001.json"]
    for name in names:
        (foreign / name).write_text("mine")
    named = ExperimentStore(foreign, identity)
    with pytest.raises(ConfigError, match="not empty"):
        named.open_plan(make_plan())
    named.clean()
    assert all((foreign / name).read_text() == "mine" for name in names)
    (store.folder / ".keep").write_text("mine")
    store.clean()
    assert (store.folder / ".keep").exists()


def test_one_run_at_a_time_writes_a_folder(store: ExperimentStore, identity: Identity) -> None:
    store.lock()
    with pytest.raises(ConfigError, match="another run is writing"):
        ExperimentStore(store.folder, identity).lock()


def test_a_receipt_is_written_once(store: ExperimentStore) -> None:
    receipt, _ = store.load_receipts()[0]
    with pytest.raises(ReceiptError, match="written already"):
        store.write_receipt(receipt)


def test_a_damaged_log_line_is_named(store: ExperimentStore) -> None:
    log = store.folder / "log.jsonl"
    log.write_text(log.read_text() + "\0\0\0\n")
    with pytest.raises(ReceiptError, match=r"log\.jsonl"):
        store.repair_log()


def test_a_plan_is_never_written_over(store: ExperimentStore) -> None:
    with pytest.raises(ConfigError, match="choose another --out"):
        store.write_plan(make_plan())


def test_a_plan_that_cannot_be_written_leaves_no_folder(tmp_path: Path, identity: Identity) -> None:
    """Catches a refusal that leaves a folder behind which then blocks every later run."""
    import msgspec

    fresh = ExperimentStore(tmp_path / "fresh", identity)
    with pytest.raises(ReceiptError):
        fresh.write_plan(msgspec.structs.replace(make_plan(), reps=0.5))
    assert not fresh.folder.exists()


def test_a_receipt_in_another_jobs_place_is_refused(store: ExperimentStore) -> None:
    one, two = store.receipt_path(0), store.receipt_path(1)
    for source, target in ((one, two), (signature_path(one), signature_path(two))):
        target.write_bytes(source.read_bytes())
    with pytest.raises(ReceiptError, match=r"0001\.json: holds job 0"):
        store.load_receipts()
