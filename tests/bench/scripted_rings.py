"""Test only: rings that run jobs by a script, for the harness's loop. No model runs.

Guarantees: asserts that no job runs on a ring that was taken down, and that links are measured
before jobs. Must never be used outside tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import msgspec

from bench.plan import job_config
from bench.record import Surroundings
from bench.rings import RingRecipe, RingSet
from bench.run import ExperimentRun, Progress
from bench.schema import Plan, Receipt, RingConfig
from bench.store import ExperimentStore
from bench.wan.emulator import RelayedLinks
from bench.wan.profile import load_profile
from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.errors import JobError, LinkClosedError
from engine.transport.probe import LinkProbe
from tests.bench.receipt_builder import make_plan

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


def small_plan() -> Plan:
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


def two_rings(plan: Plan) -> Plan:
    """The same, with `chain-k8` on a ring of its own."""
    plain = msgspec.structs.replace(plan.ring, suite="plain")
    return msgspec.structs.replace(plan, arm_rings={"chain-k8": plain})


def run(plan: Plan, store: ExperimentStore, scripted: ScriptedRings) -> dict[int, Receipt]:
    """Run what is left of the plan; receipts by job."""
    _, digest = store.open_plan(plan)
    around = Surroundings("small", digest, plan.seed, plan.build, plan.model, {})
    silent = Progress(lambda job: None, lambda tokens, standing: None, lambda receipt: None)
    recipe: RingRecipe = scripted  # type: ignore[assignment]
    try:
        ExperimentRun(plan, store, RingSet(recipe, store.log), around, silent).execute()
    finally:
        assert not any(ring.is_up for ring in scripted.made), "a ring outlives its run"
        found = {job: receipt for job, (receipt, _) in store.load_receipts().items()}
    return found
