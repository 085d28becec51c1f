"""How much stages of one machine slow each other, fitted on frames that were in flight together.

Recorded frames are sent into the modelled ring at the times at which they were really sent; what is
fitted is the one number that a lone frame cannot show. Guarantees: deterministic; a grid, so a
value says no more than its step. Must never know policies or texts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.ring_fit import applied_frames
from bench.ring_model import RingModel, RingShape
from bench.schema import FrameRow, Receipt

CANDIDATES = tuple(step / 10 for step in range(31))
MIN_FRAMES = 50  # with company; fewer say nothing


@dataclass(frozen=True, slots=True)
class OverlapFit:
    """The candidate with the least error, and how far off the model then is.

    Attributes:
        ratio: median of modelled / measured time of a frame under way.
        error: root mean square of its logarithm.
    """

    overlap: float
    num_frames: int
    ratio: float
    error: float


def fit_overlap(receipts: Sequence[Receipt], shape: RingShape) -> OverlapFit | None:
    """The best overlap for these jobs of one ring; None: too few frames had company."""
    jobs = [receipt.frames for receipt in receipts if receipt.status == "ok"]
    accompanied = [(frames, applied_frames(frames, with_company=True)) for frames in jobs]
    fits = []
    for overlap in CANDIDATES:
        ring = replace(shape, overlap=overlap)
        logs = [log for frames, own in accompanied if own for log in _log_ratios(frames, own, ring)]
        if len(logs) < MIN_FRAMES:
            return None
        error = math.sqrt(statistics.fmean(log * log for log in logs))
        ratio = math.exp(statistics.median(logs))
        fits.append(OverlapFit(overlap, len(logs), ratio, error))
    return min(fits, key=lambda fit: fit.error)


def _log_ratios(
    frames: Sequence[FrameRow], accompanied: Sequence[FrameRow], shape: RingShape
) -> list[float]:
    """log(modelled / measured) of the answered frames of a job that were not alone."""
    ring = RingModel(shape)
    for frame in frames:
        ring.send(frame.sent_ns, frame.epoch, frame.start, frame.positions_len)
    came_ns: dict[tuple[int, int], float] = {}
    while (reply := ring.next_reply()) is not None:
        when_ns, traveller = reply
        came_ns[traveller.epoch, traveller.start] = when_ns
    ratios = []
    for frame in accompanied:
        modelled = came_ns.get((frame.epoch, frame.start))
        if modelled is not None:
            ratios.append(math.log((modelled - frame.sent_ns) / _under_way_ns(frame)))
    return ratios


def _under_way_ns(frame: FrameRow) -> int:
    assert frame.received_ns is not None, "the caller has looked"
    return frame.received_ns - frame.sent_ns
