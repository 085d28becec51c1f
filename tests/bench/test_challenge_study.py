"""The spot recompute's calibration: its frames, and when it fails."""

from __future__ import annotations

import numpy as np
import pytest

from bench.studies.challenge import (
    CALIBRATED_ON,
    HELD_OUT,
    frames_of,
    row_of,
    score_row_of,
    settings_of,
    wrong,
)
from bench.studies.spot_cases import CASES, Case
from engine.trust.limits import LIMITS, first_beyond


@pytest.mark.parametrize("num", [2, 9, 64, 150, 301])
def test_frames_hold_every_id_once(num: int) -> None:
    """Catches positions that are never checked, or an empty frame."""
    frames = frames_of(list(range(num)))
    assert [it for frame in frames for it in frame.ids] == list(range(num))
    assert all(frame.ids and frame.start == frame.ids[0] for frame in frames)


def test_every_class_has_honest_and_cheating_cases() -> None:
    """Catches a threshold that nothing calibrates, or that nothing exceeds."""
    assert {(case.group, case.is_honest) for case in CASES} == {
        (group, honest) for group in LIMITS for honest in (True, False)
    }


@pytest.mark.parametrize("case", [case for case in CASES if case.group != "f32"])
@pytest.mark.parametrize(
    ("factor", "lens", "is_caught"),
    [
        (0.9, (64, 9), False),
        (1.1, (64, 9), True),
        (1.1, (4, 4), False),  # too few positions for a median
        (1.1, (4, 5), True),
    ],
)
def test_a_stage_is_judged_by_its_groups(
    case: Case, factor: float, lens: tuple[int, int], is_caught: bool
) -> None:
    """Catches a verdict by the largest error alone, or by a median over all frames."""
    limit = LIMITS[case.group].median
    first = np.zeros(lens[0]) if lens[0] > 9 else np.full(lens[0], limit * factor)
    row = row_of(case, [first, np.full(lens[1], limit * factor)])
    assert row["caught"] == is_caught
    named = wrong([{"cell": "chat", "stage": 1, **row}])
    assert bool(named) == (is_caught == case.is_honest)


def test_one_position_beyond_its_limit_is_caught() -> None:
    for case in CASES:
        errors = np.zeros(200)
        errors[77] = LIMITS[case.group].position * 1.001
        row = row_of(case, [errors])
        assert (row["caught"], row["median"]) == (1, 0)
        errors[77] = np.nan
        assert first_beyond(errors, LIMITS[case.group]) == 77


def test_scores_are_judged_by_their_own_limit() -> None:
    case = next(case for case in CASES if case.scores)
    for factor, caught in ((0.9, 0), (1.1, 1)):
        errors = np.array([0.0, LIMITS[case.group].score * factor])
        assert score_row_of(case, errors)["caught"] == caught
    assert score_row_of(case, np.array([np.nan]))["caught"] == 1


def test_held_out_cells_are_others_than_the_limits_were_set_on() -> None:
    assert not set(CALIBRATED_ON) & set(HELD_OUT)
    settings = settings_of(["summary", "chat"])
    assert (settings["calibrated_on"], settings["held_out"]) == ("summary", "chat")
