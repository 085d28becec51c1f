"""The overlap of stages: found again on frames that the ring model itself timed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from bench.overlap import MIN_FRAMES, fit_overlap
from bench.ring_model import RingModel, RingShape, ServiceTime
from bench.schema import FrameRow, Receipt
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


def timed_frames(template: FrameRow, shape: RingShape, trains: int, length: int) -> list[FrameRow]:
    """Trains of frames sent 1 ms apart, each when the last train is back."""
    ring, rows, now_ns, start = RingModel(shape), [], 0, 0
    for _ in range(trains):
        sent = []
        for idx in range(length):
            ring.send(now_ns + idx * 1_000_000, 0, start, 4)
            sent.append((start, now_ns + idx * 1_000_000))
            start += 4
        for idx, (begin, sent_ns) in enumerate(sent):
            came = ring.next_reply()
            assert came is not None and came[1].start == begin
            now_ns = round(came[0])
            rows.append(
                msgspec.structs.replace(
                    template, epoch=0, start=begin, positions_len=4, in_flight=idx + 1,
                    outcome="applied", sent_ns=sent_ns, received_ns=now_ns,
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
