"""How long the tests of independence take on large logs: `python -m analysis.iid_speed`.

Invented i.i.d. rounds, each test in a process of its own, so that its memory is its own too.
Guarantees: prints what it measured, writes nothing. Must never know receipts.
"""

from __future__ import annotations

import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from analysis.iid import TESTS, given_study, run_test

DRAFT_LEN, ALPHA = 8, 0.8
CASES = ((1_000, 100), (10_000, 10), (1, 100_000))  # requests, rounds of each
KB_PER_MB = 1024


def invented_rounds(num_requests: int, num_rounds: int) -> list[list[tuple[int, int]]]:
    """Rounds of an i.i.d. log; every request has as many."""
    generator = np.random.default_rng(num_requests)
    accepted = np.minimum(generator.geometric(1 - ALPHA, (num_requests, num_rounds)) - 1, DRAFT_LEN)
    return [[(DRAFT_LEN, int(length)) for length in request] for request in accepted]


def timed(case: tuple[int, int], test: str) -> tuple[float, float, str]:
    """Seconds, peak memory in MB and method of one test."""
    study = given_study(invented_rounds(*case))
    begun = time.perf_counter()
    outcome = run_test(test, study).as_json()
    elapsed_s = time.perf_counter() - begun
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    how = outcome.get("method", outcome.get("not_applicable", ""))
    return elapsed_s, peak_kb / KB_PER_MB, str(how)


def main() -> int:
    """Print a line per case and test."""
    print(f"{'requests':>9} {'rounds':>8}  {'test':<17}{'s':>7} {'MB':>6}  method")
    for case in CASES:
        for test in TESTS:
            with ProcessPoolExecutor(1) as pool:
                elapsed_s, peak_mb, how = pool.submit(timed, case, test).result()
            rounds = case[0] * case[1]
            print(f"{case[0]:9d} {rounds:8d}  {test:<17}{elapsed_s:7.2f} {peak_mb:6.0f}  {how}")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
