"""The table of attacks: what found each, and whom it named."""

from __future__ import annotations

from analysis.attack_table import attack_table
from analysis.study_records import StudyRecord
from bench.schema import Study
from tests.analysis.plan_builder import Recipe, make_plan

MEASURED = (
    ("nothing", "nothing", "", -1),
    ("skips a layer", "challenge", "recompute", 1),
    ("states no work", "statement", "no_work", 1),
)


def test_every_attack_has_its_end() -> None:
    """Catches an attack that passed and reads as if it had been found."""
    rows = [
        {"attack": name, "cheater": 1, "found_by": by, "code": code, "named": named, "job": 0}
        for name, by, code, named in MEASURED
    ]
    settings = {"cell": "chat", "stages": 3, "max_new_tokens": 24, "jobs": 2, "drawn": 99}
    study = Study(
        study="attacks",
        created="2026-01-01T00:00:00Z",
        build=make_plan(Recipe()).build,
        host={},
        settings=settings,
        rows=rows,
    )
    made = attack_table(StudyRecord(study, "abc123")).to_markdown()
    assert "| nothing | stage 1 | nothing |  | — |" in made
    assert "| skips a layer | stage 1 | a challenge | recompute | stage 1 |" in made
    assert "| states no work | stage 1 | the statements | no_work | stage 1 |" in made
    assert "abc123" in made and "up to 2 attested jobs of cell chat" in made
