"""Groups of positions that a median is taken of, and what they let pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.trust.limits import GROUP_LEN, LIMITS, Limits, first_beyond, first_coarse, grouped

LENS = st.lists(st.integers(1, 30), max_size=12)
LOOSE = Limits(position=9.0, median=1.0, score=9.0)


@given(LENS)
def test_groups_hold_every_position_once_and_enough_of_them(lens: list[int]) -> None:
    """Catches positions that no median is taken of, and a median of one."""
    frames = [np.arange(num) + 100.0 * idx for idx, num in enumerate(lens)]
    groups = grouped(frames)
    if sum(lens) < GROUP_LEN:
        assert groups == []
        return
    joined = np.concatenate([errors for _, errors in groups])
    assert joined.tolist() == np.concatenate(frames).tolist()
    assert all(errors.size >= GROUP_LEN for _, errors in groups)
    for first, errors in groups:
        assert errors[0] == 100.0 * first, "a group is named by its first frame"


@given(LENS, st.integers(0, 11))
def test_a_coarse_frame_is_found_whatever_lies_around_it(lens: list[int], at: int) -> None:
    """Catches one median over everything that was drawn."""
    frames = [np.zeros(num) for num in lens]
    frames.insert(min(at, len(frames)), np.full(64, 1.5))
    found = first_coarse(frames, LOOSE)
    assert found is not None and found[1] == 1.5
    assert first_coarse([np.minimum(errors, 1.0) for errors in frames], LOOSE) is None


@pytest.mark.parametrize("error", [np.nan, np.inf])
def test_what_is_no_number_is_no_pass(error: float) -> None:
    assert first_beyond(np.array([0.0, error]), LOOSE) == 1
    assert first_coarse([np.full(GROUP_LEN, error)], LOOSE) is not None


def test_limits_are_in_order() -> None:
    """Catches a median's limit that nothing can exceed while its positions pass."""
    for limits in LIMITS.values():
        assert 0 < limits.median <= limits.position < 1 and 0 < limits.score < 1
