"""The harness's loop on links that are not the profile's, that recover, or that break."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.check import check_experiment
from bench.check_rules import check_receipt
from bench.rings import MAX_MEASUREMENTS, RingRecipe
from bench.schema import Plan, RingConfig
from bench.store import ExperimentStore
from bench.wan.emulator import RelayedLinks
from bench.wan.netns import NamespacedLinks
from bench.wan.profile import load_profile
from engine.errors import LinkClosedError
from engine.transport.probe import LinkProbe
from engine.trust.identity import Identity
from tests.bench.scripted_rings import (
    TRUE_IDS,
    ScriptedRing,
    ScriptedRings,
    answered,
    run,
)

pytestmark = pytest.mark.usefixtures("stub_tokenizer")


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


def test_a_reference_on_the_wrong_links_still_judges_other_rings(
    two_ring_plan: Plan, store: ExperimentStore, tmp_path: Path
) -> None:
    """Catches a run, a check and an analysis that disagree on who may be a reference."""

    class OneSlow(ScriptedRing):
        def measure_links(self, count: int, payload_bytes: int, idle_ms: int) -> list[LinkProbe]:
            rtt_ns = 7 if self.config.suite == "plain" else 10**9
            probe = LinkProbe((rtt_ns,) * count, payload_bytes, (8,) * count, 1_000_000 * idle_ms)
            return [probe] * (self.config.num_stages + 1)

    class Rings(ScriptedRings):
        def make(self, config: RingConfig, links: RelayedLinks) -> ScriptedRing:
            self.made.append(OneSlow(self, config, dies_at_once=False))
            return self.made[-1]

    receipts = run(two_ring_plan, store, Rings(lambda number: answered(TRUE_IDS)))
    for job in two_ring_plan.jobs:
        receipt, is_plain = receipts[job.job_idx], job.arm == "chain-k8"
        assert (receipt.status == "ok") == is_plain
        assert receipt.lossless.verdict == ("reference" if job.role == "reference" else "identical")
    key = Identity.load_or_create(tmp_path / "keys" / "bench.key").public
    findings = check_experiment(store.folder, {key.key_id: key})
    assert not [finding for finding in findings if finding.rule == "lossless"]


def test_a_ring_lost_while_its_links_are_measured_again_is_replaced(
    plan: Plan, store: ExperimentStore
) -> None:
    """Catches a run that ends because a faulty ring broke in the middle of a probe."""

    class Breaking(ScriptedRing):
        def measure_links(self, count: int, payload_bytes: int, idle_ms: int) -> list[LinkProbe]:
            if rings.num_rings == 1 and self.num_measured == MAX_MEASUREMENTS:
                raise LinkClosedError("a stage is gone")
            return super().measure_links(count, payload_bytes, idle_ms)

    class Rings(ScriptedRings):
        def make(self, config: RingConfig, links: RelayedLinks) -> ScriptedRing:
            self.made.append(Breaking(self, config, dies_at_once=False))
            return self.made[-1]

    wrong = (10**9,) * MAX_MEASUREMENTS
    rings = Rings(lambda number: answered(TRUE_IDS), rtts_ns=wrong)
    receipts = run(plan, store, rings)
    assert rings.num_rings == 2 and len(receipts) == len(plan.jobs)


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
