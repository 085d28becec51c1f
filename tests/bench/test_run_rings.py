"""The harness's loop against rings that break, lie or belong to another build. No model runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from receipt_builder import make_plan

from bench import folders
from bench.folders import choose_store
from bench.plan import job_config
from bench.receipt import signature_path
from bench.record import Surroundings
from bench.run import MAX_RING_STARTS, ExperimentRun, Progress, RingRecipe
from bench.schema import Plan, Receipt
from bench.store import ExperimentStore
from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.errors import ConfigError, JobError, LinkClosedError, ReceiptError
from engine.trust.identity import Identity

TRUE_IDS = [7, 8, 9]
Answer = Callable[[int], JobResult]  # by number of the job run on any ring, from 0


def answered(ids: list[int]) -> JobResult:
    """A finished job; its frames do not matter here."""
    return JobResult(output_ids=list(ids), finish_reason="length", first_commit_ns=1,
                     last_commit_ns=2, end_ns=3)  # fmt: skip


def failed(code: str, ring_usable: bool = True) -> JobResult:
    return JobResult(failure=JobError(code, "planted"), ring_usable=ring_usable)


class ScriptedRings:
    """Stands in for a `RingRecipe`: every ring it makes runs jobs by a script."""

    spec = SimpleNamespace(num_stages=2)
    profile = SimpleNamespace(links=lambda num_stages: [])

    def __init__(self, answer: Answer, lost_between_jobs: int = 0) -> None:
        self.num_rings = 0
        self.num_jobs = 0
        self.lost_between_jobs = lost_between_jobs  # so many rings die before their first job
        self._answer = answer

    def make(self) -> ScriptedRings:
        self.num_rings += 1
        self.usable = True
        self.files = SimpleNamespace(config=SimpleNamespace(eos_ids=(2,)))
        return self

    def __enter__(self) -> ScriptedRings:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def session(self) -> ScriptedRings:
        return self

    def measure_rtt(self, count: int) -> list[tuple[int, ...]]:
        return []

    def check(self) -> None:
        if self.num_rings <= self.lost_between_jobs:
            raise LinkClosedError("a stage is gone")

    def run(self, request: JobRequest, on_commit: object) -> JobResult:
        result = self._answer(self.num_jobs)
        self.num_jobs += 1
        self.usable = result.ring_usable
        return result


@pytest.fixture
def plan() -> Plan:
    """A small real plan: one cell of the repository, so that its prompt exists."""
    levers = make_levers(max_new_tokens=8)
    small = make_plan()
    registered = {"chain-k4": "chain-k8"}  # the builder's arm that no registry has
    jobs = [
        msgspec.structs.replace(
            row, cell="chat", max_new_tokens=8, arm=registered.get(row.arm, row.arm)
        )
        for row in small.jobs
    ]
    arms = {row.arm: job_config(row.arm, levers) for row in jobs}
    return msgspec.structs.replace(small, jobs=jobs, arms=arms)


@pytest.fixture
def store(tmp_path: Path, plan: Plan) -> ExperimentStore:
    identity = Identity.load_or_create(tmp_path / "keys" / "bench.key")
    return ExperimentStore(tmp_path / "experiment", identity)


@pytest.fixture(autouse=True)
def stub_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = SimpleNamespace(encode_chat=lambda messages, tools=None: [1, 2, 3])
    monkeypatch.setattr("bench.run.Tokenizer", SimpleNamespace(load=lambda files: stub))


def run(plan: Plan, store: ExperimentStore, rings: ScriptedRings) -> dict[int, Receipt]:
    """Run what is left of the plan; receipts by job."""
    _, digest = store.open_plan(plan)
    around = Surroundings("small", digest, plan.seed, plan.build, plan.model, plan.ring, [], {})
    silent = Progress(lambda job: None, lambda tokens: None, lambda receipt: None)
    recipe: RingRecipe = rings  # type: ignore[assignment]
    try:
        ExperimentRun(plan, store, recipe, around, silent).execute()
    finally:
        found = {job: receipt for job, (receipt, _) in store.load_receipts().items()}
    return found


def test_all_jobs_run_on_one_ring_when_nothing_breaks(plan: Plan, store: ExperimentStore) -> None:
    rings = ScriptedRings(lambda number: answered(TRUE_IDS))
    receipts = run(plan, store, rings)
    assert rings.num_rings == 1 and rings.num_jobs == len(plan.jobs) == len(receipts)
    assert all(receipt.status == "ok" for receipt in receipts.values())


def test_one_differing_id_makes_a_failed_job(plan: Plan, store: ExperimentStore) -> None:
    """Catches a job that is not lossless and yet counts."""
    rings = ScriptedRings(lambda number: answered(TRUE_IDS if number != 2 else [7, 8, 1]))
    receipts = run(plan, store, rings)
    assert receipts[2].status == "failed" and receipts[2].failure is not None
    assert receipts[2].failure.code == "not_lossless" and "2" in receipts[2].failure.detail
    assert receipts[2].lossless.first_difference == 2
    assert receipts[2].output_ids == [7, 8, 1], "what it did say is kept"


def test_a_failed_reference_fails_its_block_and_no_other(
    plan: Plan, store: ExperimentStore
) -> None:
    """Catches jobs that run, or pass, without anything to be compared with."""
    receipts = run(
        plan,
        store,
        ScriptedRings(lambda number: failed("planted") if number == 0 else answered(TRUE_IDS)),
    )
    for job in plan.jobs:
        expected = None
        if job.block_idx == 0:
            expected = "planted" if job.role == "reference" else "reference_failed"
        failure = receipts[job.job_idx].failure
        assert (None if failure is None else failure.code) == expected


def test_a_broken_ring_is_replaced_and_its_job_recorded(plan: Plan, store: ExperimentStore) -> None:
    rings = ScriptedRings(
        lambda number: failed("link_lost", ring_usable=False) if number == 1 else answered(TRUE_IDS)
    )
    receipts = run(plan, store, rings)
    assert rings.num_rings == 2 and len(receipts) == len(plan.jobs)
    assert [job for job, receipt in receipts.items() if receipt.status == "failed"] == [1]


def test_a_ring_lost_between_jobs_costs_no_job(plan: Plan, store: ExperimentStore) -> None:
    """Catches a job that was never sent and yet becomes a failed receipt."""
    receipts = run(
        plan, store, ScriptedRings(lambda number: answered(TRUE_IDS), lost_between_jobs=1)
    )
    assert all(receipt.status == "ok" for receipt in receipts.values())
    assert "ring_lost" in (store.folder / "log.jsonl").read_text()


def test_rings_that_keep_breaking_stop_the_run(plan: Plan, store: ExperimentStore) -> None:
    """Catches a run that turns its whole plan into failed receipts, one ring after another."""
    rings = ScriptedRings(lambda number: failed("link_lost", ring_usable=False))
    with pytest.raises(LinkClosedError, match="in a row"):
        run(plan, store, rings)
    assert rings.num_rings == MAX_RING_STARTS
    assert len(store.load_receipts()) < len(plan.jobs)


@pytest.mark.parametrize("code", ["build_mismatch", "model_mismatch"])
def test_another_build_stops_the_run(plan: Plan, store: ExperimentStore, code: str) -> None:
    """Catches a run that goes on after its files were edited."""
    rings = ScriptedRings(lambda number: failed(code) if number == 3 else answered(TRUE_IDS))
    with pytest.raises(ConfigError, match="files changed"):
        run(plan, store, rings)
    assert len(store.load_receipts()) == 4


def test_a_run_goes_on_with_the_references_it_has(plan: Plan, store: ExperimentStore) -> None:
    """Catches a resumed block that has forgotten its reference, or measures a job again."""
    with pytest.raises(KeyboardInterrupt):
        run(plan, store, ScriptedRings(interrupting))
    rings = ScriptedRings(lambda number: answered(TRUE_IDS))
    receipts = run(plan, store, rings)
    assert rings.num_jobs == len(plan.jobs) - 2
    assert all(receipt.status == "ok" for receipt in receipts.values())


def test_another_plans_receipt_is_refused(plan: Plan, store: ExperimentStore) -> None:
    """Catches a job that counts as done because another run left its receipt in this folder."""
    run(plan, store, ScriptedRings(lambda number: answered(TRUE_IDS)))
    path = store.receipt_path(5)
    stray = store.load_receipts()[5][0]
    stray = msgspec.structs.replace(
        stray, position=msgspec.structs.replace(stray.position, plan_digest="e" * 64)
    )
    path.unlink()
    signature_path(path).unlink()
    store.write_receipt(stray)
    with pytest.raises(ReceiptError, match=r"0005\.json: belongs to another plan"):
        run(plan, store, ScriptedRings(lambda number: answered(TRUE_IDS)))


def interrupting(number: int) -> JobResult:
    if number == 2:
        raise KeyboardInterrupt
    return answered(TRUE_IDS)


def test_the_default_folder_is_the_unfinished_run_of_this_plan(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a run that goes on in another plan's folder, a finished one or a foreign one."""
    monkeypatch.setattr(folders, "OUT_ROOT", tmp_path / "out")
    identity = Identity.load_or_create(tmp_path / "keys" / "bench.key")
    first = choose_store(plan, identity, None, "small")
    assert first.folder.name == "small-1"
    first.open_plan(plan)
    held = choose_store(plan, identity, None, "small")
    assert held.folder.name == "small-2", "the first one is being written"
    first.unlock()
    held.unlock()
    assert choose_store(plan, identity, None, "small").folder.name == "small-1"
    other = msgspec.structs.replace(plan, reps=plan.reps + 1)
    assert choose_store(other, identity, None, "small").folder.name == "small-3"
