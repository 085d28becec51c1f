"""How many threads compute, how they wait, and what pages they read.

Guarantees: one place decides. Waiting and pages must be settled in the environment before the
process starts, because OpenMP and the C library read them once, on load. Never knows what is
computed.
"""

from __future__ import annotations

import os

# Iterations an idle worker spins before it sleeps, about 0.1 ms. A layer is a dozen regions
# a few microseconds apart: sleeping between them costs up to 40 us each (half of a decode step),
# while an idle stage must leave its core to the others.
SPIN_COUNT = 4000

# The C library asks for 2 MiB pages: a decode step reads every weight once, and with 4 KiB pages
# it waits for address translation on each. 5-8 % of a step; see docs/decisions/0009.
_LARGE_PAGES = "glibc.malloc.hugetlb=1"


def available_cores() -> list[int]:
    """Cores this process may run on; all of them where the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def openmp_env(num_threads: int, first_core_idx: int = 0) -> dict[str, str]:
    """Return the environment a computing process must be started with.

    Threads are bound when they take all cores: a process that wakes from a wait otherwise
    finds its worker placed beside its main thread on one core, where each spins out the other's
    time (4 ms of work then take 17). See docs/decisions/0004.

    Args:
        num_threads: compute threads of that process.
        first_core_idx: the main thread's core, modulo their number; processes that compute at the
            same time should differ in it.
    """
    env = {
        "OMP_NUM_THREADS": str(num_threads),
        "MKL_NUM_THREADS": str(num_threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": str(SPIN_COUNT),  # libgomp lets this refine the policy above
        "GLIBC_TUNABLES": _with_large_pages(os.environ.get("GLIBC_TUNABLES", "")),
    }
    cores = available_cores()
    if 1 < num_threads == len(cores):
        first = first_core_idx % len(cores)
        places = [*cores[first:], *cores[:first]]
        env["OMP_PLACES"] = ",".join(f"{{{core}}}" for core in places)
        env["OMP_PROC_BIND"] = "true"
    return env


def _with_large_pages(tunables: str) -> str:
    """Keep the caller's tunables, and his choice of pages where he made one."""
    if "glibc.malloc.hugetlb=" in tunables:
        return tunables
    return f"{tunables}:{_LARGE_PAGES}" if tunables else _LARGE_PAGES


def set_threads(num_threads: int) -> None:
    """Set the compute threads of this process; results do not depend on the number."""
    import torch  # a launcher that only wants `openmp_env` must not load OpenMP itself

    torch.set_num_threads(num_threads)
