"""The measurement of loading: as many receipts as asked for, and every line of it."""

from __future__ import annotations

import pytest

from analysis import documents
from tests.analysis import load_speed


def test_forty_receipts_are_invented_and_loaded_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a second load that is as unknown as the first: what is printed would say nothing."""
    found = []

    def noted(key: str, digests: dict[str, str]) -> bool:
        found.append(is_known(key, digests))
        return found[-1]

    is_known = documents.is_known
    monkeypatch.setattr(documents, "is_known", noted)
    assert load_speed.main(["--receipts", "40"]) == 0
    assert found == [False, True]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("receipts: 56, ") and len(lines) == 6
    assert [line.split("  ")[0] for line in lines if line.startswith("load")] == [
        "load, nothing known",
        "load, all known",
    ]
    assert all(line.endswith(" s") for line in (lines[0], *lines[2:]))


def test_receipts_are_never_fewer_than_asked_for() -> None:
    recipe = load_speed.recipe_of(2_000)
    assert recipe.reps == 72  # of 4 cells, 6 arms and a reference: 2,016
