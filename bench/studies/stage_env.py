"""Starts a study anew in the environment that a stage computes in.

Guarantees: threads wait, are bound and get pages as a stage's do; a caller who has set
`GOMP_SPINCOUNT` keeps his own environment. Must never know what the study measures.
"""

from __future__ import annotations

import os
import sys

from engine.model.threads import openmp_env


def restart_as_stage(module: str, num_threads: int) -> None:
    """Replace this process by the same command in a stage's environment, unless it is there.

    OpenMP and the C library read theirs once, on load, so it is too late to set it from within.
    The new process is told the number of threads, since a bound one sees a single core.

    Args:
        module: what `python -m` is given; it must take `--threads`.
        num_threads: compute threads.
    """
    if "GOMP_SPINCOUNT" in os.environ:
        return
    words = ["-m", module, *sys.argv[1:], "--threads", str(num_threads)]
    os.execve(sys.executable, [sys.executable, *words], {**os.environ, **openmp_env(num_threads)})
