"""Long links on one machine: a user-space relay process, without privileges.

Guarantees: one process carries every link of a ring; it ends when its parent closes its standard
input, sends SIGTERM or dies; `RelayProcess` leaves no process behind. The self-test says how much
later than asked bytes arrive.
Must never know: frames, models, stages.

    python -m bench.wan.relay < links.json          # then {"ports": …} on standard output
    python -m bench.wan.relay --self-test wan-275

This is not TCP over a long path: there is no congestion window, no slow start after idle, no loss.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self

import msgspec

from bench.wan.child import end_child, hear_line
from bench.wan.forwarder import Forwarder, RelayLink
from bench.wan.profile import LinkShape
from engine.errors import ConfigError, LinkClosedError, LonghaulError

CHECKOUT_DIR = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 20.0  # an interpreter on a busy machine; usually 0.3 s


class RelayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the relay reads as one line of JSON from its standard input.

    Attributes:
        parent_pid: whose end ends it; told, since a parent that is gone before the relay asks the
            system for its own has been replaced by then. 0: whoever is its parent when it serves.
    """

    seed: int
    parent_pid: int = 0
    links: tuple[RelayLink, ...]


class RelayReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one line the relay writes: a listening port per link name, or why there is none."""

    ports: dict[str, int] = {}
    error: str = ""


def link_to(shape: LinkShape, target_port: int, target_host: str = "127.0.0.1") -> RelayLink:
    """Stand a link of this shape in front of a listening socket."""
    return RelayLink(
        **msgspec.structs.asdict(shape), target_host=target_host, target_port=target_port
    )


class RelayProcess:
    """A running relay; a context manager that stops it on the way out."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process id while a relay runs."""
        return self._process.pid if self._process else None

    def start(self, links: list[RelayLink], seed: int) -> dict[str, int]:
        """Start the relay and return the port to dial for each link name.

        The targets need not listen yet: the relay dials one when a client connects.

        Raises:
            ConfigError: the caller's links cannot be set up, or a relay already runs.
            LinkClosedError: the relay ended or said nothing within `START_TIMEOUT_S`.
        """
        if self._process is not None:
            raise ConfigError("this relay already runs; stop it, or use another RelayProcess")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.wan.relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=CHECKOUT_DIR,
        )
        try:
            config = RelayConfig(seed=seed, parent_pid=os.getpid(), links=tuple(links))
            ready = self._exchange(msgspec.json.encode(config) + b"\n")
            if ready.error:
                raise ConfigError(ready.error)
        except BaseException:
            self.stop()
            raise
        return ready.ports

    def check(self) -> None:
        """Raise `LinkClosedError` if the relay is not running: its links are then all down."""
        if self._process is None:
            raise LinkClosedError("the relay is not running: it was not started, or it was stopped")
        status = self._process.poll()
        if status is not None:
            raise LinkClosedError(f"the relay ended with status {status}; its links are down")

    def stop(self) -> None:
        """End the relay and reap it; harmless when none runs."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):  # it ended before it read all of its links
            process.stdin.close()
        end_child(process)

    def _exchange(self, config: bytes) -> RelayReady:
        assert self._process is not None
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(config)
            stdin.flush()
        except BrokenPipeError as error:
            raise LinkClosedError("the relay ended before it read its links") from error
        line = hear_line(self._process, START_TIMEOUT_S, "the relay")
        return msgspec.json.decode(line, type=RelayReady)


def serve_from_stdin() -> int:
    """Read the links, print the ports, relay until the parent is done; return the exit status."""
    # A terminal sends Ctrl-C to the whole group; the parent may still be draining the ring, and
    # says when it is done by closing standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    control = sys.stdin.buffer
    try:
        config = msgspec.json.decode(control.readline(), type=RelayConfig)
        names = [link.name for link in config.links]
        if len(set(names)) < len(names):
            raise ConfigError(f"relay: link names must be unique: {', '.join(names)}")
        forwarder = Forwarder(list(config.links), config.seed)
    except (msgspec.DecodeError, LonghaulError) as error:
        _say(RelayReady(error=str(error)))
        return 2
    try:
        _say(RelayReady(ports=forwarder.ports))
        forwarder.serve(control.fileno(), config.parent_pid or os.getppid())
    finally:
        forwarder.close()
    return 0


def _exit_on_signal(signal_number: int, frame: FrameType | None) -> NoReturn:
    # Raising is safe here: a relay that is told to end has nothing left to keep consistent.
    raise SystemExit(0)


def _say(ready: RelayReady) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.buffer.flush()


def main(arguments: list[str] | None = None) -> int:
    """Serve, or measure with `--self-test`."""
    parser = argparse.ArgumentParser(prog="python -m bench.wan.relay", description=__doc__)
    parser.add_argument("--self-test", metavar="PROFILE", help="measure one link of a profile")
    parser.add_argument("--messages", type=int, default=200, help="messages to time")
    parser.add_argument("--busy", type=int, default=0, help="nice-10 spinning processes meanwhile")
    asked = parser.parse_args(arguments)
    if asked.self_test is None:
        return serve_from_stdin()
    # Imported here: the self-test stands on RelayProcess, and the relay process needs none of it.
    from bench.wan.self_test import run_self_test

    try:
        print(run_self_test(asked.self_test, asked.messages, asked.busy))
    except LonghaulError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
