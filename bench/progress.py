"""What a person sees while an experiment runs: job, arm, speed so far, frames in flight, how many
drafts were accepted, and an estimate; off when not a terminal.

Guarantees: reads nothing but what it is told; a redirected run prints one plain line a job. Must
never know a receipt's meaning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench import run
from bench.schema import Plan, PlannedJobRow, Receipt
from engine.coordinator.records import Standing


class RunView:
    """A context manager around one run.

    The estimate gives a job still to come the mean wall time of the same cell and arm so far, or
    the mean of all of them where there is none yet.
    """

    def __init__(self, plan: Plan, num_done: int, console: Console) -> None:
        self._console = console
        self._num_jobs = len(plan.jobs)
        self._num_done = num_done
        self._left = list(plan.jobs[num_done:])
        self._seconds: dict[tuple[str, str], list[float]] = {}  # by (cell, arm): job wall times
        self._started_s = 0.0
        self._job_tokens = 0
        self._bar = Progress(
            TextColumn("{task.fields[job]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total} jobs"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[eta]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task(
            "", total=self._num_jobs, completed=num_done, job="starting the rings", eta=""
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def callbacks(self) -> run.Progress:
        """What the run calls."""
        return run.Progress(self._on_job_start, self._on_tokens, self._on_job_end)

    def _on_job_start(self, planned: PlannedJobRow) -> None:
        self._started_s = time.monotonic()
        self._job_tokens = 0
        self._show(planned)

    def _on_tokens(self, num_tokens: int, standing: Callable[[], Standing]) -> None:
        if not self._console.is_terminal:
            return
        self._job_tokens += num_tokens
        elapsed_s = time.monotonic() - self._started_s
        now = standing()
        accepted = f", {now.num_accepted / now.num_tested:.0%} accepted" if now.num_tested else ""
        words = f"{self._job_tokens / elapsed_s:.1f} tok/s, {now.num_in_flight} in flight{accepted}"
        self._bar.update(self._task, eta=f"{words}{self._eta()}")

    def _on_job_end(self, receipt: Receipt) -> None:
        position = receipt.position
        elapsed_s = time.monotonic() - self._started_s
        key = (position.cell, receipt.requested.arm)
        self._seconds.setdefault(key, []).append(elapsed_s)
        self._left = [job for job in self._left if job.job_idx != position.job_idx]
        self._num_done += 1
        self._bar.update(self._task, completed=self._num_done)
        failure = "" if receipt.failure is None else f": {receipt.failure.detail}"
        if not self._console.is_terminal or failure:
            self._console.print(
                f"[{self._num_done}/{self._num_jobs}] rep {position.rep + 1} {position.cell} "
                f"{receipt.requested.arm} ({position.role}) {receipt.status}, "
                f"{len(receipt.output_ids)} tokens, {elapsed_s:.1f} s{failure}{self._eta()}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def _show(self, planned: PlannedJobRow) -> None:
        name = f"rep {planned.rep + 1} {planned.cell} {planned.arm}"
        self._bar.update(self._task, job=f"{name:<34}")

    def _eta(self) -> str:
        if not self._seconds:
            return ""
        known = [sum(times) / len(times) for times in self._seconds.values()]
        mean_s = sum(known) / len(known)
        left_s = 0.0
        for job in self._left:
            times = self._seconds.get((job.cell, job.arm))
            left_s += sum(times) / len(times) if times else mean_s
        minutes, seconds = divmod(int(left_s), 60)
        return f", about {minutes}:{seconds:02d} left"
