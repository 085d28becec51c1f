"""The spot recompute's calibration: its frames, and when it fails."""

from __future__ import annotations

import pytest

from bench.studies.challenge import CASES, PARTS_PER, frames_of, wrong
from engine.trust.challenge import THRESHOLDS


@pytest.mark.parametrize("num", [2, 9, 64, 150, 301])
def test_frames_hold_every_id_once(num: int) -> None:
    """Catches positions that are never checked, or an empty frame."""
    frames = frames_of(list(range(num)))
    assert [it for frame in frames for it in frame.ids] == list(range(num))
    assert all(frame.ids and frame.start == frame.ids[0] for frame in frames)


def test_every_class_has_honest_and_cheating_cases() -> None:
    """Catches a threshold that nothing calibrates, or that nothing exceeds."""
    assert {(case.group, case.is_honest) for case in CASES} == {
        (group, honest) for group in THRESHOLDS for honest in (True, False)
    }


@pytest.mark.parametrize("honest", [0, 1])
@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_what_is_on_the_wrong_side_is_named(honest: int, ratio: float) -> None:
    largest = round(THRESHOLDS["f32"] * ratio * PARTS_PER)
    row = {"group": "f32", "case": "x", "honest": honest, "stage": 1, "largest": largest}
    assert wrong([row]) == ([] if (ratio < 1) == bool(honest) else ["f32, x, stage 1"])
