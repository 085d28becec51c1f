"""Speeds of jobs and their ratios within blocks, as receipts define them, for the harness itself.

Guarantees: only measured jobs that ended well count, and a ratio is of two jobs of one block; the
analysis has its own code for both, so that each checks the other. Must never know files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bench.schema import Receipt
from bench.traces import Recorded

Place = tuple[str, str]  # cell, arm


def job_speed(receipt: Receipt) -> float | None:
    """tok/s of a measured job that ended well; None of any other."""
    timing = receipt.timing
    first_ns, last_ns = timing.first_commit_ns, timing.last_commit_ns
    is_used = receipt.position.role == "measured" and receipt.status == "ok"
    if not is_used or first_ns is None or last_ns is None or last_ns <= first_ns:
        return None
    return (len(receipt.output_ids) - 1) / (last_ns - first_ns) * 1e9


def block_speeds(run: Recorded) -> dict[Place, dict[int, float]]:
    """By cell and arm: tok/s by block."""
    speeds: dict[Place, dict[int, float]] = {}
    for _, receipt in run.receipts:
        speed = job_speed(receipt)
        if speed is not None:
            place = (receipt.position.cell, receipt.requested.arm)
            speeds.setdefault(place, {})[receipt.position.block_idx] = speed
    return speeds


def log_ratios(arm: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """ln(arm / base) of every block that has both."""
    return {block: math.log(arm[block] / base[block]) for block in arm if block in base}
