"""The outbox: order, bound, failure."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from engine.transport.outbox import MAX_BATCH, Outbox


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=60), st.data())
def test_bytes_leave_in_order_however_the_socket_takes_them(
    frames: list[bytes], choice: st.DataObject
) -> None:
    """Catches a frame torn, swapped or sent twice by partial vectored sends."""
    outbox = Outbox()
    for frame in frames:
        assert outbox.put(memoryview(frame)) is None
    left = b""
    while not outbox.empty:
        views = outbox.batch()
        assert 1 <= len(views) <= MAX_BATCH
        offered = b"".join(views)
        num_taken = choice.draw(st.integers(1, len(offered)))
        left += offered[:num_taken]
        outbox.took(num_taken)
    assert left == b"".join(frames)
    assert outbox.wait_empty(0)


def test_a_full_outbox_holds_its_producer_until_the_socket_has_taken_enough() -> None:
    """Catches an unbounded queue: a slow link would eat the memory of a fast stage."""
    outbox = Outbox(max_pending_bytes=10)
    assert outbox.put(memoryview(bytes(30))) is None  # one frame may be larger than the bound
    put = threading.Event()
    producer = threading.Thread(target=lambda: (outbox.put(memoryview(bytes(5))), put.set()))
    producer.start()
    assert not put.wait(0.2)
    outbox.took(len(outbox.batch()[0]) - 10)
    assert not put.wait(0.2), "ten bytes are pending, the bound"
    outbox.took(1)
    assert put.wait(5)
    producer.join(timeout=5)


def test_a_failure_wakes_everybody_with_the_first_reason() -> None:
    """Catches a producer or a writer that waits for ever on a dead link."""
    outbox = Outbox(max_pending_bytes=1)
    outbox.put(memoryview(bytes(2)))
    answers: list[object] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(outbox.put(memoryview(b"x")))),
        threading.Thread(target=lambda: answers.append(outbox.wait_empty(60))),
    ]
    for thread in waiting:
        thread.start()
    outbox.fail("first")
    outbox.fail("second")
    for thread in waiting:
        thread.join(timeout=5)
        assert not thread.is_alive()
    assert sorted(answers, key=str) == [False, "first"]
    assert outbox.batch() == []
