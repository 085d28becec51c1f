"""A recorded job on a modelled ring: when would its frames have left, and when been answered?

Which frames a job sent, and which replies led to which, is taken from its receipt; when, from the
model: a frame leaves when the reply that led to it has come and the coordinator has drafted it, and
comes back as `bench.ring_model` says. So what is predicted is time alone, for any drafter and any
policy. Guarantees: deterministic; nothing of the job's own times enters its prediction. Must never
know files or axes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from analysis.checks import ANSWERED_OUTCOMES
from bench.ring_model import RingModel, RingShape
from bench.schema import FrameRow, Receipt
from engine.errors import ReceiptError

NS_PER_S = 1_000_000_000
OTHER = ""  # a source that no fitted job drafted from


@dataclass(frozen=True, slots=True)
class HeadTimes:
    """What the coordinator takes before a frame leaves, ns, by the source of the frame's draft.

    Attributes:
        after_reply: from reading the reply that led to it.
        after_frame: from the frame before, if both follow from one reply.
    """

    after_reply: Mapping[str, float]
    after_frame: Mapping[str, float]

    def before(self, source: str, leads_burst: bool) -> float:
        """The wait of one frame; of a source never seen, the median over all."""
        waits = self.after_reply if leads_burst else self.after_frame
        return waits.get(source, waits[OTHER])


def causes(frames: Sequence[FrameRow]) -> list[int | None]:
    """The answered frame whose reply was the last one read when each frame left; None: none was."""
    replies = sorted(
        (frame.received_ns, idx)
        for idx, frame in enumerate(frames)
        if frame.outcome in ANSWERED_OUTCOMES and frame.received_ns is not None
    )
    found: list[int | None] = []
    for idx, frame in enumerate(frames):
        at = bisect_right(replies, (frame.sent_ns, len(frames))) - 1
        while at >= 0 and replies[at][1] >= idx:  # a reply that took no time: its own, or a later's
            at -= 1
        found.append(replies[at][1] if at >= 0 else None)
    return found


def fit_head(receipts: Sequence[Receipt]) -> HeadTimes:
    """Medians over the decode frames of these jobs.

    Raises:
        ReceiptError: no decode frame follows from a reply.
    """
    after_reply: dict[str, list[int]] = defaultdict(list)
    after_frame: dict[str, list[int]] = defaultdict(list)
    for receipt in receipts:
        found = causes(receipt.frames)
        for idx, (frame, cause) in enumerate(zip(receipt.frames, found, strict=True)):
            if cause is None or frame.outcome == "prefill":
                continue
            leads = found[idx - 1] != cause
            waits, before = (after_reply, cause) if leads else (after_frame, idx - 1)
            earlier = receipt.frames[before]
            since_ns = earlier.received_ns if leads else earlier.sent_ns
            assert since_ns is not None, "a cause was answered"
            for source in (frame.source, OTHER):
                waits[source].append(frame.sent_ns - since_ns)
    if not after_reply:
        raise ReceiptError("no decode frame follows from a reply: nothing to fit")
    after_frame.setdefault(OTHER, [0])
    return HeadTimes(
        *(
            {source: float(median(own)) for source, own in waits.items()}
            for waits in (after_reply, after_frame)
        )
    )


def modelled_decode_s(receipt: Receipt, shape: RingShape, head: HeadTimes) -> float:
    """Seconds from the first commit to the last, on the modelled ring.

    Raises:
        ReceiptError: a frame waits for a reply that the model does not give.
    """
    frames = receipt.frames
    commits = [idx for idx, frame in enumerate(frames) if frame.committed_len]
    if len(commits) < 2:
        return 0.0
    ride = _Ride(frames, shape)
    found = causes(frames)
    now_ns = 0.0
    for idx, (frame, cause) in enumerate(zip(frames, found, strict=True)):
        if cause is not None:
            leads = found[idx - 1] != cause
            since_ns = ride.answered_ns(cause) if leads else now_ns
            now_ns = max(now_ns, since_ns + head.before(frame.source, leads))
        ride.ring.send(now_ns, frame.epoch, frame.start, frame.positions_len)
    last_ns = max(ride.answered_ns(idx) for idx in commits)
    first_ns = min(ride.answered_ns(idx) for idx in commits)
    return (last_ns - first_ns) / NS_PER_S


class _Ride:
    """The modelled ring, and when it answered which frame."""

    def __init__(self, frames: Sequence[FrameRow], shape: RingShape) -> None:
        self.ring = RingModel(shape)
        self._frames = frames
        self._came_ns: dict[tuple[int, int], float] = {}

    def answered_ns(self, idx: int) -> float:
        """When a frame's reply came; runs the ring on to it."""
        key = (self._frames[idx].epoch, self._frames[idx].start)
        while key not in self._came_ns:
            reply = self.ring.next_reply()
            if reply is None:
                raise ReceiptError(
                    f"the modelled ring never answers epoch {key[0]}, start {key[1]}"
                )
            when_ns, traveller = reply
            self._came_ns[traveller.epoch, traveller.start] = when_ns
        return self._came_ns[key]
