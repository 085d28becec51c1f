"""Fixtures: one small invented experiment, signed with a throw-away key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.trust.identity import Identity
from tests.analysis.experiment_builder import build_experiment, make_identity


@dataclass(frozen=True, slots=True)
class Invented:
    """An experiment's folder, and the home folder that holds its key."""

    folder: Path
    home: Path
    identity: Identity

    @property
    def key_folders(self) -> list[Path]:
        return [self.home / "keys"]


@pytest.fixture(scope="session")
def invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Two cells, six arms, four reps; tests that alter files copy it first."""
    root = tmp_path_factory.mktemp("invented")
    identity = make_identity(root / "home")
    return Invented(build_experiment(root / "experiment", identity), root / "home", identity)
