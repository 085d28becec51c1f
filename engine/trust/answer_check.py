"""Could these ids have been chosen from these scores, up to rounding?

Guarantees: an id passes only if it is the chosen one, or so close behind that an error of the given
share of the row's length, spread over the row, could put it ahead. Must never know frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from engine.model.sampling import SamplingParams, candidate_ids, noise_uniforms, sample_ids

NUM_DEVIATIONS = (
    8  # by which the nearest of many ids may be moved; the threshold has its own margin
)


def fault_of(
    logits: torch.Tensor,
    ids: Sequence[int],
    positions: Sequence[int],
    params: SamplingParams,
    threshold: float,
) -> str:
    """What is wrong with the first id that could not have been chosen; empty if all could.

    An error of e lengths of a row, spread over its V scores, moves one by about e lengths / √V. The
    row's whole length would be no measure: in a large vocabulary any id is within e of it.

    Args:
        logits: one's own.
        ids: the answer, one a row.
        positions: of the token that each row chooses.
        threshold: e.

    Shapes:
        logits: [T, V] float32
    """
    chosen = sample_ids(logits, positions, params)
    for row, position, theirs, ours in zip(logits, positions, ids, chosen, strict=True):
        gap = _score_gap(row, theirs, ours, position, params)
        allowed = NUM_DEVIATIONS * threshold * float(row.double().square().mean().sqrt())
        if not gap <= allowed:
            return (
                f"answers position {position} with {theirs}; it is {ours}, ahead by "
                f"{gap:.2e} where {allowed:.2e} is allowed"
            )
    return ""


def _score_gap(
    row: torch.Tensor, theirs: int, ours: int, position: int, params: SamplingParams
) -> float:
    """By how much, in logits, the other id falls behind. Shapes: row [V]."""
    if theirs == ours:
        return 0.0
    if not 0 <= theirs < row.numel():
        return math.inf
    gap = float(row[ours]) - float(row[theirs])
    if params.temperature == 0:
        return gap
    noise = -np.log(-np.log(noise_uniforms(params.seed, position, row.numel())[[ours, theirs]]))
    gap += params.temperature * float(noise[0] - noise[1])
    candidates = candidate_ids(row.numpy(), params)
    if theirs in candidates:
        return gap
    return max(gap, float(row[candidates].min()) - float(row[theirs]))
