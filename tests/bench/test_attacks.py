"""Real rings with a stage process that cheats: who is named, and by what."""

from __future__ import annotations

import pytest

from bench.studies.attacks import EXPECTED, Attacker, unexpected
from bench.studies.cheating_stage import CHEATS


@pytest.fixture(scope="module")
def attacker() -> Attacker:
    return Attacker()


@pytest.mark.parametrize("name", ["nothing", "skips a layer", "replays its first statement"])
def test_an_attack_ends_as_expected(attacker: Attacker, name: str) -> None:
    """Catches an honest ring that is accused, a cheat of each kind that passes."""
    assert unexpected([attacker.attack(name)]) == []


def test_every_cheat_has_an_expected_end() -> None:
    assert EXPECTED.keys() == CHEATS.keys()
    assert [name for name, it in EXPECTED.items() if it.found_by == "nothing"] == ["nothing"]


@pytest.mark.parametrize("change", [{"named": 0}, {"found_by": "nothing"}, {"code": "chain"}])
def test_another_end_is_told(change: dict[str, str | int]) -> None:
    """Catches a study that ends well whatever was found."""
    row: dict[str, str | int] = {
        "attack": "skips a layer",
        "cheater": 1,
        "found_by": "challenge",
        "code": "recompute",
        "named": 1,
        "job": 0,
    }
    assert unexpected([row]) == [] and unexpected([{**row, **change}]) == ["skips a layer"]
