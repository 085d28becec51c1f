"""Runs an experiment: rings kept warm, every job of the plan in order, a receipt for each.

Guarantees: no job before the plan is signed; no job twice; a job runs on the ring that the plan
gives its arm; a failed job is a receipt too and the next one runs on a usable ring; an interrupt
loses no finished receipt and leaves no process. Holds no statistic. Must never know how a figure is
drawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil

from bench.arms import get_arm
from bench.bounds import knowing
from bench.cells import Cell, load_cells, study_cells
from bench.plan import arm_levers
from bench.record import JobFacts, Reference, Surroundings, make_receipt
from bench.rings import RingSet, WarmRing, ring_key
from bench.schema import Plan, PlannedJobRow, Receipt
from bench.store import ExperimentStore, now_rfc3339
from engine.coordinator.job import JobRequest, JobResult
from engine.coordinator.records import Standing
from engine.errors import ConfigError, JobError, ReceiptError
from engine.model.tokenizer import Tokenizer

NOT_THIS_BUILD = ("build_mismatch", "model_mismatch")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher is told; all callbacks run on the main thread."""

    on_job_start: Callable[[PlannedJobRow], None]
    on_tokens: Callable[[int, Callable[[], Standing]], None]
    on_job_end: Callable[[Receipt], None]


class ExperimentRun:
    """The rest of a plan.

    Args:
        rings: brings up what the plan asks for; taken down when the run ends.
        around: what all receipts share.
    """

    def __init__(
        self,
        plan: Plan,
        store: ExperimentStore,
        rings: RingSet,
        around: Surroundings,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._store = store
        self._rings = rings
        self._around = around
        self._progress = progress
        # By block and numeric configuration; None: that reference failed.
        self._references: dict[tuple[int, str], Reference | None] = {}
        self._cells: dict[str, Cell] = {**load_cells(), **study_cells()}
        self._tokenizer: Tokenizer | None = None  # of the model that the rings run

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
            LinkClosedError: a ring broke again and again.
        """
        jobs = self.remaining()
        configs = {ring_key(ring): ring for ring in (self._plan.ring_of(job.arm) for job in jobs)}
        with self._rings as rings:
            rings.bring_up(configs.values())
            for planned in jobs:
                self._run_one(planned, rings.ready(self._plan.ring_of(planned.arm)))

    def _run_one(self, planned: PlannedJobRow, warm: WarmRing) -> None:
        cell = self._cells[planned.cell]
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(warm.files)
        facts = JobFacts(
            planned=planned,
            levers=arm_levers(planned.arm, planned.max_new_tokens),
            nonce=secrets.token_hex(16),
            wall_start=now_rfc3339(),
            prompt_digest=cell.prompt_digest,
            prompt_ids=tuple(cell.prompt_ids(self._tokenizer)),
            ring=self._plan.ring_of(planned.arm),
            links=warm.links,
            link_fault=warm.link_fault,
        )
        self._progress.on_job_start(planned)
        result = self._result_of(facts, warm)
        reference = self._references.get(_family(planned.block_idx, planned.arm))
        load = {"load_average": f"{psutil.getloadavg()[0]:.2f}"}  # of the minute that just passed
        around = replace(self._around, host={**self._around.host, **load})
        receipt = make_receipt(around, facts, result, reference)
        receipt_name = self._store.write_receipt(receipt)
        self._note_reference(receipt, receipt_name)
        if receipt.status == "ok":
            self._rings.note_finished(facts.ring)
        self._progress.on_job_end(receipt)
        if receipt.failure is not None and receipt.failure.code in NOT_THIS_BUILD:
            raise ConfigError(
                f"{receipt.failure.detail}: files changed under the running ring; its remaining "
                "jobs would not be the planned ones"
            )

    def _result_of(self, facts: JobFacts, warm: WarmRing) -> JobResult:
        planned = facts.planned
        family = _family(planned.block_idx, planned.arm)
        reference = self._references.get(family)
        if planned.role == "measured" and reference is None:
            detail = f"the {family[1]} reference job of block {planned.block_idx} failed"
            return JobResult(failure=JobError("reference_failed", detail))
        request = JobRequest(
            prompt_ids=facts.prompt_ids,
            levers=facts.levers,
            eos_ids=frozenset(warm.files.config.eos_ids),
            nonce=facts.nonce,
        )
        if reference is not None:
            request = knowing(request, reference.output_ids)
        return warm.session.run(
            request, lambda ids, standing: self._progress.on_tokens(len(ids), standing)
        )

    def _note_reference(self, receipt: Receipt, receipt_name: str) -> None:
        if receipt.position.role != "reference":
            return
        self._references[_family(receipt.position.block_idx, receipt.requested.arm)] = (
            Reference(receipt_name, tuple(receipt.output_ids)) if receipt.text_stands else None
        )


def _family(block_idx: int, arm: str) -> tuple[int, str]:
    """Jobs that one reference judges, on whatever ring: see `bench.arms`."""
    return block_idx, get_arm(arm).numeric_config
