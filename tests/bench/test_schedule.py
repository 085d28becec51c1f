"""The schedule: nesting, references, and exact balance of positions and neighbours."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.arm_groups import DECODE_ARMS
from bench.arms import Arm, get_arm
from bench.schedule import WARMUP_TOKENS, PlannedJob, make_schedule
from engine.errors import ConfigError

seeds = st.integers(0, 2**63)
arm_counts = st.integers(1, 9)
cell_counts = st.integers(1, 4)


def made_cells(num_cells: int) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(name=f"cell-{cell_idx}", max_new_tokens=10 + cell_idx)
        for cell_idx in range(num_cells)
    ]


def made_arms(num_arms: int) -> list[Arm]:
    return [dataclasses.replace(get_arm("ar"), name=f"arm-{idx}") for idx in range(num_arms)]


def orders_by_cell(jobs: list[PlannedJob]) -> dict[str, list[list[str]]]:
    """Return, per cell, the order of the measured arms in each of its blocks."""
    blocks: dict[tuple[str, int], list[str]] = {}
    for job in jobs:
        if job.role == "measured":
            blocks.setdefault((job.cell, job.rep), []).append(job.arm)
    orders: dict[str, list[list[str]]] = {}
    for (cell, _), order in blocks.items():
        orders.setdefault(cell, []).append(order)
    return orders


def position_counts(orders: list[list[str]]) -> dict[str, Counter[int]]:
    counts: dict[str, Counter[int]] = {arm: Counter() for arm in orders[0]}
    for order in orders:
        for position, arm in enumerate(order):
            counts[arm][position] += 1
    return counts


@given(cell_counts, arm_counts, st.integers(1, 7), seeds)
def test_every_block_is_a_reference_and_then_a_permutation_of_the_arms(
    num_cells: int, num_arms: int, reps: int, seed: int
) -> None:
    cells, arms = made_cells(num_cells), made_arms(num_arms)
    jobs = make_schedule(cells, arms, reps, seed)
    assert [job.job_idx for job in jobs] == list(range(len(jobs)))
    assert len(jobs) == num_cells * reps * (num_arms + 1)
    blocks = [list(group) for _, group in itertools.groupby(jobs, key=lambda job: job.block_idx)]
    nested = [(block[0].rep, block[0].cell) for block in blocks]
    assert nested == [(rep, cell.name) for rep in range(reps) for cell in cells]
    for block_idx, block in enumerate(blocks):
        assert {job.block_idx for job in block} == {block_idx}
        assert len({(job.rep, job.cell, job.max_new_tokens) for job in block}) == 1
        assert [job.order_idx for job in block] == list(range(num_arms + 1))
        assert [job.role for job in block] == ["reference"] + ["measured"] * num_arms
        assert block[0].arm == "ar"
        assert sorted(job.arm for job in block[1:]) == sorted(arm.name for arm in arms)


@given(cell_counts, st.integers(1, 5).map(lambda half: 2 * half), st.integers(1, 3), seeds)
def test_an_even_number_of_arms_meets_every_position_equally_often(
    num_cells: int, num_arms: int, times: int, seed: int
) -> None:
    jobs = make_schedule(made_cells(num_cells), made_arms(num_arms), times * num_arms, seed)
    for orders in orders_by_cell(jobs).values():
        for counts in position_counts(orders).values():
            assert counts == dict.fromkeys(range(num_arms), times)


@given(cell_counts, st.integers(0, 4).map(lambda half: 2 * half + 1), seeds)
def test_an_odd_number_of_arms_meets_every_position_twice_in_two_rounds(
    num_cells: int, num_arms: int, seed: int
) -> None:
    jobs = make_schedule(made_cells(num_cells), made_arms(num_arms), 2 * num_arms, seed)
    for orders in orders_by_cell(jobs).values():
        for counts in position_counts(orders).values():
            assert counts == dict.fromkeys(range(num_arms), 2)


@given(arm_counts, st.integers(1, 40), seeds)
def test_positions_stay_close_at_any_number_of_reps(num_arms: int, reps: int, seed: int) -> None:
    """Even: counts differ by at most 1, the least that is possible; odd: by at most 2."""
    (orders,) = orders_by_cell(
        make_schedule(made_cells(1), made_arms(num_arms), reps, seed)
    ).values()
    for counts in position_counts(orders).values():
        spread = max(counts[place] for place in range(num_arms)) - min(
            counts[place] for place in range(num_arms)
        )
        assert spread <= (1 if num_arms % 2 == 0 else 2)


@given(cell_counts, st.integers(2, 8), st.integers(1, 5), seeds)
def test_each_arm_precedes_each_other_in_half_of_an_even_number_of_blocks(
    num_cells: int, num_arms: int, num_pairs: int, seed: int
) -> None:
    jobs = make_schedule(made_cells(num_cells), made_arms(num_arms), 2 * num_pairs, seed)
    for orders in orders_by_cell(jobs).values():
        for first, second in itertools.combinations(orders[0], 2):
            num_before = sum(order.index(first) < order.index(second) for order in orders)
            assert num_before == num_pairs


def test_equal_seeds_give_equal_plans_and_seeds_matter() -> None:
    arms = [get_arm(name) for name in DECODE_ARMS]
    plans = [make_schedule(made_cells(3), arms, 4, seed) for seed in (5, 5, *range(6, 16))]
    assert plans[0] == plans[1]
    assert len({tuple(plan) for plan in plans}) > 2


def test_adding_a_cell_leaves_the_orders_of_the_others_alone() -> None:
    few = orders_by_cell(make_schedule(made_cells(2), made_arms(6), 4, 1))
    more = orders_by_cell(make_schedule(made_cells(3), made_arms(6), 4, 1))
    assert few.items() <= more.items()


@pytest.mark.parametrize(("num_cells", "num_arms", "reps"), [(0, 2, 1), (1, 0, 1), (1, 2, 0)])
def test_an_empty_schedule_is_refused(num_cells: int, num_arms: int, reps: int) -> None:
    with pytest.raises(ConfigError, match="at least 1 rep"):
        make_schedule(made_cells(num_cells), made_arms(num_arms), reps, 0)


def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="cell is given twice: cell-0, cell-0"):
        make_schedule(made_cells(1) * 2, made_arms(2), 1, 0)
    with pytest.raises(ConfigError, match="arm is given twice: arm-0, arm-0"):
        make_schedule(made_cells(1), made_arms(1) * 2, 1, 0)


@given(cell_counts, arm_counts, st.integers(1, 3), seeds, st.integers(0, 4))
def test_warm_ups_come_first_are_few_and_change_no_order(
    num_cells: int, num_arms: int, reps: int, seed: int, num_warm: int
) -> None:
    """Catches a warm-up among measured jobs, and one that shifts who comes when."""
    cells, arms = made_cells(num_cells), made_arms(num_arms)
    warm = arms[:num_warm]
    jobs = make_schedule(cells, arms, reps, seed, warm)
    assert [job.job_idx for job in jobs] == list(range(len(jobs)))
    first, rest = jobs[: len(warm)], jobs[len(warm) :]
    assert [(job.arm, job.role, job.cell) for job in first] == [
        (arm.name, "warmup", cells[0].name) for arm in warm
    ]
    assert all(0 < job.max_new_tokens <= WARMUP_TOKENS for job in first)
    plain = make_schedule(cells, arms, reps, seed)
    moved = [dataclasses.replace(job, job_idx=job.job_idx - len(warm)) for job in rest]
    assert moved == plain
