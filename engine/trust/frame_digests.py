"""Digests of a job's frames, made on a thread of their own.

Guarantees: whoever notes a frame waits for nobody but the copy of its bytes; what is asked for at
the end of a job is complete, in the order asked for. Must never know sockets or messages.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.trust.attestation import FrameKey, frame_digest, root_of

RECEIVED, SENT = "received", "sent"
MAX_KEPT_BYTES = 128 * 2**20  # of a job's frames; a larger job cannot be challenged
Side = str


@dataclass(frozen=True, slots=True)
class Roots:
    """Over the frames that were asked for."""

    in_root: str
    out_root: str
    hash_ns: int  # spent on all frames of the job


class MissingFrameError(Exception):
    """A frame that was asked for and never noted."""

    def __init__(self, key: FrameKey, side: Side) -> None:
        super().__init__(f"frame (epoch {key[0]}, start {key[1]}) was not {side} here")


@dataclass(frozen=True, slots=True)
class _Noted:
    job: int
    side: Side
    key: FrameKey
    kind: int
    payload: bytes | memoryview


class FrameDigests:
    """Of the current job. Its thread starts with the first frame that is noted."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Noted | threading.Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._job = 0
        self._digests: dict[tuple[Side, FrameKey], bytes] = {}
        self._payloads: dict[tuple[Side, FrameKey], bytes | memoryview] = {}
        self._kept_bytes = 0
        self._hash_ns = 0
        self._thread: threading.Thread | None = None

    def begin(self, job: int) -> None:
        """Forget everything: a new job, or a new segment of one."""
        with self._lock:
            self._job, self._digests, self._hash_ns = job, {}, 0
            self._payloads, self._kept_bytes = {}, 0

    def note(
        self, job: int, side: Side, key: FrameKey, kind: int, payload: bytes | memoryview
    ) -> None:
        """Take one frame in; its bytes must stay as they are."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="digests", daemon=True)
            self._thread.start()
        self._queue.put(_Noted(job, side, key, kind, payload))

    def roots(self, keys: Sequence[FrameKey]) -> Roots:
        """Wait for what was noted, and answer for these frames.

        Raises:
            MissingFrameError: one of them was not received, or not sent.
        """
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            done.wait()
        with self._lock:
            in_root, out_root = (self._root(side, keys) for side in (RECEIVED, SENT))
            return Roots(in_root, out_root, self._hash_ns)

    def payloads(self, side: Side, keys: Sequence[FrameKey]) -> list[bytes | memoryview]:
        """The bytes of these frames, kept until the next job begins.

        Raises:
            MissingFrameError: one was never noted, or the job was too large to keep.
        """
        with self._lock:
            missing = next((key for key in keys if (side, key) not in self._payloads), None)
            if missing is not None:
                raise MissingFrameError(missing, side)
            return [self._payloads[side, key] for key in keys]

    def _root(self, side: Side, keys: Sequence[FrameKey]) -> str:
        """The caller holds the lock."""
        missing = next((key for key in keys if (side, key) not in self._digests), None)
        if missing is not None:
            raise MissingFrameError(missing, side)
        return root_of([self._digests[side, key] for key in keys])

    def _run(self) -> None:
        while True:
            noted = self._queue.get()
            if isinstance(noted, threading.Event):
                noted.set()
                continue
            begun_ns = time.thread_time_ns()
            digest = frame_digest(noted.kind, noted.payload)
            spent_ns = time.thread_time_ns() - begun_ns
            with self._lock:
                if noted.job == self._job:
                    self._digests[noted.side, noted.key] = digest
                    self._hash_ns += spent_ns
                    self._keep(noted)

    def _keep(self, noted: _Noted) -> None:
        """For a challenge; costs no copy. The caller holds the lock."""
        self._kept_bytes += len(noted.payload)
        if self._kept_bytes <= MAX_KEPT_BYTES:
            self._payloads[noted.side, noted.key] = noted.payload
        else:
            self._payloads.clear()
