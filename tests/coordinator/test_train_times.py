"""Replies of a train: closed forms where there are any, the general ring model elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ring_model import RingModel, RingShape, ServiceTime
from engine.coordinator.train_times import DELAY_STEP, LEAST_DELAY, train_times

GRID = [DELAY_STEP**idx for idx in (-40, -12, 0, 9, 30)]


def shape_of(num_stages: int, delay: float, overlap: float) -> RingShape:
    """The same ring for the general model; a stage time is 10⁶ ns."""
    return RingShape(
        stages=(ServiceTime(1e6, 0.0),) * num_stages,
        hosts=(0,) * num_stages,
        one_way_ns=(round(delay * 1e6),) * (num_stages + 1),
        rate_bytes_per_s=(0,) * (num_stages + 1),
        hop_ns=0.0,
        head_ns=0.0,
        id_bytes=0,
        state_bytes=0,
        overlap=overlap,
    )


@pytest.mark.parametrize("num_stages", [1, 2, 4, 6])
@pytest.mark.parametrize("delay", GRID)
def test_without_overlap_a_reply_comes_every_stage_time(num_stages: int, delay: float) -> None:
    """Catches a stage that works on two frames, or waits for nothing."""
    alone = num_stages + (num_stages + 1) * delay
    times = train_times(num_stages, delay, 0.0, 5)
    assert times.replies == pytest.approx([alone + idx for idx in range(5)])
    assert train_times(num_stages, delay, 0.0, 1).leftover == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("num_frames", [1, 2, 5])
def test_one_stage_is_a_queue_whatever_the_overlap(num_frames: int) -> None:
    """Catches a stage that slows itself."""
    assert train_times(1, 1.0, 3.0, num_frames) == train_times(1, 1.0, 0.0, num_frames)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.sampled_from(GRID),
    st.integers(0, 25).map(lambda tenths: tenths / 10),
    st.integers(1, 8),
)
def test_it_is_the_ring_model_of_replays(
    num_stages: int, delay: float, overlap: float, num_frames: int
) -> None:
    """Catches another law than the one ideas are tried on: trains, and the frame behind a flush."""
    times = train_times(num_stages, delay, overlap, num_frames)
    ring = RingModel(shape_of(num_stages, delay, overlap))
    for idx in range(num_frames):
        ring.send(0.0, 0, idx, 1)
    first = ring.next_reply()
    assert first is not None
    ring.send(first[0], 1, 0, 1)
    fresh = first
    while fresh[1].epoch == 0:
        reply = ring.next_reply()
        assert reply is not None
        fresh = reply
    alone = num_stages + (num_stages + 1) * delay
    assert times.leftover == pytest.approx((fresh[0] - first[0]) / 1e6 - alone, abs=1e-3)
    ring = RingModel(shape_of(num_stages, delay, overlap))
    for idx in range(num_frames):
        ring.send(0.0, 0, idx, 1)
    for expected in times.replies:
        reply = ring.next_reply()
        assert reply is not None and reply[0] / 1e6 == pytest.approx(expected, abs=1e-3)


def test_delays_beyond_the_grid_are_its_ends() -> None:
    """Catches a logarithm of nothing, and a table without end."""
    assert train_times(2, 0.0, 0.5, 3) == train_times(2, LEAST_DELAY, 0.5, 3)
    assert train_times(2, 1e9, 0.5, 3) == train_times(2, 1e12, 0.5, 3)
    assert train_times(2, 1.0, 0.5, 3) == train_times(2, 1.02, 0.53, 3)
