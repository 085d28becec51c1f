"""The live view: a bar for a person, one plain line a job for a file, and nothing in between."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from bench.progress import RunView
from bench.schema import Failure
from engine.coordinator.records import Standing
from tests.bench.receipt_builder import make_plan, make_receipt

PLAN = make_plan()
JOB = next(job for job in PLAN.jobs if job.role == "measured")
RECEIPT = make_receipt(PLAN, "0" * 64, JOB, None)


def view(is_terminal: bool) -> tuple[RunView, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal, width=160)
    return RunView(PLAN, 0, console), shown


def test_a_person_sees_the_job_its_speed_frames_and_acceptance() -> None:
    """Catches a bar that says nothing of what runs."""
    run_view, shown = view(is_terminal=True)
    with run_view:
        calls = run_view.callbacks()
        calls.on_job_start(JOB)
        calls.on_tokens(12, lambda: Standing(num_in_flight=3, num_accepted=9, num_tested=12))
        run_view._bar.refresh()
        calls.on_job_end(RECEIPT)
    words = shown.getvalue()
    assert f"{JOB.cell} {JOB.arm}" in words and "tok/s" in words
    assert "3 in flight" in words and "75% accepted" in words


def test_before_a_draft_was_tested_nothing_is_accepted() -> None:
    """Catches a division by nothing in plain decoding."""
    run_view, shown = view(is_terminal=True)
    with run_view:
        run_view.callbacks().on_job_start(JOB)
        run_view.callbacks().on_tokens(1, lambda: Standing(1, 0, 0))
        run_view._bar.refresh()
    assert "1 in flight" in shown.getvalue() and "accepted" not in shown.getvalue()


def test_a_file_gets_one_line_a_job_and_pays_for_no_view() -> None:
    """Catches control characters in logs, and a count that is made for nobody."""
    run_view, shown = view(is_terminal=False)

    def never() -> Standing:
        pytest.fail("nobody looks")

    with run_view:
        calls = run_view.callbacks()
        calls.on_job_start(JOB)
        calls.on_tokens(5, never)
        calls.on_job_end(RECEIPT)
    lines = shown.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("[1/")]) == 1
    assert "\x1b" not in shown.getvalue()


def test_a_failure_is_said_to_both() -> None:
    """Catches a job that failed behind a bar."""
    failed = msgspec.structs.replace(
        RECEIPT,
        status="failed",
        failure=Failure(code="kv_gap", detail="start 9 is past 4", stage_idx=1),
    )
    for is_terminal in (True, False):
        run_view, shown = view(is_terminal)
        with run_view:
            run_view.callbacks().on_job_start(JOB)
            run_view.callbacks().on_job_end(failed)
        assert "start 9 is past 4" in shown.getvalue()
