"""The overlap of stages: found again on frames that the ring model itself timed."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import msgspec
import pytest

from bench.overlap import MIN_FRAMES, fit_overlap
from bench.ring_fit import applied_frames, fit_ring
from bench.ring_model import RingModel, RingShape, ServiceTime
from bench.schema import FrameRow, Receipt, StageSpan
from engine.errors import ReceiptError
from tests.bench.receipt_builder import make_plan, make_receipt

SHAPE = RingShape(
    stages=(ServiceTime(8e6, 1e6), ServiceTime(9e6, 1e6), ServiceTime(7e6, 1e6)),
    hosts=(0, 0, 0),
    one_way_ns=(5_000_000,) * 4,
    rate_bytes_per_s=(0,) * 4,
    hop_ns=2e5,
    head_ns=1e5,
    id_bytes=3,
    state_bytes=2304,
    overlap=1.0,
)


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    """Any finished job; its frames are replaced."""
    plan = make_plan()
    return make_receipt(plan, "0" * 64, plan.jobs[0], None)


def timed_frames(
    template: FrameRow, shape: RingShape, trains: int, length: int, sizes: tuple[int, ...] = (4,)
) -> list[FrameRow]:
    """Trains of frames sent 1 ms apart, each when the last train is back; sizes take turns."""
    ring, rows, now_ns, start, size_of = RingModel(shape), [], 0, 0, cycle(sizes)
    for _ in range(trains):
        sent = []
        for idx in range(length):
            size = next(size_of)
            ring.send(now_ns + idx * 1_000_000, 0, start, size)
            sent.append((start, size, now_ns + idx * 1_000_000))
            start += size
        for idx, (begin, size, sent_ns) in enumerate(sent):
            came = ring.next_reply()
            assert came is not None and came[1].start == begin
            now_ns = round(came[0])
            rows.append(
                msgspec.structs.replace(
                    template, epoch=0, start=begin, positions_len=size, in_flight=idx + 1,
                    outcome="applied", sent_ns=sent_ns, received_ns=now_ns,
                    spans=[
                        StageSpan(queue_ns=at.queue_ns, compute_ns=at.compute_ns,
                                  span_ns=at.span_ns)
                        for at in came[1].spans
                    ],
                )
            )  # fmt: skip
    return rows


@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0, 2.1])
def test_the_overlap_that_made_the_times_is_found(receipt: Receipt, overlap: float) -> None:
    """Catches a fit that reads the wrong frames, or moves the wrong number."""
    frames = timed_frames(receipt.frames[-1], replace(SHAPE, overlap=overlap), 15, 4)
    job = msgspec.structs.replace(receipt, frames=frames)
    found = fit_overlap([job], SHAPE)
    assert found is not None and found.overlap == pytest.approx(overlap)
    assert found.ratio == pytest.approx(1.0, abs=1e-6) and found.error < 1e-6
    assert found.num_frames == len(frames)


def test_frames_alone_or_few_say_nothing(receipt: Receipt) -> None:
    """Catches an overlap out of noise."""
    alone = timed_frames(receipt.frames[-1], SHAPE, 2 * MIN_FRAMES, 1)
    assert fit_overlap([msgspec.structs.replace(receipt, frames=alone)], SHAPE) is None
    few = timed_frames(receipt.frames[-1], SHAPE, 5, 4)
    assert fit_overlap([msgspec.structs.replace(receipt, frames=few)], SHAPE) is None
    failed = msgspec.structs.replace(
        receipt, status="failed", frames=timed_frames(receipt.frames[-1], SHAPE, 30, 4)
    )
    assert fit_overlap([failed], SHAPE) is None


def test_the_first_frame_of_a_train_does_not_pass_for_one_alone(receipt: Receipt) -> None:
    """Catches service times taken from frames that others slowed, sent right behind them."""
    sizes = (2, 5, 9, 17, 30)
    slowed = timed_frames(receipt.frames[-1], replace(SHAPE, overlap=3.0), 20, 4, sizes)
    alone = timed_frames(receipt.frames[-1], SHAPE, 20, 1, sizes)
    links = [msgspec.structs.replace(receipt.links[0], rtt_ns=[10_000_000])] * 4
    ring = msgspec.structs.replace(receipt.ring, num_stages=3)
    jobs = [
        msgspec.structs.replace(receipt, ring=ring, links=links, frames=frames)
        for frames in (slowed, alone)
    ]
    fitted = fit_ring(jobs, overlap=1.0)
    for found, made in zip(fitted.stages, SHAPE.stages, strict=True):
        assert found.frame_ns == pytest.approx(made.frame_ns, rel=1e-3)
        assert found.position_ns == pytest.approx(made.position_ns, rel=1e-3)
    assert fitted.hop_ns == pytest.approx(SHAPE.hop_ns, rel=1e-2)
    with pytest.raises(ReceiptError, match="alone"):
        fit_ring(jobs[:1], overlap=1.0)


@pytest.mark.parametrize(
    ("sent_ns", "received_ns", "is_company"),
    [
        (150, 400, True),  # sent behind it, before its reply
        (0, 120, True),  # still on its way when it left
        (0, 100, False),  # back when it left
        (300, 500, False),  # sent with its reply
        (50, None, True),  # never answered: as long under way as the frame itself
        (-100, None, False),
    ],
)
def test_company_is_whoever_was_on_the_ring_meanwhile(
    receipt: Receipt, sent_ns: int, received_ns: int | None, is_company: bool
) -> None:
    """Catches stale frames that are forgotten, and frames that only touch."""
    spans = [StageSpan(queue_ns=0, compute_ns=9, span_ns=9)] * 3
    frame = msgspec.structs.replace(
        receipt.frames[-1], outcome="applied", sent_ns=100, received_ns=300, spans=spans
    )
    other = msgspec.structs.replace(
        frame, outcome="stale", sent_ns=sent_ns, received_ns=received_ns
    )
    for frames in ([frame, other], [other, frame]):
        assert applied_frames(frames, with_company=is_company) == [frame]
        assert applied_frames(frames, with_company=not is_company) == []
