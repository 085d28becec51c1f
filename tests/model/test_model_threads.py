"""The environment of computing processes: large pages without overruling the caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.model.threads import openmp_env

LARGE_PAGES = "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    ("inherited", "expected"),
    [
        (None, LARGE_PAGES),
        ("", LARGE_PAGES),
        ("glibc.malloc.arena_max=2", f"glibc.malloc.arena_max=2:{LARGE_PAGES}"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        (LARGE_PAGES, LARGE_PAGES),  # a process started with `openmp_env` starts another
    ],
)
def test_the_callers_tunables_are_kept(
    monkeypatch: pytest.MonkeyPatch, inherited: str | None, expected: str
) -> None:
    """Catches settings of the caller that get lost, doubled or overruled."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if inherited is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", inherited)
    assert openmp_env(1)["GLIBC_TUNABLES"] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="memory flags are read from /proc")
def test_a_process_started_with_it_asks_for_large_pages() -> None:
    """Catches a misspelt tunable, which the C library ignores without a word."""
    program = """
import re
block = bytearray(64 << 20)
pattern = r"^Size: +([0-9]+) kB(?:\\n(?!VmFlags).*)*\\nVmFlags: (.*)$"
areas = re.findall(pattern, open("/proc/self/smaps").read(), re.M)
flags = next(flags for size_kb, flags in areas if int(size_kb) >= 64 << 10)
print("hg" in flags.split())
"""
    mode_file = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not mode_file.exists() or "[madvise]" not in mode_file.read_text():
        pytest.skip("the C library asks only where the kernel waits to be asked")
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **openmp_env(1)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "True"
