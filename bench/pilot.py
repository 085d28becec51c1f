"""How many repetitions an interval of a wanted width takes, from a pilot run: `bench pilot FOLDER`.

Guarantees: what is proposed rests on how far ratios of one arm to the base arm stray from block to
block of one cell, here, on this machine; never fewer than the null band needs. Looks at spreads
alone: no mean ratio is printed, so that a pilot decides how much is run and not what is claimed.
Must never know hypotheses.

The half-width of a 95 % interval of a mean of n log-ratios is t(n − 1) · s / √n (Student 1908); a
mean over c cells has n · c of them. The spread of few blocks is itself uncertain: the pilot's upper
80 % limit of s is used (chi-square), so that four planned runs in five are wide enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from scipy import stats

from bench.speeds import block_speeds, log_ratios
from bench.traces import Recorded
from engine.errors import ConfigError, ReceiptError

MIN_REPS, MAX_REPS = 4, 200  # fewer establish no null band (DESIGN section 13)
SPREAD_LEVEL = 0.8
CENTRAL = 0.975


@dataclass(frozen=True, slots=True)
class Proposal:
    """For one arm.

    Attributes:
        spread: pooled standard deviation of its log-ratios within cells.
        upper_spread: what a run should be made for.
        reps_a_cell: for an interval on each cell; None: more than `MAX_REPS`.
        reps_over_all: for one over all cells.
    """

    arm: str
    num_ratios: int
    spread: float
    upper_spread: float
    reps_a_cell: int | None
    reps_over_all: int | None


def propose(run: Recorded, width: float) -> list[Proposal]:
    """For every arm that the pilot measured beside the base arm.

    Args:
        width: wanted half-width of a ratio's 95 % interval, such as 0.05 for 5 %.

    Raises:
        ConfigError: the width makes no sense.
        ReceiptError: the pilot times nothing, or has fewer than two blocks of every cell.
    """
    if not 0.0 < width < 1.0:
        raise ConfigError(f"--width is {width}; allowed: above 0 and below 1, such as 0.05")
    plan = run.plan
    if not plan.base_arm:
        raise ReceiptError(f"experiment {plan.experiment!r} times nothing: nothing to propose")
    speeds = block_speeds(run)
    proposals = []
    for arm in dict.fromkeys(job.arm for job in plan.jobs if job.role == "measured"):
        groups = [
            list(log_ratios(speeds[cell.name, arm], speeds[cell.name, plan.base_arm]).values())
            for cell in plan.cells
            if (cell.name, arm) in speeds and (cell.name, plan.base_arm) in speeds
        ]
        if arm != plan.base_arm and any(len(group) > 1 for group in groups):
            proposals.append(_proposal(arm, groups, math.log1p(width)))
    if not proposals:
        raise ReceiptError("a pilot needs two repetitions or more of the base arm and another arm")
    return proposals


def _proposal(arm: str, groups: Sequence[Sequence[float]], width: float) -> Proposal:
    groups = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum((value - sum(group) / len(group)) ** 2 for group in groups for value in group)
    spread = math.sqrt(squares / freedom)
    upper = math.sqrt(squares / float(stats.chi2.ppf(1.0 - SPREAD_LEVEL, freedom)))
    return Proposal(
        arm=arm,
        num_ratios=sum(map(len, groups)),
        spread=spread,
        upper_spread=upper,
        reps_a_cell=reps_for(upper, width, 1),
        reps_over_all=reps_for(upper, width, len(groups)),
    )


def reps_for(spread: float, width: float, num_cells: int) -> int | None:
    """The fewest repetitions whose interval's half-width is at most `width`, both in logs."""
    for reps in range(MIN_REPS, MAX_REPS + 1):
        count = reps * num_cells
        half = float(stats.t.ppf(CENTRAL, count - num_cells)) * spread / math.sqrt(count)
        if half <= width:
            return reps
    return None


def proposal_table(proposals: Sequence[Proposal], width: float) -> Table:
    """For a terminal."""
    table = Table(title=f"repetitions for intervals of ± {width:.1%}")
    table.add_column("arm")
    for name in ("ratios", "spread", "made for", "on each cell", "over all cells"):
        table.add_column(name, justify="right")
    for row in proposals:
        table.add_row(
            row.arm,
            str(row.num_ratios),
            f"{row.spread:.3f}",
            f"{row.upper_spread:.3f}",
            *(
                f"more than {MAX_REPS}" if reps is None else str(reps)
                for reps in (row.reps_a_cell, row.reps_over_all)
            ),
        )
    return table
