"""Two revisions: turns, medians of medians, and a checkout that goes whatever happens."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from bench.compare import (
    SIDES,
    add_arguments,
    checked_out,
    compare,
    compared_table,
    interleave,
    run_compare,
    run_folder,
)
from bench.schema import Plan
from engine.errors import ConfigError
from engine.trust.identity import Identity
from tests.bench.receipt_builder import SmallExperiment, make_plan


def git(repository: Path, *arguments: str) -> str:
    """Git with an author of its own."""
    author = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.run(
        ["git", *author, *arguments], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of one file, and a change that is not committed."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for text in ("old", "new"):
        (folder / "file").write_text(text)
        git(folder, "add", "file")
        git(folder, "commit", "--quiet", "-m", text)
    (folder / "file").write_text("changed")
    return folder


def test_the_base_is_checked_out_beside_and_goes(repository: Path) -> None:
    """Catches a comparison that moves the working tree, and a folder that stays behind."""
    with checked_out(repository, "HEAD~1") as base:
        assert (base / "file").read_text() == "old"
        assert (repository / "file").read_text() == "changed"
    assert not base.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_it_goes_when_a_run_fails_too(repository: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"), checked_out(repository, "HEAD") as base:
        raise RuntimeError("planted")
    assert not base.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_revision_that_git_does_not_know_is_named(repository: Path) -> None:
    with (
        pytest.raises(ConfigError, match="no-such-revision"),
        checked_out(repository, "no-such-revision"),
    ):
        pytest.fail("checked out")
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_who_begins_takes_turns(tmp_path: Path) -> None:
    """Catches one side that always runs on the warmer machine."""
    ran: list[tuple[str, Path]] = []
    checkouts = tmp_path / "b", tmp_path / "h"
    interleave(
        checkouts, tmp_path / "out", 3, lambda checkout, out: ran.append((checkout.name, out))
    )
    assert [name for name, _ in ran] == ["b", "h", "h", "b", "b", "h"]
    assert len({out for _, out in ran}) == 6 and all(out.parent.is_dir() for _, out in ran)


def runs_of(tmp_path: Path, factors: list[float]) -> tuple[Path, Identity]:
    """One repetition a factor: head decodes so many times as fast as base."""
    identity = Identity.load_or_create(tmp_path / "home" / "keys" / "bench.key")
    for rep, factor in enumerate(factors):
        for side in SIDES:
            plan: Plan = msgspec.structs.replace(
                make_plan(), created=f"2026-01-0{rep + 1}T00:00:00Z"
            )
            made = SmallExperiment(run_folder(tmp_path / "out", rep, side), identity, plan)
            for job in plan.jobs if side == "head" else ():
                made.edit(job.job_idx, lambda tree, factor=factor: quickened(tree, factor))
    return tmp_path / "out", identity


def quickened(tree: dict, factor: float) -> None:
    timing = tree["timing"]
    decode_ns = timing["last_commit_ns"] - timing["first_commit_ns"]
    timing["last_commit_ns"] = timing["first_commit_ns"] + round(decode_ns / factor)


def test_the_ratio_is_the_median_of_the_repetitions_own(tmp_path: Path) -> None:
    """Catches base and head swapped, and one odd repetition that decides."""
    out, identity = runs_of(tmp_path, [1.2, 5.0, 1.1])
    rows = compare(out, 3, {identity.key_id: identity.public})
    assert {(row.cell, row.arm) for row in rows} == {
        (cell, arm) for cell in ("copy", "talk") for arm in ("ar", "chain-k4", "null")
    }
    for row in rows:
        assert row.ratio == pytest.approx(1.2, rel=1e-3)
        assert (row.low, row.high) == pytest.approx((1.1, 5.0), rel=1e-3)
        assert row.tok_per_s[1] == pytest.approx(1.2 * row.tok_per_s[0], rel=1e-3)
        assert row.frames_per_token[0] == row.frames_per_token[1] > 0
    console = Console(record=True, width=140)
    console.print(compared_table(rows, "v1"))
    assert "1.200 [1.100–5.000]" in console.export_text()


@pytest.mark.parametrize(("options", "named"), [(["--reps", "0"], "--reps"), ([], "holds files")])
def test_what_cannot_be_run_is_said_before_anything_runs(
    tmp_path: Path, options: list[str], named: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    command = argparse.ArgumentParser()
    add_arguments(command)
    asked = command.parse_args(["HEAD", "--out", str(tmp_path / "out"), *options])
    with pytest.raises(ConfigError, match=named):
        run_compare(asked, {}, Console())
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"


SIDE = """
import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(120)
"""
STARTER = """
import sys
from pathlib import Path
from bench.compare import run_side, sigterm_unwinds
with sigterm_unwinds():
    try:
        run_side(Path(sys.argv[1]), Path("out"), [])
    finally:
        (Path(sys.argv[1]) / "unwound").touch()
"""


def test_a_comparison_that_is_ended_leaves_no_run_behind(tmp_path: Path) -> None:
    """Catches a run, and a worktree, that outlive SIGTERM to the command that began them."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__main__.py").write_text(SIDE)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, cwd=root) as starter:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
            assert starter.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        side = psutil.Process(int((tmp_path / "pid").read_text()))
        starter.terminate()
        assert starter.wait(timeout=30) == 128 + signal.SIGTERM
    assert not side.is_running()
    assert (tmp_path / "unwound").is_file()
