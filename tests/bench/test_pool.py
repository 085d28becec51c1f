"""Runs are pooled if they are alike in all that could move a speed, and refused by name if not."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import main
from bench.pool import FREE, pool
from bench.schema import Plan
from engine.errors import ReceiptError
from engine.trust.identity import Identity, PublicIdentity
from tests.bench.receipt_builder import SmallExperiment, make_plan

LATER = "2026-02-02T00:00:00Z"


class Runs:
    """A first run, and others made from altered plans."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.identity = Identity.load_or_create(root / "home" / "keys" / "bench.key")
        self.keys: dict[str, PublicIdentity] = {self.identity.key_id: self.identity.public}
        self.first = SmallExperiment(root / "first", self.identity)

    def other(self, plan: Plan, name: str = "other") -> SmallExperiment:
        return SmallExperiment(self.root / name, self.identity, plan)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def altered(path: str, value: object) -> Plan:
    """The same plan, later, with one thing in it changed; `path` is dotted."""
    tree = msgspec.to_builtins(make_plan())
    tree["created"] = LATER
    *parents, last = path.split(".")
    place = tree
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    assert last in place
    place[last] = value
    return msgspec.convert(tree, Plan)


def test_runs_that_are_alike_are_pooled_by_block(runs: Runs) -> None:
    """Catches blocks of two runs that are paired with each other, and jobs that are lost."""
    later = msgspec.structs.replace(make_plan(), created=LATER, seed="02")
    rows = pool([runs.first.folder, runs.other(later).folder], runs.keys)
    assert {(row.cell, row.arm) for row in rows} == {
        (cell, arm) for cell in ("copy", "talk") for arm in ("ar", "chain-k4", "null")
    }
    assert all(row.num_jobs == 2 * runs.first.plan.reps for row in rows)
    by_place = {(row.cell, row.arm): row for row in rows}
    for row in rows:
        base = by_place[row.cell, "chain-k4"]
        assert base.ratio == pytest.approx(1.0)
        assert len(row.by_run) == 2 and row.by_run[0] == pytest.approx(row.by_run[1])
        pooled = math.exp(statistics.fmean(math.log(ratio) for ratio in row.by_run))
        assert row.ratio == pytest.approx(pooled)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("experiment", "another"),
        ("build.commit", "1" * 40),
        ("build.dirty", True),
        ("build.source_digest", "1" * 64),
        ("build.environment_digest", "1" * 64),
        ("model.model_digest", "1" * 64),
        ("ring.profile_digest", "1" * 64),
        ("ring.threads_per_stage", 7),
        ("ring.suite", "plain"),
        ("ring.kernel", "other"),
        ("arm_rings.ar.num_stages", 2),
        ("arms.chain-k4.depth", 2),
        ("arms.chain-k4.keepwarm_ms", 100),
        ("cells.0.max_new_tokens", 23),
        ("cells.0.prompt_digest", "1" * 64),
        ("hypotheses", ["H1: another"]),
        ("base_arm", "ar"),
    ],
)
def test_any_difference_is_named_and_refused(runs: Runs, path: str, value: object) -> None:
    """Catches a fact that nobody compares: two builds, hosts or configurations in one number."""
    other = runs.other(altered(path, value))
    with pytest.raises(ReceiptError) as caught:
        pool([runs.first.folder, other.folder], runs.keys)
    name = path.replace("cells.0.", "cells.copy.")
    assert f"\n  {name}: " in str(caught.value)
    assert msgspec.json.encode(value).decode()[:40] in str(caught.value)


def test_every_field_of_a_plan_is_compared_or_free() -> None:
    """Catches a field that is added to plans and forgotten here."""
    assert set(FREE) < set(Plan.__struct_fields__)
    assert set(FREE) == {"created", "seed", "reps", "jobs", "schema"}


@pytest.mark.parametrize(("name", "is_refused"), [("cpu_model", True), ("load_average", False)])
def test_unlike_hosts_are_refused_but_for_their_load(
    runs: Runs, name: str, is_refused: bool
) -> None:
    other = runs.other(msgspec.structs.replace(make_plan(), created=LATER))
    for job in other.plan.jobs:
        other.edit(job.job_idx, lambda tree: tree["host"].update({name: "unlike"}))
    if not is_refused:
        assert pool([runs.first.folder, other.folder], runs.keys)
        return
    with pytest.raises(ReceiptError, match=rf"host\.{name}: absent and unlike"):
        pool([runs.first.folder, other.folder], runs.keys)


def test_failed_jobs_do_not_count(runs: Runs) -> None:
    other = runs.other(msgspec.structs.replace(make_plan(), created=LATER))
    failed = next(job for job in other.plan.jobs if job.arm == "null")
    other.fail(failed.job_idx)
    rows = pool([runs.first.folder, other.folder], runs.keys)
    (row,) = [row for row in rows if (row.cell, row.arm) == (failed.cell, "null")]
    assert row.num_jobs == 2 * runs.first.plan.reps - 1


def test_one_run_twice_or_alone_is_refused(runs: Runs) -> None:
    with pytest.raises(ReceiptError, match="twice"):
        pool([runs.first.folder, runs.first.folder], runs.keys)
    with pytest.raises(ReceiptError, match="two runs"):
        pool([runs.first.folder], runs.keys)


def test_the_command_prints_or_refuses(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGHAUL_HOME", str(runs.root / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    later = runs.other(msgspec.structs.replace(make_plan(), created=LATER), "later")
    unlike = runs.other(altered("ring.suite", "plain"), "unlike")
    assert main(["pool", str(runs.first.folder), str(later.folder)]) == 0
    assert "chain-k4" in capfd.readouterr().out
    assert main(["pool", str(runs.first.folder), str(unlike.folder)]) == 2
    assert "ring.suite" in capfd.readouterr().err
