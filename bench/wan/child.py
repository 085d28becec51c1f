"""Processes that carry links: hearing from one, and ending it for good.

Guarantees: a silent process is given up after a time, one that will not end is killed, an ended one
is reaped. Must never know what a line says.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess

from engine.errors import LinkClosedError

STOP_TIMEOUT_S = 2.0  # for each way of asking it to stop


def hear_line(process: subprocess.Popen[bytes], timeout_s: float, name: str) -> bytes:
    """Wait for one line on its standard output.

    Raises:
        LinkClosedError: it ended, or said nothing in time.
    """
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            raise LinkClosedError(f"{name} said nothing for {timeout_s:.0f} s")
    line = process.stdout.readline()
    if not line:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it closed its output and lives on
            process.wait(STOP_TIMEOUT_S)
        raise LinkClosedError(
            f"{name} ended with status {process.poll()}; its messages are on standard error"
        )
    return line


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Reap a process whose standard input was closed: wait, then ask, then kill."""
    for ask_again in (process.terminate, process.kill):
        try:
            process.wait(STOP_TIMEOUT_S)
            break
        except subprocess.TimeoutExpired:
            ask_again()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
