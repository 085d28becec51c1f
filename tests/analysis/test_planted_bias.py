"""Bias planted into the harness's own order of jobs: drift, a slow arm, labels without meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from analysis.effects import ALL_CELLS, FASTER, SLOWER, paired_log_ratios, ratio_table
from analysis.iid_power import size_limit
from bench.arms import get_arm
from bench.cells import load_cells
from bench.schedule import make_schedule
from bench.schema import Plan
from tests.analysis.plan_builder import Recipe, make_plan

ARMS = ("ar", "null-ar", "chain-k8", "null", "chain-k16", "two-state")
CELLS = ("verbatim", "summary", "chat")
DIFFERENCES = (FASTER, SLOWER)
BASE = "chain-k8"
NUM_PERMUTATIONS, LEVEL = 200, 0.05

Slowness = Callable[[pd.DataFrame], np.ndarray]


def planned_jobs(reps: int, seed: int = 1) -> pd.DataFrame:
    """Measured jobs in the order in which the harness runs them; `when` is their place in it."""
    cells = [load_cells()[name] for name in CELLS]
    rows = [
        (job.rep, job.cell, job.block_idx, job.arm, job.job_idx)
        for job in make_schedule(cells, [get_arm(arm) for arm in ARMS], reps, seed)
        if job.role == "measured"
    ]
    return pd.DataFrame(rows, columns=["rep", "cell", "block", "arm", "when"])


def measured(
    jobs: pd.DataFrame, slowness: Slowness, seed: int, spread: float = 0.01
) -> pd.DataFrame:
    """The jobs with speeds: every arm alike but for what `slowness` says, and noise."""
    noise = np.random.default_rng(seed).normal(0.0, spread, len(jobs))
    return jobs.assign(decode_tok_per_s=10.0 * np.exp(-slowness(jobs) + noise))


def plan_of(reps: int) -> Plan:
    """A plan with these cells, arms and null pairs."""
    return make_plan(Recipe(cells=CELLS, arms=ARMS, reps=reps))


def verdict_of(jobs: pd.DataFrame, plan: Plan, arm: str) -> str:
    """Over all cells, against the base arm."""
    table, _ = ratio_table(jobs, plan, BASE, [arm])
    return str(table[table["cell"] == ALL_CELLS]["verdict"].iloc[0])


@pytest.fixture(autouse=True)
def invented_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder of invented plans knows its own cells; here they are the repository's."""
    kinds = dict.fromkeys(CELLS, ("novel", 0.5))
    monkeypatch.setattr("tests.analysis.plan_builder.CELLS", kinds)


@pytest.mark.parametrize("drift", [1.0, -1.0, 3.0])
def test_drift_is_no_effect(drift: float) -> None:
    """A machine that gets slower all along, by e to the `drift`, favours no arm."""
    jobs, plan = planned_jobs(reps=8), plan_of(8)

    def slowness(rows: pd.DataFrame) -> np.ndarray:
        return drift * rows["when"].to_numpy() / len(rows)

    found = measured(jobs, slowness, seed=1)
    for arm in ("chain-k16", "two-state"):
        assert verdict_of(found, plan, arm) not in DIFFERENCES
    unpaired = np.log(found.groupby("rep")["decode_tok_per_s"].mean()).to_numpy()
    assert abs(unpaired[-1] - unpaired[0]) > 0.5, "the drift is there"


def test_order_within_a_block_is_no_effect() -> None:
    """Whoever runs later in a block is slower; rotation and reversal give every arm its share."""
    jobs, plan = planned_jobs(reps=12), plan_of(12)

    def slowness(rows: pd.DataFrame) -> np.ndarray:
        return 0.05 * rows.groupby("block")["when"].rank().to_numpy()

    found = measured(jobs, slowness, seed=2)
    means = {
        arm: paired_log_ratios(found, "decode_tok_per_s", arm, BASE)["log_ratio"].mean()
        for arm in ARMS
        if arm != BASE
    }
    assert max(abs(mean) for mean in means.values()) < 0.02, means
    assert verdict_of(found, plan, "two-state") not in DIFFERENCES


@pytest.mark.parametrize(("change", "expected"), [(0.1, SLOWER), (-0.1, FASTER)])
def test_a_planted_effect_is_found_under_drift(change: float, expected: str) -> None:
    """Catches a verdict that calls everything noise."""
    jobs, plan = planned_jobs(reps=8), plan_of(8)

    def slowness(rows: pd.DataFrame) -> np.ndarray:
        drift = rows["when"].to_numpy() / len(rows)
        return drift + change * (rows["arm"] == "two-state").to_numpy()

    found = measured(jobs, slowness, seed=3)
    assert verdict_of(found, plan, "two-state") == expected
    assert verdict_of(found, plan, "chain-k16") not in DIFFERENCES


def test_labels_without_meaning_rarely_differ() -> None:
    """200 permutations of the labels within their blocks: differences at most at the level.

    Catches a verdict that calls noise a difference more often than its interval allows.
    """
    reps = 6
    plan = plan_of(reps)
    jobs = planned_jobs(reps)
    # Heavy tails and blocks of unlike noise, as a shared machine has them.
    generator = np.random.default_rng(4)
    noise = generator.standard_t(3, len(jobs)) * 0.02
    noise *= np.exp(generator.normal(0, 0.5, jobs["block"].max() + 1))[jobs["block"]]
    speeds = 10 * np.exp(noise)
    differences = 0
    for _ in range(NUM_PERMUTATIONS):
        shuffled = jobs.assign(order=generator.random(len(jobs))).sort_values(["block", "order"])
        labelled = jobs.sort_values(["block", "when"]).assign(
            decode_tok_per_s=speeds[shuffled.index]
        )
        differences += verdict_of(labelled, plan, "two-state") in DIFFERENCES
    assert differences / NUM_PERMUTATIONS <= size_limit(LEVEL, NUM_PERMUTATIONS)
