"""The order of jobs: warm-ups, then rep, then cell, then one block of arms back to back.

Guarantees: a pure function of its arguments; each block opens with one marked reference job per
numeric configuration in it; warm-ups come before all of them, one an arm, marked; within a cell,
blocks rotate the arms and every second one is reversed, so that every arm meets every position, and
comes before every other arm as often as after it.
Must never know: clocks, processes, what a job does. The only randomness is the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bench.arms import Arm, reference_arm
from engine.errors import ConfigError

Role = Literal["reference", "measured", "warmup"]
WARMUP_TOKENS = 8  # most that a warm-up job decodes


class PlannedCell(Protocol):
    """What the schedule needs of a cell."""

    @property
    def name(self) -> str:
        """The cell's name."""

    @property
    def max_new_tokens(self) -> int:
        """The budget of output tokens of each of its jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job of the plan.

    Attributes:
        job_idx: place in the whole plan.
        rep: repetition, zero-based.
        block_idx: place of the job's block in the whole plan.
        order_idx: place in the block; references come first.
        role: "reference" defines the block's lossless output, "measured" is an arm of the A/B,
            "warmup" enters nothing.
    """

    job_idx: int
    rep: int
    cell: str
    block_idx: int
    order_idx: int
    arm: str
    role: Role
    max_new_tokens: int


def make_schedule(
    cells: Sequence[PlannedCell],
    arms: Sequence[Arm],
    reps: int,
    seed: int,
    warmups: Sequence[Arm] = (),
) -> list[PlannedJob]:
    """Lay out every job of an experiment.

    Per cell and even number n of arms, any n consecutive reps counted from a multiple of n put
    each arm in each position once; with odd n it takes 2n reps to put each there twice (rotations
    and reversals of an odd order cannot do it in n).

    Args:
        cells: in the order they run.
        arms: the measured arms.
        reps: blocks per cell.
        seed: fixes where each cell's rotation starts; recorded in the plan.
        warmups: arms that decode a few tokens of the first cell before anything else.

    Raises:
        ConfigError: nothing to run, or a name is given twice.
    """
    arm_names = [arm.name for arm in arms]
    _check_names([cell.name for cell in cells], arm_names, reps)
    configs = sorted({arm.numeric_config for arm in arms})
    references = [reference_arm(config).name for config in configs]
    base_orders = {cell.name: _base_order(arm_names, seed, cell.name) for cell in cells}
    jobs = _warmup_jobs(cells[0], warmups)
    for rep in range(reps):
        for cell_idx, cell in enumerate(cells):
            block: list[tuple[str, Role]] = [(name, "reference") for name in references]
            block += [(name, "measured") for name in _block_order(base_orders[cell.name], rep)]
            jobs += [
                PlannedJob(
                    job_idx=len(jobs) + order_idx,
                    rep=rep,
                    cell=cell.name,
                    block_idx=rep * len(cells) + cell_idx,
                    order_idx=order_idx,
                    arm=arm_name,
                    role=role,
                    max_new_tokens=cell.max_new_tokens,
                )
                for order_idx, (arm_name, role) in enumerate(block)
            ]
    return jobs


def _check_names(cell_names: Sequence[str], arm_names: Sequence[str], reps: int) -> None:
    if reps < 1 or not cell_names or not arm_names:
        raise ConfigError(
            f"a schedule needs cells, arms and at least 1 rep; got {len(cell_names)} cells, "
            f"{len(arm_names)} arms, {reps} reps"
        )
    for kind, names in (("cell", cell_names), ("arm", arm_names)):
        if len(set(names)) < len(names):
            raise ConfigError(f"schedule: a {kind} is given twice: {', '.join(names)}")


def _warmup_jobs(cell: PlannedCell, arms: Sequence[Arm]) -> list[PlannedJob]:
    return [
        PlannedJob(
            job_idx=idx,
            rep=0,
            cell=cell.name,
            block_idx=0,
            order_idx=idx,
            arm=arm.name,
            role="warmup",
            max_new_tokens=min(WARMUP_TOKENS, cell.max_new_tokens),
        )
        for idx, arm in enumerate(arms)
    ]


def _base_order(arm_names: Sequence[str], seed: int, cell_name: str) -> list[str]:
    # Seeded by the cell's name, so that adding a cell leaves the order of the others alone.
    order = list(arm_names)
    random.Random(f"{seed}/{cell_name}").shuffle(order)
    return order


def _block_order(base_order: Sequence[str], rep: int) -> list[str]:
    # Blocks come in pairs, forward and reversed, with the same rotation. A step of two per pair is
    # what makes n blocks a Latin square for even n: with a step of one, forward and reversed
    # blocks would send an arm to the same half of the positions twice.
    shift = 2 * (rep // 2) % len(base_order)
    rotated = [*base_order[shift:], *base_order[:shift]]
    return rotated[::-1] if rep % 2 else rotated
