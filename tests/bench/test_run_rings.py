"""The harness's loop against rings that break, lie or belong to another build. No model runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from bench import folders
from bench.folders import choose_store
from bench.receipt import signature_path
from bench.rings import (
    MAX_RING_STARTS,
    NUM_PROBES,
    PROBE_IDLE_MS,
    PROBE_PAYLOAD_BYTES,
    RingRecipe,
)
from bench.schema import Plan
from bench.store import ExperimentStore
from bench.wan.profile import load_profile
from engine.coordinator.job import JobResult
from engine.errors import ConfigError, LinkClosedError, ReceiptError
from engine.trust.identity import Identity
from tests.bench.scripted_rings import (
    TRUE_IDS,
    ScriptedRings,
    answered,
    failed,
    run,
)

pytestmark = pytest.mark.usefixtures("stub_tokenizer")


def test_arms_run_on_their_own_rings_side_by_side(
    two_ring_plan: Plan, store: ExperimentStore
) -> None:
    """Catches a job on another arm's ring, and a ring that is built again for every job."""
    seen: list[tuple[bool, ...]] = []

    def answer(number: int) -> JobResult:
        seen.append(tuple(ring.is_up for ring in rings.made))
        return answered(TRUE_IDS)

    rings = ScriptedRings(answer)
    receipts = run(two_ring_plan, store, rings)
    assert [ring.config.suite for ring in rings.made] == ["chacha20-poly1305", "plain"]
    assert set(seen) == {(True, True)}, "both are up from the first job on"
    for job in two_ring_plan.jobs:
        assert receipts[job.job_idx].ring == two_ring_plan.ring_of(job.arm)
    by_arm = Counter(job.arm for job in two_ring_plan.jobs)
    assert [ring.num_measured for ring in rings.made] == [1, 1]
    assert [ring.num_jobs for ring in rings.made] == [
        len(two_ring_plan.jobs) - by_arm["chain-k8"],
        by_arm["chain-k8"],
    ]
    assert all(receipt.lossless.verdict != "not_compared" for receipt in receipts.values())


def test_a_receipt_holds_the_links_of_its_own_ring(plan: Plan, store: ExperimentStore) -> None:
    """Catches the links of another ring, or probes that are measured and then forgotten."""
    single = msgspec.structs.replace(plan.ring, num_stages=1, layer_plan=[(0, 9)])
    plan = msgspec.structs.replace(plan, arm_rings={"null": single})
    receipts = run(plan, store, ScriptedRings(lambda number: answered(TRUE_IDS)))
    for job in plan.jobs:
        links = receipts[job.job_idx].links
        assert len(links) == plan.ring_of(job.arm).num_stages + 1
        assert [link.name for link in links][-1].endswith("->coordinator")
        for link in links:
            assert link.rtt_ns == [7] * NUM_PROBES and link.payload_rtt_ns == [8] * NUM_PROBES
            assert link.payload_bytes == PROBE_PAYLOAD_BYTES
            assert link.idle_payload_rtt_ns == 1_000_000 * PROBE_IDLE_MS


def test_rings_of_other_weights_are_other_rings(plan: Plan, store: ExperimentStore) -> None:
    """Catches a ring that is told from another by stages and suite alone."""
    int4 = msgspec.structs.replace(plan.ring, kernel="int4-planted")
    rings = ScriptedRings(lambda number: answered(TRUE_IDS))
    run(msgspec.structs.replace(plan, arm_rings={"chain-k8": int4}), store, rings)
    assert [ring.config.kernel for ring in rings.made] == ["invented", "int4-planted"]
    recipe = RingRecipe(load_profile("loopback"), seed=1, nice=0)
    made = [recipe.make(ring.config, recipe.emulator(ring.config)) for ring in rings.made]
    assert [ring.spec.weights for ring in made] == ["f32", "int4"]


def test_only_the_lost_ring_is_replaced(two_ring_plan: Plan, store: ExperimentStore) -> None:
    """Catches a rebuild of rings that nothing happened to."""
    on_plain = next(job.job_idx for job in two_ring_plan.jobs if job.arm == "chain-k8")
    rings = ScriptedRings(
        lambda number: (
            failed("link_lost", ring_usable=False) if number == on_plain else answered(TRUE_IDS)
        )
    )
    receipts = run(two_ring_plan, store, rings)
    suites = [ring.config.suite for ring in rings.made]
    assert suites == ["chacha20-poly1305", "plain", "plain"]
    assert [job for job, receipt in receipts.items() if receipt.status == "failed"] == [on_plain]


def test_a_ring_lost_while_it_was_idle_costs_no_job(
    two_ring_plan: Plan, store: ExperimentStore
) -> None:
    """Catches an idle ring that is trusted because it was whole when it was last used."""

    def answer(number: int) -> JobResult:
        if number == 1:
            rings.made[1].is_lost = True
        return answered(TRUE_IDS)

    rings = ScriptedRings(answer)
    receipts = run(two_ring_plan, store, rings)
    assert rings.num_rings == 3 and rings.made[1].num_jobs == 0
    assert all(receipt.status == "ok" for receipt in receipts.values())


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


def test_a_ring_that_breaks_now_and_then_finishes_its_run(
    plan: Plan, store: ExperimentStore
) -> None:
    """Catches losses that add up over a long run although jobs finish in between."""
    measured = [job.job_idx for job in plan.jobs if job.role == "measured"]
    lost_jobs = measured[:: len(measured) // (MAX_RING_STARTS + 1)]
    rings = ScriptedRings(
        lambda number: (
            failed("link_lost", ring_usable=False) if number in lost_jobs else answered(TRUE_IDS)
        )
    )
    receipts = run(plan, store, rings)
    assert len(lost_jobs) > MAX_RING_STARTS and len(receipts) == len(plan.jobs)
    assert rings.num_rings > MAX_RING_STARTS + 1


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
