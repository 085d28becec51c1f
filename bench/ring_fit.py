"""What a ring cost, fitted on the frames of its jobs.

Guarantees: closed form: equal receipts give equal rings; `bench.overlap` fits what a lone frame
cannot show. Imports nothing of the engine but its errors, so that the analysis can use it. Must
never know policies or texts.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from bench.ring_model import RingShape, ServiceTime
from bench.schema import FrameRow, Receipt
from engine.errors import ReceiptError

ID_BYTES, STATE_BYTES = 3, 2304


def fit_ring(receipts: Sequence[Receipt], overlap: float) -> RingShape:
    """The ring that these jobs ran on, all of one ring configuration, as it was measured.

    Service times come from frames that were alone in the ring, links from the probes.

    Raises:
        ReceiptError: no frame was alone, or the links were not measured.
    """
    alone = [frame for receipt in receipts for frame in applied_frames(receipt.frames, False)]
    if not alone or not receipts[0].links or not receipts[0].links[0].rtt_ns:
        raise ReceiptError("no frame that was alone in the ring, or links without probes")
    one_way_ns = [round(statistics.median(link.rtt_ns) / 2) for link in receipts[0].links]
    rest_ns = [
        _travelled(frame) - sum(span.span_ns for span in frame.spans) - sum(one_way_ns)
        for frame in alone
    ]
    stages = [_service(alone, stage_idx) for stage_idx in range(receipts[0].ring.num_stages)]
    return RingShape(
        stages=tuple(stages),
        hosts=(0,) * len(stages),  # the harness starts every stage on this machine
        one_way_ns=tuple(one_way_ns),
        rate_bytes_per_s=tuple(link.rate_bytes_per_s for link in receipts[0].links),
        hop_ns=max(0.0, statistics.median(rest_ns) / len(one_way_ns)),
        head_ns=_head_ns(receipts),
        id_bytes=ID_BYTES,
        state_bytes=STATE_BYTES,
        overlap=overlap,
    )


def applied_frames(frames: Sequence[FrameRow], with_company: bool) -> list[FrameRow]:
    """Frames of a job that had the ring to themselves all the way, or those that had not.

    A frame that was never answered counts as long on its way as the one it is held against, as in
    `engine.coordinator.flight`.
    """
    return [
        frame
        for frame in frames
        if frame.outcome == "applied"
        and frame.spans
        and any(_met(frame, other) for other in frames if other is not frame) == with_company
    ]


def _met(frame: FrameRow, other: FrameRow) -> bool:
    assert frame.received_ns is not None, "an applied frame was answered"
    left_ns = other.received_ns or other.sent_ns + _travelled(frame)
    return other.sent_ns < frame.received_ns and frame.sent_ns < left_ns


def _travelled(frame: FrameRow) -> int:
    assert frame.received_ns is not None, "an applied frame was answered"
    return frame.received_ns - frame.sent_ns


def _service(frames: Sequence[FrameRow], stage_idx: int) -> ServiceTime:
    """Least squares over frames; a coefficient that comes out negative is left out."""
    spent = np.array([frame.spans[stage_idx].compute_ns for frame in frames], dtype=float)
    lengths = np.array([frame.positions_len for frame in frames], dtype=float)
    ends = np.array([frame.start + frame.positions_len for frame in frames], dtype=float)
    columns = {"frame_ns": np.ones_like(lengths), "position_ns": lengths, "context_ns": ends}
    solved, _ = nnls(np.stack(list(columns.values()), axis=1), spent)
    return ServiceTime(**dict(zip(columns, map(float, solved), strict=True)))


def _head_ns(receipts: Sequence[Receipt]) -> float:
    """What the coordinator takes from a reply to the frame it leads to, one frame in flight."""
    waits = []
    for receipt in receipts:
        if receipt.requested.depth != 1:
            continue
        for before, after in zip(receipt.frames, receipt.frames[1:], strict=False):
            if before.received_ns is not None and after.sent_ns >= before.received_ns:
                waits.append(after.sent_ns - before.received_ns)
    return statistics.median(waits) if waits else 0.0
