"""The table of honest and cheating stages: verdicts from what was recorded."""

from __future__ import annotations

from analysis.challenge_table import cases, challenge_table
from analysis.study_records import StudyRecord
from bench.schema import Study
from tests.analysis.plan_builder import Recipe, make_plan

PER = 10**12
# case, honest, largest of two stages
MEASURED = (("same", 1, (0, 0)), ("skips", 0, (0.3, 0.2)), ("half", 0, (1e-6, 3e-4)))


def record() -> StudyRecord:
    rows = [
        {
            "group": "f32",
            "case": case,
            "honest": honest,
            "stage": stage,
            "threshold": round(1e-4 * PER),
            "positions": 9,
            "largest": round(error * PER),
            "median": 0,
        }
        for case, honest, errors in MEASURED
        for stage, error in enumerate(errors)
    ]
    settings = {
        "cell": "mixed",
        "prompt_positions": 9,
        "parts_per": PER,
        "signs": 128,
        "false_alarm_bound": "0e+00",
        "miss_bound": "1e-09",
        "margin": 4,
    }
    study = Study(
        study="challenge",
        created="2026-01-01T00:00:00Z",
        build=make_plan(Recipe()).build,
        host={},
        settings=settings,
        rows=rows,
    )
    return StudyRecord(study, "abc123")


def test_a_case_is_judged_by_every_stage() -> None:
    """Catches a verdict by the mean, by one stage, or by another case's threshold."""
    table = cases(record())
    assert table["caught"].tolist() == [0, 2, 1]
    assert table["largest"].tolist() == [0, 0.3, 3e-4]
    assert table["smallest"].tolist() == [0, 0.2, 1e-6]


def test_the_table_says_who_is_caught_and_where_not() -> None:
    made = challenge_table(record()).to_markdown()
    assert "| f32 | same | honest | 0 | 0 | 1.0e-04 | passes |" in made
    assert "| f32 | skips | cheats | 2.0e-01 | 3.0e-01 | 1.0e-04 | caught |" in made
    assert "caught 1/2" in made and "abc123" in made and "1e-09" in made
