"""How far honest computing of a stage may be from a replica's, by what the stage computes in.

Two limits of states, since two kinds of cheating differ: a change of single positions, and coarser
computing, which moves every position a little while honest outliers move more. Frames are drawn, so
frames are judged: a stage that computes some of them coarsely is found by each of those.
Guarantees: a position's limit is four times the largest honest error seen, on the fp8 wire a step
of that format, which no nearness of the numbers prevents; a median's lies halfway, by ratio,
between the largest honest one and that of the mildest coarser computing that shows above the
format's own noise; a score's is four times the largest honest error. Must never know frames' bytes.

Of the packaged model: set on three cells and held against three others by
`python -m bench.studies.challenge` (docs/decisions/0016, which says what passes all the same). A
larger model may need its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.trust.sketch import Floats

GROUP_LEN = 9  # positions: the median of fewer is no measure; a frame of 8 drafts has as many


@dataclass(frozen=True, slots=True)
class Limits:
    """Relative errors that pass.

    Attributes:
        position: of the states of any one position.
        median: of the median over a group of positions.
        score: of any one position's scores, which no wire has rounded.
    """

    position: float
    median: float
    score: float


LIMITS: Mapping[str, Limits] = {
    # Halfway to bf16 states lies above a position's limit, so here the median says nothing more.
    "f32": Limits(position=3.4e-5, median=3.4e-5, score=1e-4),
    "bf16": Limits(position=0.37, median=1.4e-2, score=0.1),
    # f32 computing on the fp8 wire: where a rounding falls the other way, a coordinate moves by up
    # to an eighth of itself, and it may be nearly all of its position.
    "fp8": Limits(position=0.13, median=4.7e-5, score=1e-4),
}


def first_beyond(errors: Floats, limits: Limits) -> int | None:
    """The first position that does not pass. Shapes: errors [T]; NaN is no pass."""
    beyond = np.flatnonzero(~(errors <= limits.position))
    return int(beyond[0]) if beyond.size else None


def grouped(frames: Sequence[Floats]) -> list[tuple[int, Floats]]:
    """Positions in groups that a median can be taken of.

    Consecutive frames make a group as soon as they have `GROUP_LEN` positions; what is left at the
    end joins the last one. Frames that have fewer together make none.

    Args:
        frames: errors of the compared frames, each [T].

    Returns:
        For each group the index of its first frame, and its errors.
    """
    groups: list[tuple[int, Floats]] = []
    first, pending = 0, np.zeros(0)
    for idx, errors in enumerate(frames):
        pending = np.concatenate([pending, errors])
        if pending.size >= GROUP_LEN:
            groups.append((first, pending))
            first, pending = idx + 1, np.zeros(0)
    if groups and pending.size:
        begun, errors = groups[-1]
        groups[-1] = (begun, np.concatenate([errors, pending]))
    return groups


def first_coarse(frames: Sequence[Floats], limits: Limits) -> tuple[int, float] | None:
    """The first group that is off on the whole, though each position may pass.

    Returns:
        The index of its first frame and its median; None: every group passes, or there is none.
    """
    for first, errors in grouped(frames):
        median = float(np.median(errors))
        if not median <= limits.median:
            return first, median
    return None
