"""The guard against a processor that was told to round another way.

Catches a check that sees one direction only, or only the calling thread; a stage that computes on.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from engine.cluster.launch import CHECKOUT_DIR
from engine.model.arithmetic import rounds_to_nearest

# Down, up, towards zero, as the C library numbers them on each processor.
MODES = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (0x800000, 0x400000, 0xC00000)}

ELSEWHERE = """
import ctypes, sys
sys.path.insert(0, {checkout!r})
mode = int(sys.argv[1])
libm = ctypes.CDLL("libm.so.6")
assert libm.fesetround(mode) == 0
import torch
torch.set_num_threads(2)
from engine.model.arithmetic import rounds_to_nearest
{after}
print(rounds_to_nearest())
"""


def judged(mode: int, after: str = "") -> bool:
    """What a process says of itself whose main thread was set to round otherwise."""
    program = ELSEWHERE.format(checkout=str(CHECKOUT_DIR), after=after)
    ended = subprocess.run(
        [sys.executable, "-c", program, str(mode)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip() == "True"


def modes() -> tuple[int, ...]:
    return MODES.get(platform.machine(), ())


def test_this_process_rounds_to_nearest() -> None:
    assert rounds_to_nearest()


@pytest.mark.parametrize("idx", range(3))
def test_every_other_mode_is_seen(idx: int) -> None:
    if not modes():
        pytest.skip("no rounding modes known for this processor")
    assert not judged(modes()[idx])


def test_a_worker_alone_is_seen() -> None:
    """Threads start out as whoever starts them: then the main thread goes back to nearest."""
    if not modes():
        pytest.skip("no rounding modes known for this processor")
    workers_first = "torch.ones(1 << 20).add_(1.0); libm.fesetround(0)"
    assert not judged(modes()[2], after=workers_first)
