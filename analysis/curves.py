"""Acceptance curves from rounds: by distance, and accepted lengths beside the geometric law.

Guarantees: one request counts once. Greedy repetitions repeat themselves, so `first_rep` keeps one
job per cell and arm, and no interval here pretends that repetitions are new evidence. Must never
know files or axes, and claims nothing about independence: that is the exact tests' business.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from analysis.checks import ROUND_OUTCOMES

DISTANCE_COLUMNS = ("distance", "last_distance", "tested", "accepted", "rate", "low", "high")
LENGTH_COLUMNS = ("accepted_len", "rounds", "geometric")


def first_rep(rounds: pd.DataFrame) -> pd.DataFrame:
    """Keep, of every cell and arm, the frames of its first used repetition."""
    if rounds.empty:
        return rounds
    first = rounds.groupby(["cell", "arm"])["rep"].transform("min")
    return rounds[rounds["rep"] == first]


def chain_rounds(frames: pd.DataFrame) -> pd.DataFrame:
    """Rounds with drafts in a chain: no stale frame, no tree, no frame without drafts."""
    if frames.empty:
        return frames
    is_round = frames["outcome"].isin(ROUND_OUTCOMES)
    return frames[is_round & (frames["source"] != "tree") & (frames["draft_len"] > 0)]


def drafts_by_distance(frames: pd.DataFrame) -> pd.DataFrame:
    """One row per tested draft: `distance` from the last verified token, and `accepted`.

    The last token verified when a frame was sent stands at `frontier_at_send` − 1. Drafts of a
    frame that left while others were under way are farther from it than their index says.
    """
    rows = [
        (row.first_draft + idx - row.frontier_at_send + 1, idx < row.accepted_len)
        for row in chain_rounds(frames).itertuples()
        for idx in range(row.tested_len)
    ]
    return pd.DataFrame(rows, columns=["distance", "accepted"])


def acceptance_by_distance(frames: pd.DataFrame, alone_len: int) -> pd.DataFrame:
    """Conditional acceptance, accepted / tested, by distance; DISTANCE_COLUMNS.

    Args:
        frames: of one arm and cell, one repetition.
        alone_len: distances 1 … alone_len stand alone; those beyond, which a full pipe reaches
            rarely, are pooled in runs of alone_len. A row covers `distance` … `last_distance`.

    Source: Clopper and Pearson 1934, 95 % interval; exact for independent drafts.
    """
    drafts = drafts_by_distance(frames)
    run_idx = (drafts["distance"] - 1) // alone_len
    starts = drafts["distance"].where(run_idx == 0, run_idx * alone_len + 1)
    rows = []
    for start, group in drafts.groupby(starts):
        tested, accepted = len(group), int(group["accepted"].sum())
        last = start if start <= alone_len else start + alone_len - 1
        low, high = clopper_pearson(accepted, tested)
        rows.append((start, last, tested, accepted, accepted / tested, low, high))
    return pd.DataFrame(rows, columns=list(DISTANCE_COLUMNS))


def clopper_pearson(accepted: int, tested: int, level: float = 0.95) -> tuple[float, float]:
    """Exact binomial interval of accepted / tested."""
    tail = (1 - level) / 2
    low = stats.beta.ppf(tail, accepted, tested - accepted + 1) if accepted else 0.0
    high = stats.beta.ppf(1 - tail, accepted + 1, tested - accepted) if accepted < tested else 1.0
    return float(low), float(high)


def pooled_alpha(frames: pd.DataFrame) -> float:
    """`alpha_hat` = Σ a / Σ tested over chain rounds; NaN without a tested draft."""
    rounds = chain_rounds(frames)
    tested = 0 if rounds.empty else int(rounds["tested_len"].sum())
    return int(rounds["accepted_len"].sum()) / tested if tested else float("nan")


def geometric_law(alpha: float, draft_len: int) -> np.ndarray:
    """P(a = j), j = 0 … k, if every draft were accepted with probability alpha until a refusal."""
    lengths = np.arange(draft_len + 1)
    law = alpha**lengths * (1 - alpha)
    law[-1] = alpha**draft_len
    return law


def accepted_lengths(frames: pd.DataFrame) -> pd.DataFrame:
    """Rounds by accepted length, and the count that the geometric law gives; LENGTH_COLUMNS.

    The law takes each round's own k (rounds cut by the end of output are short) and the same
    rounds' `alpha_hat`.
    """
    rounds = chain_rounds(frames)
    if rounds.empty:
        return pd.DataFrame(columns=list(LENGTH_COLUMNS))
    alpha = pooled_alpha(frames)
    longest = int(rounds["draft_len"].max())
    counts = np.bincount(rounds["accepted_len"].astype(int), minlength=longest + 1)
    expected = np.zeros(longest + 1)
    for draft_len in rounds["draft_len"]:
        expected[: draft_len + 1] += geometric_law(alpha, draft_len)
    return pd.DataFrame(
        {"accepted_len": np.arange(longest + 1), "rounds": counts, "geometric": expected}
    )
