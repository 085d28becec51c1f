"""The carrier as its launcher sees it: start, ask, stop.

Guarantees: a carrier that starts has its hosts standing; whatever way the launcher ends, the
carrier and everything it holds end too; its last word, what became of the packets, is kept.
Must never know: stages, models; it imports no torch, so that `bench wan clean` starts at once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from bench.wan.child import STOP_TIMEOUT_S, end_child, hear_line
from bench.wan.netns_carrier import CarrierConfig, CarrierReady, CarrierReport
from bench.wan.netns_runs import new_token
from bench.wan.profile import LinkShape, link_names
from engine.errors import ConfigError, LinkClosedError, LonghaulError

CHECKOUT_DIR = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0  # two `ip` processes a host on a busy machine; usually 0.5 s in all

LineT = TypeVar("LineT", bound=msgspec.Struct)


class CarrierProcess:
    """A running carrier with its hosts; a context manager that stops it on the way out."""

    def __init__(self) -> None:
        self.token = new_token()
        self.report = CarrierReport()  # what became of the packets; complete once stopped
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process id while a carrier runs."""
        return self._process.pid if self._process else None

    def start(self, shapes: Sequence[LinkShape], seed: int) -> CarrierReady:
        """Start the carrier and wait until its hosts stand.

        Args:
            shapes: the N + 1 links in ring order.
            seed: of jitter, loss and reordering.

        Raises:
            ConfigError: a carrier already runs, or something is missing; the message says what.
            LinkClosedError: the carrier ended or said nothing within `START_TIMEOUT_S`.
        """
        if self._process is not None:
            raise ConfigError("this carrier already runs; stop it, or use another CarrierProcess")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.wan.netns_carrier", self.token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=CHECKOUT_DIR,
            start_new_session=True,  # Ctrl-C is for the launcher alone
        )
        try:
            config = CarrierConfig(seed=seed, parent_pid=os.getpid(), shapes=tuple(shapes))
            self._tell(msgspec.json.encode(config) + b"\n")
            ready = self._hear(CarrierReady, START_TIMEOUT_S)
            if ready.error:
                raise ConfigError(ready.error)
        except BaseException:
            self.stop()
            raise
        return ready

    def check(self) -> None:
        """Raise `LinkClosedError` if no carrier runs: every link is then down."""
        status = None if self._process is None else self._process.poll()
        if self._process is None or status is not None:
            raise LinkClosedError(f"the carrier of the links does not run (status {status})")

    def stop(self) -> None:
        """End the carrier and reap it; harmless when none runs."""
        if self._process is None:
            return
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):  # it ended before it read all of its links
            process.stdin.close()
        with contextlib.suppress(LonghaulError, msgspec.DecodeError):  # it may have died
            self.report = self._hear(CarrierReport, STOP_TIMEOUT_S)
        self._process = None
        end_child(process)

    def _tell(self, line: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise LinkClosedError("the carrier ended before it read its links") from error

    def _hear(self, kind: type[LineT], timeout_s: float) -> LineT:
        assert self._process is not None
        line = hear_line(self._process, timeout_s, "the carrier of the links")
        return msgspec.json.decode(line, type=kind)


def why_unavailable() -> str:
    """Why this process cannot use namespaced links, or "" if it can; tries it for a moment."""
    with CarrierProcess() as carrier:
        try:
            carrier.start([LinkShape(name=name, one_way_ns=0) for name in link_names(1)], seed=0)
        except LonghaulError as error:
            return str(error)
    return ""
