"""The table of honest and cheating stages: verdicts from what was recorded."""

from __future__ import annotations

from analysis.challenge_table import cases, challenge_table, judged
from analysis.study_records import StudyRecord
from bench.schema import Study
from tests.analysis.plan_builder import Recipe, make_plan

PER = 10**12
LARGEST_LIMIT, MEDIAN_LIMIT = 1e-4, 1e-5
# case, honest, cell, groups, (largest, median) of two stages
MEASURED = (
    ("same", 1, "mixed", 3, ((0, 0), (0, 0))),
    ("same", 1, "chat", 3, ((0, 0), (9e-5, 9e-6))),
    ("skips", 0, "mixed", 3, ((0.3, 0.1), (0.2, 0.1))),
    ("skips", 0, "chat", 3, ((0.4, 0.1), (0.5, 0.1))),
    ("coarse", 0, "mixed", 3, ((5e-5, 2e-5), (2e-4, 0))),
    ("coarse", 0, "chat", 0, ((5e-5, 2e-5), (2e-4, 2e-5))),
)


def record() -> StudyRecord:
    rows = [
        {
            "cell": cell,
            "group": "f32",
            "case": case,
            "honest": honest,
            "caught": 0,  # not believed
            "stage": stage,
            "positions": 136,
            "groups": groups,
            "largest": round(largest * PER),
            "largest_limit": round(LARGEST_LIMIT * PER),
            "median": round(median * PER),
            "median_limit": round(MEDIAN_LIMIT * PER),
        }
        for case, honest, cell, groups, errors in MEASURED
        for stage, (largest, median) in enumerate(errors)
    ]
    settings = {
        "calibrated_on": "mixed",
        "held_out": "chat",
        "positions": 136,
        "group_len": 9,
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


def test_a_stage_is_judged_by_either_error_and_its_median_only_if_it_has_one() -> None:
    """Catches a verdict by one of the two, by what the record says, or by too few positions."""
    rows = judged(record())
    coarse = rows[rows["case"] == "coarse"]
    assert coarse["is_caught"].tolist() == [True, True, False, True]


def test_halves_are_counted_apart() -> None:
    """Catches held-out prompts counted with those that the limits were set on."""
    table = cases(record()).set_index("case")
    assert table["set_on"].tolist() == table["held_out"].tolist() == [2, 2, 2]
    assert table["set_on_caught"].tolist() == [0, 2, 2]
    assert table["held_out_caught"].tolist() == [0, 2, 1]
    assert (table["largest_low"]["skips"], table["largest_high"]["skips"]) == (0.2, 0.5)


def test_the_table_says_who_is_caught_and_how_often() -> None:
    made = challenge_table(record()).to_markdown()
    same = "| f32 | same | honest | 0 – 9.0e-05 | 1.0e-04 | 0 – 9.0e-06 | 1.0e-05 | 0/2 | 0/2 |"
    assert same in made
    assert "| 1.0e-01 | 1.0e-05 | 2/2 | 2/2 |" in made
    assert "Held out: 0 of 2 of honest stages caught, 3 of 4 of cheating ones" in made
    assert "a quarter of what a position" in made and "abc123" in made and "1e-09" in made
