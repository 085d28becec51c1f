"""The queue in front of a stage's compute: what is dropped, what is stale, and in which order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.coordinator.job import make_levers
from engine.stage.frame_queue import FrameQueue, Queued
from engine.transport.connection import Received
from engine.transport.message import AnyMessage, Attest, Reset, Verify

LEVERS = make_levers()


def queued(message: AnyMessage) -> Queued:
    return Queued(Received(message, {}, num_bytes=10), read_ns=0)


def reset(job: int) -> Reset:
    return Reset(job=job, nonce="00", levers=LEVERS)


def verify(job: int, epoch: int, start: int = 0) -> Verify:
    return Verify(job=job, epoch=epoch, start=start, positions_len=1, answer_from=start)


def taken(queue: FrameQueue, messages: list[AnyMessage]) -> list[AnyMessage]:
    """What is left in the queue when all of it has come."""
    for message in messages:
        queue.put(queued(message))
    queue.put(queued(Attest(job=-1, epoch=0)))  # of no job: a mark behind the last one
    left: list[AnyMessage] = []
    while (item := queue.get()) is not None:
        if item.received.message == Attest(job=-1, epoch=0):
            return left
        left.append(item.received.message)
    raise AssertionError("closed")


@pytest.mark.parametrize("first", [1, 9])
def test_a_job_that_is_opened_counts_whatever_its_number(first: int) -> None:
    """Catches jobs that are ordered by number: a clock that was set back gives lower ones."""
    queue = FrameQueue()
    messages = [reset(first), verify(first, 3), reset(5), verify(5, 0)]
    assert taken(queue, messages) == [reset(first), reset(5), verify(5, 0)]
    assert not queue.is_stale(verify(5, 0)) and queue.is_stale(verify(first, 3))
    assert queue.take_num_dropped(first) == 1


def test_a_newer_epoch_drops_what_waits() -> None:
    queue = FrameQueue()
    messages = [reset(5), verify(5, 0), verify(5, 0, 4), verify(5, 1), verify(5, 0, 8)]
    assert taken(queue, messages) == [reset(5), verify(5, 1), verify(5, 0, 8)]
    assert queue.is_stale(verify(5, 0, 8)) and not queue.is_stale(verify(5, 1))
    assert queue.take_num_dropped(5) == 2


@pytest.mark.parametrize("late", [verify(9, 7), Attest(job=9, epoch=7), verify(1, 7)])
def test_a_late_frame_of_another_job_drops_nothing(late: AnyMessage) -> None:
    """Catches a frame of a link that was replaced, which would make the new job's frames stale."""
    queue = FrameQueue()
    messages = [reset(5), verify(5, 0), late, verify(5, 0, 4)]
    assert taken(queue, messages) == messages
    assert not queue.is_stale(verify(5, 0))


@given(
    st.lists(
        st.one_of(
            st.integers(1, 4).map(reset),
            st.builds(verify, st.integers(1, 4), st.integers(0, 3)),
            st.builds(lambda job, epoch: Attest(job=job, epoch=epoch), st.integers(1, 4),
                      st.integers(0, 3)),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_nothing_of_the_current_job_and_epoch_is_lost(drawn: list[AnyMessage]) -> None:
    """Catches a frame that is dropped though nothing newer came, resets or attests that are, and
    another order than the one they came in."""
    messages = [  # every frame is told from every other by where it starts
        msgspec.structs.replace(m, start=place) if isinstance(m, Verify) else m
        for place, m in enumerate(drawn)
    ]
    left = taken(FrameQueue(), messages)
    assert [m for m in left if not isinstance(m, Verify)] == [
        m for m in messages if not isinstance(m, Verify)
    ]
    starts = [m.start for m in left if isinstance(m, Verify)]
    assert starts == sorted(set(starts))
    opened = max((i for i, m in enumerate(messages) if isinstance(m, Reset)), default=None)
    if opened is None:
        return
    job = messages[opened].job
    own = [m for m in messages[opened:] if isinstance(m, Verify | Attest) and m.job == job]
    newest = max((m.epoch for m in own), default=0)
    current = [m.start for m in own if isinstance(m, Verify) and m.epoch == newest]
    assert [start for start in starts if start > opened and start in current] == current
