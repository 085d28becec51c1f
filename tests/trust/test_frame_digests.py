"""Digests on their own thread: the right bytes, in the order asked for, of the job in hand."""

from __future__ import annotations

import hashlib

import pytest

from engine.transport.message import Noop, Reply, Verify
from engine.trust.attestation import frame_digest, root_of
from engine.trust.frame_digests import RECEIVED, SENT, FrameDigests, MissingFrameError
from engine.trust.job_digests import JobDigests

KEYS = [(0, 0), (0, 5), (1, 3)]


def noted(job: int = 1) -> FrameDigests:
    digests = FrameDigests()
    digests.begin(job)
    for key in KEYS:
        for side in (RECEIVED, SENT):
            digests.note(job, side, key, 4, f"{side} {key}".encode())
    return digests


def expected(side: str, keys: list[tuple[int, int]]) -> str:
    return root_of([hashlib.sha256(b"\x04" + f"{side} {key}".encode()).digest() for key in keys])


def test_a_digest_is_over_kind_and_payload() -> None:
    assert frame_digest(4, b"abc") == hashlib.sha256(b"\x04abc").digest()
    assert frame_digest(5, b"abc") != frame_digest(4, b"abc")


def test_roots_depend_on_order_and_number() -> None:
    """Catches a root under which frames can be moved, left out, or glued together."""
    one, two = b"1" * 32, b"2" * 32
    roots = {root_of(frames) for frames in ([], [one], [two], [one, two], [two, one], [one + two])}
    assert len(roots) == 6


@pytest.mark.parametrize("keys", [KEYS, KEYS[::-1], KEYS[1:2], []])
def test_roots_are_over_the_frames_asked_for(keys: list[tuple[int, int]]) -> None:
    roots = noted().roots(keys)
    assert roots.in_root == expected(RECEIVED, keys)
    assert roots.out_root == expected(SENT, keys)


@pytest.mark.parametrize("side", [RECEIVED, SENT])
def test_a_frame_that_crossed_one_way_only_is_missing(side: str) -> None:
    """Catches a frame that was dropped and is attested."""
    digests = noted()
    digests.note(1, side, (7, 7), 4, b"half")
    with pytest.raises(MissingFrameError, match=r"epoch 7, start 7"):
        digests.roots([(0, 0), (7, 7)])


def test_another_jobs_frames_do_not_count() -> None:
    """Catches a frame of yesterday's job in today's root, noted late."""
    digests = noted(job=1)
    digests.begin(2)
    digests.note(1, SENT, (0, 0), 4, b"late")
    with pytest.raises(MissingFrameError):
        digests.roots([(0, 0)])
    assert digests.roots([]).hash_ns == 0


def test_time_is_counted_by_job() -> None:
    digests = FrameDigests()
    digests.begin(1)
    digests.note(1, SENT, (0, 0), 4, bytes(20_000_000))
    digests.note(1, RECEIVED, (0, 0), 4, b"")
    assert digests.roots([(0, 0)]).hash_ns > 0
    digests.begin(2)
    assert digests.roots([]).hash_ns == 0


VERIFY = Verify(job=3, epoch=0, start=0, positions_len=1, answer_from=0)
REPLY = Reply(job=3, epoch=0, start=0, ids=(1,), spans=())


def test_a_tap_notes_frames_of_the_attested_job_alone() -> None:
    """Catches noops and other jobs' frames in roots, and a copy that nobody asked for."""
    digests = JobDigests()
    digests.begin(3, is_attested=True)
    for message in (Noop(), Verify(job=2, epoch=0, start=9, positions_len=1, answer_from=9)):
        digests.tap(True, message, 7, memoryview(b"x"))
    assert digests.frames._thread is None
    digests.tap(True, VERIFY, 4, memoryview(b"sent"))
    digests.tap(False, REPLY, 5, memoryview(b"received"))
    roots = digests.frames.roots([(0, 0)])
    assert roots.out_root == root_of([frame_digest(4, b"sent")])
    assert roots.in_root == root_of([frame_digest(5, b"received")])


def test_a_job_that_asks_for_nothing_is_not_noted() -> None:
    digests = JobDigests()
    digests.begin(3, is_attested=False)
    digests.tap(True, VERIFY, 4, memoryview(b"sent"))
    assert digests.frames._thread is None


def test_what_is_sent_is_copied_before_it_is_sealed_in_place() -> None:
    """Catches a digest of sealed bytes: the buffer is overwritten when the tap returns."""
    digests = JobDigests()
    digests.begin(3, is_attested=True)
    buffer = bytearray(b"in the clear")
    digests.tap(True, VERIFY, 4, memoryview(buffer))
    buffer[:] = b"sealed!!!!!!"
    digests.tap(False, VERIFY, 4, memoryview(b"r"))
    assert digests.frames.roots([(0, 0)]).out_root == root_of([frame_digest(4, b"in the clear")])
