"""The harness's loop against rings that break, lie or belong to another build. No model runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from receipt_builder import make_plan

from bench import folders
from bench.check_rules import check_receipt
from bench.folders import choose_store
from bench.plan import job_config
from bench.receipt import signature_path
from bench.record import Surroundings
from bench.rings import (
    MAX_MEASUREMENTS,
    MAX_RING_STARTS,
    NUM_PROBES,
    PROBE_IDLE_MS,
    PROBE_PAYLOAD_BYTES,
    RingRecipe,
    RingSet,
)
from bench.run import ExperimentRun, Progress
from bench.schema import Plan, Receipt, RingConfig
from bench.store import ExperimentStore
from bench.wan.emulator import RelayedLinks
from bench.wan.netns import NamespacedLinks
from bench.wan.profile import load_profile
from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.errors import ConfigError, JobError, LinkClosedError, ReceiptError
from engine.transport.probe import LinkProbe
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

    profile = load_profile("loopback")

    def __init__(
        self, answer: Answer, lost_between_jobs: int = 0, rtts_ns: Sequence[int] = (7,)
    ) -> None:
        self.made: list[ScriptedRing] = []
        self.num_jobs = 0
        self.lost_between_jobs = lost_between_jobs  # so many rings die before their first job
        self.answer = answer
        self.rtts_ns = rtts_ns  # of every link, measurement by measurement; the last one stays

    @property
    def num_rings(self) -> int:
        return len(self.made)

    def emulator(self, config: RingConfig) -> RelayedLinks:
        return RelayedLinks(self.profile, seed=1)

    def make(self, config: RingConfig, links: RelayedLinks) -> ScriptedRing:
        ring = ScriptedRing(self, config, dies_at_once=self.num_rings < self.lost_between_jobs)
        self.made.append(ring)
        return ring


class ScriptedRing:
    """One ring and its session."""

    def __init__(self, rings: ScriptedRings, config: RingConfig, dies_at_once: bool) -> None:
        self.config = config
        self.usable = True
        self.is_up = False
        self.num_jobs = 0
        self.num_measured = 0
        self.files = SimpleNamespace(config=SimpleNamespace(eos_ids=(2,)))
        self._rings = rings
        self.is_lost = dies_at_once

    def __enter__(self) -> ScriptedRing:
        self.is_up = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_up = False

    def session(self) -> AbstractContextManager[ScriptedRing]:
        return nullcontext(self)

    def measure_links(self, count: int, payload_bytes: int, idle_ms: int) -> list[LinkProbe]:
        rtts_ns = self._rings.rtts_ns
        again = rtts_ns[min(self.num_jobs, len(rtts_ns) - 1)] > self._rings.profile.tolerance_ns
        assert self.is_up and (again or not self.num_jobs), "measured before the first job"
        rtt_ns = rtts_ns[min(self.num_measured, len(rtts_ns) - 1)]
        self.num_measured += 1
        probe = LinkProbe((rtt_ns,) * count, payload_bytes, (8,) * count, 1_000_000 * idle_ms)
        return [probe] * (self.config.num_stages + 1)

    def check(self) -> None:
        if self.is_lost:
            raise LinkClosedError("a stage is gone")

    def run(self, request: JobRequest, on_commit: object) -> JobResult:
        assert self.is_up, "a job on a ring that was taken down"
        result = self._rings.answer(self._rings.num_jobs)
        self._rings.num_jobs += 1
        self.num_jobs += 1
        self.usable = result.ring_usable
        return result


@pytest.fixture
def plan() -> Plan:
    """A small real plan: one cell of the repository, so that its prompt exists; one ring."""
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
    return msgspec.structs.replace(small, jobs=jobs, arms=arms, arm_rings={})


@pytest.fixture
def two_ring_plan(plan: Plan) -> Plan:
    """The same, with `chain-k8` on a ring of its own."""
    plain = msgspec.structs.replace(plan.ring, suite="plain")
    return msgspec.structs.replace(plan, arm_rings={"chain-k8": plain})


@pytest.fixture
def store(tmp_path: Path) -> ExperimentStore:
    identity = Identity.load_or_create(tmp_path / "keys" / "bench.key")
    return ExperimentStore(tmp_path / "experiment", identity)


@pytest.fixture(autouse=True)
def stub_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = SimpleNamespace(encode_chat=lambda messages, tools=None: [1, 2, 3])
    monkeypatch.setattr("bench.run.Tokenizer", SimpleNamespace(load=lambda files: stub))


def run(plan: Plan, store: ExperimentStore, scripted: ScriptedRings) -> dict[int, Receipt]:
    """Run what is left of the plan; receipts by job."""
    _, digest = store.open_plan(plan)
    around = Surroundings("small", digest, plan.seed, plan.build, plan.model, {})
    silent = Progress(lambda job: None, lambda tokens: None, lambda receipt: None)
    recipe: RingRecipe = scripted  # type: ignore[assignment]
    try:
        ExperimentRun(plan, store, RingSet(recipe, store.log), around, silent).execute()
    finally:
        assert not any(ring.is_up for ring in scripted.made), "a ring outlives its run"
        found = {job: receipt for job, (receipt, _) in store.load_receipts().items()}
    return found


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


def test_jobs_on_the_wrong_links_fail_and_their_ids_are_still_compared(
    plan: Plan, store: ExperimentStore
) -> None:
    """Catches speeds measured on links that are not the profile's."""
    slow = load_profile("loopback").tolerance_ns + 1_000_000
    rings = ScriptedRings(lambda number: answered(TRUE_IDS), rtts_ns=(slow,))
    receipts = run(plan, store, rings)
    at_start = MAX_MEASUREMENTS + 1  # and once more as all rings stand
    assert rings.made[0].num_measured == at_start + len(plan.jobs), "and before each job"
    for job in plan.jobs:
        receipt = receipts[job.job_idx]
        assert receipt.status == "failed" and receipt.failure is not None
        assert receipt.failure.code == "link_mismatch"
        assert "coordinator->0: a round trip takes 11.0 ms" in receipt.failure.detail
        wanted = "reference" if job.role == "reference" else "identical"
        assert receipt.lossless.verdict == wanted and receipt.output_ids == TRUE_IDS
        assert not list(check_receipt(receipt))


def test_a_wrong_text_on_the_wrong_links_is_called_so(plan: Plan, store: ExperimentStore) -> None:
    """Catches a mismatch of links that hides a mismatch of ids."""
    last = len(plan.jobs) - 1
    rings = ScriptedRings(
        lambda number: answered([7, 8, 1] if number == last else TRUE_IDS),
        rtts_ns=(10**9,),
    )
    failure = run(plan, store, rings)[plan.jobs[last].job_idx].failure
    assert failure is not None and failure.code == "not_lossless"


def test_links_that_recover_are_used_again(plan: Plan, store: ExperimentStore) -> None:
    """Catches a run lost to one busy minute at its start."""
    wrong = (10**9,) * (MAX_MEASUREMENTS + 1 + 2)
    rings = ScriptedRings(lambda number: answered(TRUE_IDS), rtts_ns=(*wrong, 7))
    receipts = run(plan, store, rings)
    failed_jobs = [job.job_idx for job in plan.jobs if receipts[job.job_idx].failure is not None]
    assert failed_jobs == [plan.jobs[0].job_idx, plan.jobs[1].job_idx]
    verdicts = {receipts[job.job_idx].lossless.verdict for job in plan.jobs}
    assert verdicts == {"reference", "identical"}, "the mismatched reference still says the text"


def test_a_busy_moment_is_measured_again(plan: Plan, store: ExperimentStore) -> None:
    rings = ScriptedRings(lambda number: answered(TRUE_IDS), rtts_ns=(10**9, 7))
    receipts = run(plan, store, rings)
    assert {receipt.status for receipt in receipts.values()} == {"ok"}
    assert rings.made[0].num_measured == 2
    log = (store.folder / "log.jsonl").read_text()
    assert log.count("link_mismatch") == 1


def test_rings_of_other_weights_are_other_rings(plan: Plan, store: ExperimentStore) -> None:
    """Catches a ring that is told from another by stages and suite alone."""
    int4 = msgspec.structs.replace(plan.ring, kernel="int4-planted")
    rings = ScriptedRings(lambda number: answered(TRUE_IDS))
    run(msgspec.structs.replace(plan, arm_rings={"chain-k8": int4}), store, rings)
    assert [ring.config.kernel for ring in rings.made] == ["invented", "int4-planted"]
    recipe = RingRecipe(load_profile("loopback"), seed=1, nice=0)
    made = [recipe.make(ring.config, recipe.emulator(ring.config)) for ring in rings.made]
    assert [ring.spec.weights for ring in made] == ["f32", "int4"]


def test_links_are_emulated_as_the_plan_says(plan: Plan) -> None:
    """Catches packets that were asked for and bytes that were measured."""
    recipe = RingRecipe(load_profile("wan-275"), seed=1, nice=0)
    for links, kind in (("relay", RelayedLinks), ("netns", NamespacedLinks)):
        config = msgspec.structs.replace(plan.ring, links=links)
        assert type(recipe.emulator(config)) is kind


def test_a_lost_relay_is_named_and_its_ring_replaced(plan: Plan, store: ExperimentStore) -> None:
    """Catches jobs on a ring whose links are all down, and a log that does not say why."""

    class Deaf(RelayedLinks):
        def check(self) -> None:
            if rings.num_jobs == 2 and rings.num_rings == 1:
                raise LinkClosedError("the relay ended with status -9; its links are down")

    class Rings(ScriptedRings):
        def emulator(self, config: RingConfig) -> RelayedLinks:
            return Deaf(self.profile, seed=1)

    rings = Rings(lambda number: answered(TRUE_IDS))
    receipts = run(plan, store, rings)
    assert {receipt.status for receipt in receipts.values()} == {"ok"}
    assert rings.num_rings == 2
    assert "the relay ended with status -9" in (store.folder / "log.jsonl").read_text()


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
