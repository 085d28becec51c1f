"""Noops on a silent link: they come, they wait for nobody, nobody waits for them."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from engine.errors import ConfigError, LinkClosedError
from engine.transport.keep_warm import (
    LEAST_INTERVAL_MS,
    MOST_INTERVAL_MS,
    OFF,
    KeepWarm,
    check_interval,
)
from engine.transport.link import Link
from engine.transport.message import Noop
from tests.transport.test_link import HIDDEN, linked, numbered

NEVER_S = 0.3  # what does not come in so long was not sent
SOON_S = 20.0


def silent(link: Link) -> bool:
    """Whether nothing comes for a while."""
    try:
        link.receive(time.monotonic() + NEVER_S)
    except LinkClosedError as error:
        return "silent" in str(error)
    return False


@pytest.mark.parametrize("interval_ms", [OFF, LEAST_INTERVAL_MS, 500, MOST_INTERVAL_MS])
def test_intervals_in_range_are_taken(interval_ms: int) -> None:
    check_interval(interval_ms)


@pytest.mark.parametrize("interval_ms", [-1, 1, LEAST_INTERVAL_MS - 1, MOST_INTERVAL_MS + 1])
def test_other_intervals_are_refused_with_the_range(interval_ms: int) -> None:
    """Catches a lever that floods a link."""
    with pytest.raises(ConfigError, match=r"20\.\.60000"):
        check_interval(interval_ms)


def test_silence_is_filled_and_counted() -> None:
    """Catches a thread that sends one noop and no more, and noops that nobody counts."""
    near, far = linked()
    warmth = KeepWarm(near)
    warmth.every(LEAST_INTERVAL_MS)
    for _ in range(4):
        assert isinstance(far.receive(time.monotonic() + SOON_S).message, Noop)
    warmth.every(OFF)
    num_sent = warmth.take_num_sent()
    assert num_sent >= 4 and warmth.take_num_sent() in (0, 1)  # one may have been on its way
    near.close()
    far.close()


def test_a_link_that_is_used_needs_no_noop() -> None:
    """Catches noops by the clock alone: what counts is the last frame sent."""
    near, far = linked()
    near.last_sent_s = time.monotonic() + 60
    warmth = KeepWarm(near)
    warmth.every(LEAST_INTERVAL_MS)
    assert silent(far)
    near.send(numbered(1))
    assert near.last_sent_s <= time.monotonic(), "a frame counts as sent when it was"
    assert far.receive(time.monotonic() + SOON_S).message == numbered(1)
    warmth.every(LEAST_INTERVAL_MS)  # it looks again, before the minute that was pretended
    assert isinstance(far.receive(time.monotonic() + SOON_S).message, Noop)
    warmth.end()
    near.close()
    far.close()


def test_off_is_off_and_on_again_is_on() -> None:
    """Catches a lever that cannot be taken back between jobs."""
    near, far = linked()
    warmth = KeepWarm(near)
    warmth.every(LEAST_INTERVAL_MS)
    assert isinstance(far.receive(time.monotonic() + SOON_S).message, Noop)
    warmth.every(OFF)
    while not silent(far):
        pass
    warmth.every(LEAST_INTERVAL_MS)
    assert isinstance(far.receive(time.monotonic() + SOON_S).message, Noop)
    warmth.end()
    near.close()
    far.close()


def test_a_noop_waits_for_nobody() -> None:
    """Catches a noop behind another sender's lock, or behind what a slow peer has not read."""
    near, far = linked()
    with near._send_lock:
        assert not near.offer(Noop())
    assert near.offer(Noop())
    for idx in range(8):
        near.send(numbered(idx), HIDDEN)  # nobody reads: the rest waits in the outbox
    assert not near._outbox.empty
    before = near._outbox._pending_bytes
    assert not near.offer(Noop())
    assert near._outbox._pending_bytes == before, "it was queued"
    near.abort()
    far.abort()


def test_nobody_waits_for_a_noop() -> None:
    """Catches an end, or a change of the interval, that lasts as long as the interval does."""
    near, far = linked()
    warmth = KeepWarm(near)
    warmth.every(MOST_INTERVAL_MS)
    thread = warmth._thread
    assert thread is not None
    warmth.every(LEAST_INTERVAL_MS)
    assert isinstance(far.receive(time.monotonic() + SOON_S).message, Noop)
    warmth.every(MOST_INTERVAL_MS)
    warmth.end()
    thread.join(SOON_S)
    assert not thread.is_alive()
    near.close()
    far.close()


@pytest.mark.parametrize("closes", ["near", "far"])
def test_a_link_that_ends_ends_the_thread(closes: str) -> None:
    """Catches a thread that outlives its link, or takes the process with it."""
    near, far = linked()
    warmth = KeepWarm(near)
    warmth.every(LEAST_INTERVAL_MS)
    thread = warmth._thread
    assert thread is not None
    (near if closes == "near" else far).abort()
    thread.join(SOON_S)
    assert not thread.is_alive()
    warmth.every(LEAST_INTERVAL_MS)  # the next job's lever, on a link that is gone
    near.abort()


def test_frames_keep_their_order_among_noops() -> None:
    """Catches a noop that is written into the middle of a frame."""
    near, far = linked()
    warmth = KeepWarm(near)
    warmth.every(LEAST_INTERVAL_MS)

    def send_all() -> None:
        for idx in range(12):
            near.send(numbered(idx), HIDDEN)
            time.sleep(LEAST_INTERVAL_MS / 1000 * 1.5)

    sender = threading.Thread(target=send_all)
    sender.start()
    got = 0
    while got < 12:
        received = far.receive(time.monotonic() + SOON_S)
        if not isinstance(received.message, Noop):
            assert received.message == numbered(got)
            assert torch.equal(received.tensors["hidden"], HIDDEN["hidden"])
            got += 1
    sender.join()
    warmth.end()
    near.close()
    far.close()
