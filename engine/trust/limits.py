"""How far honest computing of a stage may be from a replica's, by what the stage computes in.

Two limits, since two kinds of cheating differ: a change of one position, however few it touches,
and coarser computing, which moves every position a little while honest outliers move more.
Guarantees: a position's limit is four times the largest honest error seen, on the fp8 wire a step
of that format, which no nearness of the numbers prevents; a median's lies halfway, by ratio,
between the largest honest one and that of the mildest coarser computing. Must never know frames.

Of the packaged model: set on three cells and held against three others by
`python -m bench.studies.challenge` (docs/decisions/0016). A larger one may need its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.trust.sketch import Floats

MEDIAN_FROM = 64  # positions: the median of fewer is no measure


@dataclass(frozen=True, slots=True)
class Limits:
    """Relative errors that pass.

    Attributes:
        position: of any one position.
        median: of the median over all compared positions of a stage.
    """

    position: float
    median: float


LIMITS: Mapping[str, Limits] = {
    # Halfway to bf16 states lies above a position's limit, so here the median says nothing more.
    "f32": Limits(position=3.4e-5, median=3.4e-5),
    "bf16": Limits(position=0.37, median=1.4e-2),
    # f32 computing on the fp8 wire: where a rounding falls the other way, a coordinate moves by up
    # to an eighth of itself, and it may be nearly all of its position.
    "fp8": Limits(position=0.13, median=4.7e-5),
}


def first_beyond(errors: Floats, limits: Limits) -> int | None:
    """The first position that does not pass. Shapes: errors [T]; NaN is no pass."""
    beyond = np.flatnonzero(~(errors <= limits.position))
    return int(beyond[0]) if beyond.size else None


def too_coarse(errors: Floats, limits: Limits) -> bool:
    """Whether positions are off on the whole, though each may pass. Shapes: errors [T]."""
    return errors.size >= MEDIAN_FROM and not float(np.median(errors)) <= limits.median
