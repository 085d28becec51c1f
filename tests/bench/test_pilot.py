"""Repetitions from a pilot: the spread within cells, an honest upper limit of it, no mean ratio."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from analysis import effects
from bench.__main__ import main
from bench.pilot import MAX_REPS, MIN_REPS, _proposal, proposal_table, propose, reps_for
from bench.speeds import block_speeds
from bench.traces import Recorded
from engine.errors import ConfigError, ReceiptError
from engine.trust.identity import Identity
from tests.bench.receipt_builder import SmallExperiment, make_plan, make_receipt

SPREAD = 0.08


def noisy_pilot(spread: float, seed: int = 3) -> Recorded:
    """Jobs of the invented plan whose decoding takes a random time more or less."""
    plan, drawn = make_plan(), random.Random(seed)
    receipts = []
    for job in plan.jobs:
        receipt = make_receipt(plan, "0" * 64, job, None)
        timing = receipt.timing
        factor = math.exp(drawn.gauss(0.0, spread))
        last_ns = timing.first_commit_ns + round(
            (timing.last_commit_ns - timing.first_commit_ns) * factor
        )
        timing = msgspec.structs.replace(timing, last_commit_ns=last_ns, end_ns=last_ns)
        receipts.append((f"{job.job_idx}", msgspec.structs.replace(receipt, timing=timing)))
    return Recorded(plan, tuple(receipts))


def test_the_harness_and_the_analysis_agree_on_the_fewest() -> None:
    assert MIN_REPS == effects.MIN_REPS


def test_the_spread_is_pooled_within_cells() -> None:
    """Catches a spread over cells, whose ratios differ for good reason."""
    pilot = noisy_pilot(SPREAD)
    speeds = block_speeds(pilot)
    squares, freedom = 0.0, 0
    for cell in ("copy", "talk"):
        arm, base = speeds[cell, "null"], speeds[cell, "chain-k4"]
        logs = np.array([math.log(arm[block] / base[block]) for block in arm])
        squares, freedom = squares + ((logs - logs.mean()) ** 2).sum(), freedom + len(logs) - 1
    (null,) = [row for row in propose(pilot, 0.05) if row.arm == "null"]
    assert null.spread == pytest.approx(math.sqrt(squares / freedom))
    assert null.upper_spread > null.spread and null.num_ratios == freedom + 2
    assert {row.arm for row in propose(pilot, 0.05)} == {"ar", "null"}, "not the base itself"


@settings(max_examples=60)
@given(st.floats(0.001, 0.5), st.floats(0.005, 0.3), st.integers(1, 9))
def test_the_proposal_is_the_fewest_that_is_wide_enough(
    spread: float, width: float, num_cells: int
) -> None:
    """Catches one repetition too few, and many too many."""

    def half(reps: int) -> float:
        count = reps * num_cells
        return float(stats.t.ppf(0.975, count - num_cells)) * spread / math.sqrt(count)

    reps = reps_for(spread, width, num_cells)
    if reps is None:
        assert half(MAX_REPS) > width
    else:
        assert half(reps) <= width and (reps == MIN_REPS or half(reps - 1) > width)


def test_four_runs_in_five_are_as_narrow_as_was_wanted() -> None:
    """Catches a plan made for the pilot's own luck: half of its runs would be too wide."""
    drawn, num_enough, num_pilots = random.Random(5), 0, 400
    for _ in range(num_pilots):
        logs = [drawn.gauss(0.0, SPREAD) for _ in range(4)]
        proposal = _proposal("arm", [logs], math.log1p(0.05))
        num_enough += proposal.upper_spread >= SPREAD
    assert 0.74 < num_enough / num_pilots < 0.86


def test_what_cannot_be_proposed_is_refused() -> None:
    pilot = noisy_pilot(SPREAD)
    for width in (0.0, -1.0, 1.0):
        with pytest.raises(ConfigError, match="--width"):
            propose(pilot, width)
    first = Recorded(
        pilot.plan, tuple(pair for pair in pilot.receipts if pair[1].position.rep == 0)
    )
    with pytest.raises(ReceiptError, match="two repetitions"):
        propose(first, 0.05)
    untimed = Recorded(msgspec.structs.replace(pilot.plan, base_arm=""), pilot.receipts)
    with pytest.raises(ReceiptError, match="times nothing"):
        propose(untimed, 0.05)


def test_no_mean_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Catches a pilot that tells what the run is to find."""
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "140")
    identity = Identity.load_or_create(tmp_path / "home" / "keys" / "bench.key")
    made = SmallExperiment(tmp_path / "run", identity)
    assert main(["pilot", str(made.folder), "--width", "0.1"]) == 0
    shown = capfd.readouterr().out
    assert "null" in shown and "ratio to" not in shown
    console = Console(record=True, width=140)
    console.print(proposal_table(propose(noisy_pilot(3.0), 0.01), 0.01))
    assert f"more than {MAX_REPS}" in console.export_text()
