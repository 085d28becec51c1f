"""Recorded jobs on a modelled ring: a ring that is the model gives the recorded times back."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from analysis.retime import OTHER, HeadTimes, causes, fit_head, modelled_decode_s
from bench.ring_model import RingModel, RingShape, ServiceTime
from bench.schema import FrameRow, Receipt
from engine.errors import ReceiptError
from tests.bench.receipt_builder import make_plan, make_receipt

AFTER_REPLY_NS, AFTER_FRAME_NS = 400_000, 150_000
HEAD = HeadTimes({OTHER: AFTER_REPLY_NS}, {OTHER: AFTER_FRAME_NS})
SHAPE = RingShape(
    stages=(ServiceTime(8e6, 1e6), ServiceTime(9e6, 1e6)),
    hosts=(0, 0),
    one_way_ns=(5_000_000,) * 3,
    rate_bytes_per_s=(0,) * 3,
    hop_ns=2e5,
    head_ns=0.0,
    id_bytes=3,
    state_bytes=2304,
    overlap=0.7,
)


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    """Any finished job; its frames are replaced."""
    plan = make_plan()
    return make_receipt(plan, "0" * 64, plan.jobs[0], None)


def ridden(template: FrameRow, bursts: list[list[int]]) -> list[FrameRow]:
    """Frames of a ring that is the model: a burst leaves when the last one's replies are back."""
    ring, rows, start = RingModel(SHAPE), [], 0
    reply_ns, now_ns = 0.0, 0.0
    for burst_idx, sizes in enumerate(bursts):
        sent = []
        for idx, size in enumerate(sizes):
            if burst_idx:
                now_ns = now_ns + AFTER_FRAME_NS if idx else reply_ns + AFTER_REPLY_NS
            ring.send(now_ns, 0, start, size)
            sent.append((start, size, now_ns))
            start += size
        for begin, size, sent_ns in sent:
            came = ring.next_reply()
            assert came is not None and came[1].start == begin
            reply_ns = came[0]
            is_prompt = not burst_idx
            rows.append(
                msgspec.structs.replace(
                    template, epoch=0, start=begin, positions_len=size, spans=[],
                    outcome="prefill" if is_prompt else "applied", source="prefill" if is_prompt
                    else "ngram", committed_len=1, sent_ns=round(sent_ns),
                    received_ns=round(reply_ns),
                )
            )  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def job(receipt: Receipt) -> Receipt:
    bursts = [[40], [9, 9, 9], [5], [1], [9, 2], [17]]
    return msgspec.structs.replace(receipt, frames=ridden(receipt.frames[-1], bursts))


def recorded_s(job: Receipt) -> float:
    first, last = job.frames[0].received_ns, job.frames[-1].received_ns
    assert first is not None and last is not None
    return (last - first) / 1e9


def test_a_ring_that_is_the_model_gives_its_times_back(job: Receipt) -> None:
    """Catches a cause that is off by one, a burst that waits for its own replies, a lost frame."""
    assert modelled_decode_s(job, SHAPE, HEAD) == pytest.approx(recorded_s(job), rel=1e-6)


def test_the_fit_finds_what_the_coordinator_took(job: Receipt) -> None:
    found = fit_head([job])
    assert found.before("ngram", leads_burst=True) == pytest.approx(AFTER_REPLY_NS, abs=2)
    assert found.before("ngram", leads_burst=False) == pytest.approx(AFTER_FRAME_NS, abs=2)
    assert found.before("tree", leads_burst=True) == pytest.approx(AFTER_REPLY_NS, abs=2)


def test_nothing_of_the_job_s_own_times_is_used(job: Receipt) -> None:
    """Catches a prediction that leans on what it predicts: all times stretched, same answer."""
    later = [
        msgspec.structs.replace(
            frame, sent_ns=frame.sent_ns * 3, received_ns=(frame.received_ns or 0) * 3
        )
        for frame in job.frames
    ]
    stretched = msgspec.structs.replace(job, frames=later)
    assert modelled_decode_s(stretched, SHAPE, HEAD) == modelled_decode_s(job, SHAPE, HEAD)


def test_a_slower_ring_is_predicted_slower(job: Receipt) -> None:
    near = replace(SHAPE, overlap=0.0)  # else stages that meet less often slow each other less
    far = replace(near, one_way_ns=(50_000_000,) * 3)
    loops = 5  # bursts behind the prompt
    more = modelled_decode_s(job, far, HEAD) - modelled_decode_s(job, near, HEAD)
    assert more == pytest.approx(loops * 3 * 0.045, rel=1e-6)


def test_every_frame_follows_from_the_last_reply_read_before_it(job: Receipt) -> None:
    assert causes(job.frames) == [None, 0, 0, 0, 3, 4, 5, 5, 7]


def test_a_stale_frame_s_reply_leads_to_nothing(job: Receipt) -> None:
    frames = list(job.frames)
    frames[3] = msgspec.structs.replace(frames[3], outcome="stale", received_ns=None)
    assert causes(frames)[4] == 2


def test_a_job_without_decode_frames_has_no_head(receipt: Receipt, job: Receipt) -> None:
    only_prompt = msgspec.structs.replace(receipt, frames=job.frames[:1])
    with pytest.raises(ReceiptError, match="no decode frame"):
        fit_head([only_prompt])
    assert modelled_decode_s(only_prompt, SHAPE, HEAD) == 0.0
