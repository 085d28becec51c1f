"""Runs an experiment: one warm ring, every job of the plan in order, a receipt for each.

Guarantees: no job before the plan is signed; no job twice; a failed job is a receipt too and the
next one runs on a usable ring; an interrupt loses no finished receipt and leaves no process. Holds
no statistic. Must never know how a figure is drawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil

from bench.arms import get_arm
from bench.cells import Cell, load_cells
from bench.plan import arm_levers
from bench.record import JobFacts, Reference, Surroundings, make_receipt
from bench.schema import LinkRow, Plan, PlannedJobRow, Receipt
from bench.store import ExperimentStore, now_rfc3339
from bench.wan.emulator import RelayedLinks
from bench.wan.profile import LinkProfile
from engine.cluster.launch import LocalRing, RingSpec
from engine.coordinator.job import JobRequest, JobResult
from engine.coordinator.session import Session
from engine.errors import (
    ConfigError,
    JobError,
    LinkClosedError,
    ReceiptError,
    RemoteProtocolError,
)
from engine.model.tokenizer import Tokenizer

NUM_RTT_PROBES = 5
NOT_THIS_BUILD = ("build_mismatch", "model_mismatch")
MAX_RING_STARTS = 3  # in a row, without a finished job between them


@dataclass(frozen=True, slots=True)
class RingRecipe:
    """How to bring the experiment's ring up, again if need be."""

    spec: RingSpec
    profile: LinkProfile
    seed: int

    def make(self) -> LocalRing:
        """A ring that is not started yet."""
        return LocalRing(self.spec, RelayedLinks(self.profile, self.seed))


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher is told; all callbacks run on the main thread."""

    on_job_start: Callable[[PlannedJobRow], None]
    on_tokens: Callable[[int], None]
    on_job_end: Callable[[Receipt], None]


class ExperimentRun:
    """The rest of a plan.

    Args:
        around: everything but `links`, which each ring measures for itself.
    """

    def __init__(
        self,
        plan: Plan,
        store: ExperimentStore,
        recipe: RingRecipe,
        around: Surroundings,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._store = store
        self._recipe = recipe
        self._around = around
        self._progress = progress
        # By block and numeric configuration; None: that reference failed.
        self._references: dict[tuple[int, str], Reference | None] = {}
        self._cells: dict[str, Cell] = load_cells()
        self._num_ok = 0

    def remaining(self) -> list[PlannedJobRow]:
        """Jobs without a receipt, in order; also learns the references of finished blocks.

        Raises:
            ReceiptError: a receipt in the folder belongs to another plan.
        """
        finished = self._store.load_receipts()
        for receipt, receipt_name in finished.values():
            if receipt.position.plan_digest != self._around.plan_digest:
                path = self._store.receipt_path(receipt.position.job_idx)
                raise ReceiptError(f"{path}: belongs to another plan; move it away")
            self._note_reference(receipt, receipt_name)
        return [job for job in self._plan.jobs if job.job_idx not in finished]

    def execute(self) -> None:
        """Run what remains.

        Raises:
            LinkClosedError: the ring broke again and again.
        """
        jobs = self.remaining()
        num_starts = 0
        while jobs:
            num_starts += 1
            num_ok = self._num_ok
            try:
                self._run_on_one_ring(jobs)
            except (LinkClosedError, RemoteProtocolError) as error:
                self._store.log("ring_lost", detail=str(error))
            if self._num_ok > num_ok:
                num_starts = 0
            if jobs and num_starts >= MAX_RING_STARTS:
                raise LinkClosedError(
                    f"the ring broke {num_starts} times in a row; the log and the receipts say "
                    "how; run the same command again to go on"
                )

    def _run_on_one_ring(self, jobs: list[PlannedJobRow]) -> None:
        """Bring a ring up and run jobs off the list until it is empty or the ring is lost."""
        with self._recipe.make() as ring, ring.session() as session:
            tokenizer = Tokenizer.load(ring.files)
            eos_ids = frozenset(ring.files.config.eos_ids)
            self._measure_links(session)
            while jobs and session.usable:
                session.check()  # a stage lost between jobs costs none of them
                self._run_one(jobs.pop(0), session, tokenizer, eos_ids)

    def _run_one(
        self,
        planned: PlannedJobRow,
        session: Session,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
    ) -> None:
        cell = self._cells[planned.cell]
        facts = JobFacts(
            planned=planned,
            levers=arm_levers(planned.arm, planned.max_new_tokens),
            nonce=secrets.token_hex(16),
            wall_start=now_rfc3339(),
            prompt_digest=cell.prompt_digest,
            prompt_ids=tuple(cell.prompt_ids(tokenizer)),
        )
        self._progress.on_job_start(planned)
        result = self._result_of(facts, session, eos_ids)
        reference = self._references.get(_family(planned.block_idx, planned.arm))
        load = {"load_average": f"{psutil.getloadavg()[0]:.2f}"}  # of the minute that just passed
        around = replace(self._around, host={**self._around.host, **load})
        receipt = make_receipt(around, facts, result, reference)
        receipt_name = self._store.write_receipt(receipt)
        self._note_reference(receipt, receipt_name)
        self._num_ok += receipt.status == "ok"
        self._progress.on_job_end(receipt)
        if receipt.failure is not None and receipt.failure.code in NOT_THIS_BUILD:
            raise ConfigError(
                f"{receipt.failure.detail}: files changed under the running ring; its remaining "
                "jobs would not be the planned ones"
            )

    def _result_of(self, facts: JobFacts, session: Session, eos_ids: frozenset[int]) -> JobResult:
        planned = facts.planned
        family = _family(planned.block_idx, planned.arm)
        if planned.role != "reference" and self._references.get(family) is None:
            detail = f"the {family[1]} reference job of block {planned.block_idx} failed"
            return JobResult(failure=JobError("reference_failed", detail))
        request = JobRequest(
            prompt_ids=facts.prompt_ids, levers=facts.levers, eos_ids=eos_ids, nonce=facts.nonce
        )
        return session.run(request, lambda ids: self._progress.on_tokens(len(ids)))

    def _note_reference(self, receipt: Receipt, receipt_name: str) -> None:
        if receipt.position.role != "reference":
            return
        usable = receipt.status == "ok"
        self._references[_family(receipt.position.block_idx, receipt.requested.arm)] = (
            Reference(receipt_name, tuple(receipt.output_ids)) if usable else None
        )

    def _measure_links(self, session: Session) -> None:
        shapes = self._recipe.profile.links(self._recipe.spec.num_stages)
        rtts = session.measure_rtt(NUM_RTT_PROBES)
        links = [
            LinkRow(
                name=shape.name,
                one_way_ns=shape.one_way_ns,
                jitter_ns=shape.jitter_ns,
                rate_bytes_per_s=shape.rate_bytes_per_s,
                rtt_ns=list(rtt_ns),
            )
            for shape, rtt_ns in zip(shapes, rtts, strict=True)
        ]
        self._around = replace(self._around, links=links)
        self._store.log("ring", rtt_ns=[list(rtt_ns) for rtt_ns in rtts])


def _family(block_idx: int, arm: str) -> tuple[int, str]:
    """Jobs that one reference judges: the same block, the same numeric configuration."""
    return block_idx, get_arm(arm).numeric_config
