"""Ratios between arms, paired within blocks, and what the null arm says about them.

Guarantees: a ratio compares two jobs of one block only; no verdict is given without a null band,
and none that the band swallows; every bootstrap is seeded by what it estimates, so the same
receipts give the same digits. Must never know files, tables or axes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.schema import Plan
from engine.errors import ReceiptError

MIN_REPS = 4  # fewer repetitions establish no null band (DESIGN section 13)
NUM_RESAMPLES = 2000
CENTRAL = (0.025, 0.975)  # ends of a 95 % interval
ALL_CELLS = "all cells"

FASTER = "faster"
SLOWER = "slower"
INSIDE = "unresolved (inside the null band)"
REACHES = "unresolved (interval reaches the null band)"
NO_VERDICT = "no verdict (band not established)"
NULL_ARM = "makes the null band"
RATIO_COLUMNS = ("cell", "arm", "base", "blocks", "ratio", "low", "high", "verdict")


@dataclass(frozen=True, slots=True)
class NullBand:
    """How far two names of one arm stand apart; `low` and `high` are ratios, NaN if not known."""

    base: str
    null_arm: str | None
    num_blocks: int
    num_reps: int
    low: float
    high: float

    @property
    def is_established(self) -> bool:
        return self.null_arm is not None and self.num_reps >= MIN_REPS


def paired_log_ratios(jobs: pd.DataFrame, metric: str, arm: str, base: str) -> pd.DataFrame:
    """ln(arm / base) of every block that has both; columns rep, cell, block, log_ratio."""
    keys = ["rep", "cell", "block"]
    sides = [jobs[jobs["arm"] == name].set_index(keys)[metric] for name in (arm, base)]
    paired = pd.concat(sides, axis=1, join="inner", keys=["arm", "base"]).sort_index()
    paired["log_ratio"] = np.log(paired["arm"] / paired["base"])
    return paired["log_ratio"].dropna().reset_index()


def null_band(jobs: pd.DataFrame, plan: Plan, metric: str, base: str) -> NullBand:
    """The central 95 % interval of the paired ratios null / base over all blocks.

    The null takes the place of the arm. Blocks are drawn with replacement; the band runs from the
    low end of the bootstrap interval of the 2.5 % quantile to the high end of that of the 97.5 %
    quantile. No bootstrap leaves its sample: with few blocks the band is about their range, which
    holds a further ratio with probability (n - 1) / (n + 1), 94 % at 32 blocks and 60 % at 4. It
    always holds ratio 1: a null that is off to one side is noise too.
    """
    null_arm = next((null for null, repeated in plan.null_pairs.items() if repeated == base), None)
    if null_arm is None:
        return NullBand(base, None, 0, 0, float("nan"), float("nan"))
    pairs = paired_log_ratios(jobs, metric, null_arm, base)
    num_reps = int(pairs["rep"].nunique())
    if num_reps < MIN_REPS:
        return NullBand(base, null_arm, len(pairs), num_reps, float("nan"), float("nan"))
    logs = pairs["log_ratio"].to_numpy()
    generator = _generator("null band", metric, null_arm, base)
    drawn = logs[generator.integers(0, len(logs), size=(NUM_RESAMPLES, len(logs)))]
    ends = np.quantile(drawn, CENTRAL, axis=1)
    low = min(0.0, float(np.quantile(ends[0], CENTRAL[0])))
    high = max(0.0, float(np.quantile(ends[1], CENTRAL[1])))
    return NullBand(base, null_arm, len(pairs), num_reps, float(np.exp(low)), float(np.exp(high)))


def geometric_mean_ratio(pairs: pd.DataFrame, seed_text: str) -> tuple[float, float, float]:
    """Geometric mean over cells of each cell's geometric mean, with its 95 % interval.

    Blocks are drawn with replacement within their cell: the cells are fixed, not sampled. The mean
    of n draws from n values has (n - 1) / n of the variance it should have, so deviations are
    stretched accordingly. With one block in a cell the interval is NaN, as nothing says how far a
    block can stray.
    """
    strata = [group["log_ratio"].to_numpy() for _, group in pairs.groupby("cell")]
    if not strata:
        return float("nan"), float("nan"), float("nan")
    ratio = float(np.exp(np.mean([logs.mean() for logs in strata])))
    if min(len(logs) for logs in strata) < 2:
        return ratio, float("nan"), float("nan")
    generator = _generator("geometric mean", seed_text)
    means = [
        logs[generator.integers(0, len(logs), size=(NUM_RESAMPLES, len(logs)))].mean(axis=1)
        for logs in strata
    ]
    fewest = min(len(logs) for logs in strata)
    deviations = (np.mean(means, axis=0) - np.log(ratio)) * np.sqrt(fewest / (fewest - 1))
    low, high = ratio * np.exp(np.quantile(deviations, CENTRAL))
    return ratio, float(low), float(high)


def verdict(ratio: float, low: float, high: float, band: NullBand) -> str:
    """Compare a ratio of speeds and its interval with the null band."""
    if not band.is_established or np.isnan(ratio) or np.isnan(low) or np.isnan(high):
        return NO_VERDICT
    if low > band.high:
        return FASTER
    if high < band.low:
        return SLOWER
    return INSIDE if band.low <= ratio <= band.high else REACHES


def ratio_table(
    jobs: pd.DataFrame, plan: Plan, base: str, arms: list[str], metric: str = "decode_tok_per_s"
) -> tuple[pd.DataFrame, NullBand]:
    """Every arm against `base`, by cell and over all cells; RATIO_COLUMNS.

    Args:
        jobs: of `analysis.load.jobs_frame`.
        plan: names cells and null pairs.
        base: what the others are divided by.
        arms: the arms to compare; `base` is skipped.
        metric: larger must mean faster.

    Raises:
        ReceiptError: the plan has no base arm: nothing in it was run to be timed.
    """
    if not plan.base_arm:
        raise ReceiptError(f"experiment {plan.experiment!r} times nothing: no ratio, no null band")
    band = null_band(jobs, plan, metric, base)
    rows = []
    for arm in arms:
        if arm == base:
            continue
        pairs = paired_log_ratios(jobs, metric, arm, base)
        for cell in (*(row.name for row in plan.cells), ALL_CELLS):
            chosen = pairs if cell == ALL_CELLS else pairs[pairs["cell"] == cell]
            if cell == ALL_CELLS and pairs["cell"].nunique() < len(plan.cells):
                chosen = pairs.iloc[:0]  # a mean over the cells that happen to be left is no mean
            numbers = geometric_mean_ratio(chosen, f"{metric} {arm} {base} {cell}")
            # A cell needs as many blocks as a band needs repetitions; the null arm made the band.
            few = len(chosen) < MIN_REPS
            words = NO_VERDICT if few else verdict(*numbers, band)
            words = NULL_ARM if arm == band.null_arm and band.is_established else words
            rows.append((cell, arm, base, len(chosen), *numbers, words))
    return pd.DataFrame(rows, columns=list(RATIO_COLUMNS)), band


def _generator(*purpose: str) -> np.random.Generator:
    digest = hashlib.sha256("\0".join(purpose).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
