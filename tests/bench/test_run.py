"""The harness end to end, on a small real ring: resume, refusals, failed jobs, a clean check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.__main__ import main
from bench.arms import get_arm
from bench.check import check_experiment
from bench.record import Reference, judge
from bench.schema import PlannedJobRow
from bench.store import ExperimentStore
from engine import defaults
from engine.cluster.launch import CHECKOUT_DIR
from engine.model.linear import kernel_for
from engine.numeric import NUMERIC_CONFIGS
from engine.trust.identity import Identity

SMALL = ["--profile", "loopback", "--stages", "1", "--cells", "chat", "--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of its own, so that the test's key is nobody's."""
    return tmp_path_factory.mktemp("home")


def bench(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=CHECKOUT_DIR,
        env={**os.environ, "LONGHAUL_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def store(home: Path, folder: Path) -> ExperimentStore:
    return ExperimentStore(folder, Identity.load_or_create(home / "keys" / "bench.key"))


def test_an_interrupted_run_goes_on_and_checks_clean(home: Path, tmp_path: Path) -> None:
    """Catches a lost receipt, a job run twice, a plan rewritten on resume, a process left over."""
    folder = tmp_path / "experiment"
    command = [sys.executable, "-m", "bench", "run", *SMALL, "--out", str(folder)]
    process = subprocess.Popen(
        command,
        cwd=CHECKOUT_DIR,
        env={**os.environ, "LONGHAUL_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell's background job ignores SIGINT; the command must not inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "receipts" / "0001.sig.json").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        process.wait()
    assert psutil.wait_procs(children, timeout=10)[1] == []
    plan_bytes = (folder / "plan.json").read_bytes()
    first = {job: name for job, (_, name) in store(home, folder).load_receipts().items()}
    num_jobs = 6 + 7  # six arms warmed up; a reference, and six arms measured
    assert 2 <= len(first) < num_jobs

    ended = bench(home, "run", *SMALL, "--out", str(folder))
    assert ended.returncode == 0, ended.stderr
    assert (folder / "plan.json").read_bytes() == plan_bytes
    receipts = store(home, folder).load_receipts()
    assert len(receipts) == num_jobs
    assert {job: receipts[job][1] for job in first} == first
    assert all(receipt.lossless.verdict != "different" for receipt, _ in receipts.values())
    logged = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["job_idx"] for line in logged if line["event"] == "job"] == list(range(num_jobs))
    public = Identity.load_or_create(home / "keys" / "bench.key").public
    findings = check_experiment(folder, {public.key_id: public})
    assert [finding for finding in findings if finding.rule != "commit"] == []

    other = bench(home, "run", *SMALL[:-1], "7", "--out", str(folder))
    assert other.returncode == 2 and "choose another --out" in other.stderr


@pytest.mark.parametrize(
    ("experiment", "stages", "arms"),
    [
        ("frames", 1, "ids-s1,ids-s2,logits-s1,logits-s2"),
        ("seal", 1, "seal-none,null-seal,seal-aes"),
        ("fp8", 2, "chain-k8,null,ar-fp8,chain-fp8"),
        ("int4", 2, "chain-k8,null,ar-int4,chain-int4"),
    ],
)
def test_arms_of_different_rings_and_wires_check_clean(
    home: Path, tmp_path: Path, experiment: str, stages: int, arms: str
) -> None:
    """Catches a job on another ring than planned, a frame too many, an output judged wrongly."""
    folder = tmp_path / experiment
    asked = ["--profile", "loopback", "--cells", "chat", "--max-new-tokens", "6"]
    asked += ["--experiment", experiment, "--stages", str(stages), "--arms", arms]
    ended = bench(home, "run", *asked, "--out", str(folder))
    assert ended.returncode == 0, ended.stderr
    public = Identity.load_or_create(home / "keys" / "bench.key").public
    findings = check_experiment(folder, {public.key_id: public})
    assert [finding for finding in findings if finding.rule != "commit"] == []
    for receipt, _ in store(home, folder).load_receipts().values():
        arm = get_arm(receipt.requested.arm)
        assert receipt.ring.suite == (arm.suite or defaults.SUITE)
        assert receipt.ring.num_stages == (arm.num_stages or stages)
        assert [stage.layer_end for stage in receipt.stages][-1] == receipt.model.num_layers
        known = "not_compared" if receipt.position.role == "warmup" else "identical"
        assert receipt.lossless.verdict in ("reference", known)
        weights = NUMERIC_CONFIGS[arm.numeric_config].weights
        kernel = kernel_for(weights).name
        assert receipt.ring.kernel == kernel == {stage.kernel for stage in receipt.stages}.pop()
        if receipt.requested.depth == 1:
            per_hop = [hop.frames for hop in receipt.counters.hops]
            assert per_hop == [len(receipt.frames)] * (receipt.ring.num_stages + 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--experiment", "decoding"], "decode"),
        (["run", "--scale", "huge"], "full, quick"),
        (["run", "--arms", "ar,chain-k9"], "chain-k16"),
        (["run", "--arms", "ar,two-state"], "add: chain-k8, null"),
        (["run", "--cells", "poetry"], "reasoning"),
        (["run", "--profile", "moon"], "wan-275"),
        (["run", "--stages", "31"], "1..30"),
        (["run", "--suite", "rot13"], "aes-256-gcm"),
        (["run", "--reps", "0"], "reps is 0"),
        (["show", "no-such-receipt.json"], "no-such-receipt.json"),
        (["run", "--cells", ""], "--cells names nothing"),
        (["run", "--cells", "chat,chat"], "twice"),
        (["run", "--arms", ","], "--arms names nothing"),
        (["run", "--seed", "-1"], "--seed is -1; allowed: 0"),
        (["run", "--threads", "-1"], "--threads is -1; allowed: 0"),
        (["run", "--max-new-tokens", "0"], "--max-new-tokens is 0; allowed: 1"),
        (["run", "--out", "README.md"], "README.md"),
        (["check", "no-such-folder"], "no-such-folder"),
    ],
)
def test_bad_input_names_what_is_allowed(
    home: Path,
    arguments: list[str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches a traceback, a default taken in silence, a folder left behind by a refusal."""
    monkeypatch.setenv("LONGHAUL_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(CHECKOUT_DIR)
    monkeypatch.setattr("bench.folders.OUT_ROOT", home / "out")
    assert main(arguments) != 0
    printed = capsys.readouterr()
    assert named in printed.err + printed.out
    assert not (home / "out").exists()


def planned(role: str) -> PlannedJobRow:
    return PlannedJobRow(
        job_idx=1, rep=0, cell="chat", block_idx=0, order_idx=1, arm="ar", role=role,
        max_new_tokens=9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "verdict", "first"),
    [
        ((1, 2, 3), "identical", None),
        ((1, 9, 3), "different", 1),
        ((1, 2), "different", 2),
        ((1, 2, 3, 4), "different", 3),
        ((), "different", 0),
    ],
)
def test_one_differing_id_is_different(
    ours: tuple[int, ...], verdict: str, first: int | None
) -> None:
    """Catches a comparison that stops at the shorter output or looks at text."""
    lossless = judge(planned("measured"), ours, Reference("00", (1, 2, 3)))
    assert (lossless.verdict, lossless.first_difference) == (verdict, first)


def test_without_a_reference_nothing_is_called_lossless() -> None:
    assert judge(planned("measured"), (1,), None).verdict == "not_compared"
    assert judge(planned("reference"), (1,), None).verdict == "reference"
