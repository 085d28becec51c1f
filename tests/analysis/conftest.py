"""Fixtures: one small invented experiment, signed with a throw-away key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from analysis import check_paper, figures, folders, load, numbers, products, tables
from analysis.folders import REPOSITORY
from analysis.product_kind import Kind
from engine.trust.identity import Identity
from tests.analysis.experiment_builder import build_experiment, make_identity
from tests.analysis.plan_builder import RECIPES


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests load leaves nothing in this user's cache, and drops nothing from it."""
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def separate_kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kind]:
    """Kinds of product as if nothing joined experiments: invented ones are not the report's."""
    kinds = {}
    for name, module in (("figures", figures), ("tables", tables), ("numbers", numbers)):
        kinds[name] = replace(module.KIND, of_all=None)
        monkeypatch.setattr(module, "KIND", kinds[name])
    for module in (products, check_paper):
        monkeypatch.setattr(module, "KINDS", kinds)
    return kinds


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


def _invented(factory: pytest.TempPathFactory, name: str) -> Invented:
    root = factory.mktemp(name)
    identity = make_identity(root / "home")
    folder = build_experiment(root / "experiment", identity, RECIPES[name])
    return Invented(folder, root / "home", identity)


@pytest.fixture(scope="session")
def decode_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """As `invented`, under the name that the rules of `decode` are registered by."""
    return _invented(tmp_path_factory, "decode")


@pytest.fixture(scope="session")
def seal_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Two cells, four reps, three rings; seal-aes is a fifth slower."""
    return _invented(tmp_path_factory, "seal")


@pytest.fixture(scope="session")
def fp8_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Two cells, four reps, two references a block; fp8 gives another text on `chat`."""
    return _invented(tmp_path_factory, "fp8")


@pytest.fixture(scope="session")
def int4_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Two cells, four reps, two references a block; int4 is quicker, on its own ring."""
    return _invented(tmp_path_factory, "int4")


@pytest.fixture(scope="session")
def planner_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Three cells, four reps; the planner and its bound are alike but for noise."""
    return _invented(tmp_path_factory, "planner-eu")


@pytest.fixture(scope="session")
def depth_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Two cells, four reps; 1, 2, 4 and 8 frames in flight."""
    return _invented(tmp_path_factory, "depth")


@pytest.fixture(scope="session")
def attest_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Two cells, four reps; nobody has signed anything yet."""
    return _invented(tmp_path_factory, "attest")


@pytest.fixture(scope="session")
def keepwarm_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Three cells, four reps; noops take two fifths off a chain's times and nothing off ar's."""
    return _invented(tmp_path_factory, "keepwarm")


@pytest.fixture(scope="session")
def two_state_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Four cells, four reps; 8 or 16 drafts beside 8."""
    return _invented(tmp_path_factory, "two-state")


@pytest.fixture(scope="session")
def acceptance_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """Two cells, one rep, one frame in flight; nothing is timed."""
    return _invented(tmp_path_factory, "acceptance")


@pytest.fixture(scope="session")
def frames_invented(tmp_path_factory: pytest.TempPathFactory) -> Invented:
    """One cell, one rep, rings of one to four stages; nothing is timed."""
    return _invented(tmp_path_factory, "frames")


def run_module(invented: Invented, *arguments: str) -> str:
    """Run `python -m …`."""
    return run_python(invented, "-m", *arguments)


def run_python(invented: Invented, *arguments: str, hash_seed: str = "0") -> str:
    """Run Python from the repository's root, with the experiment's key as this user's."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "LONGHAUL_HOME": str(invented.home),
        "PYTHONPATH": str(REPOSITORY),
    }
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    output = finished.stdout + finished.stderr
    if finished.returncode:
        raise RuntimeError(f"status {finished.returncode}: {output}")
    return output


@pytest.fixture
def two_committed(
    invented: Invented, frames_invented: Invented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A repository with two committed experiments, and folders that are none."""
    root = tmp_path / "repository"
    shutil.copytree(invented.folder, root / "receipts" / "decode")
    shutil.copytree(frames_invented.folder, root / "receipts" / "frames")
    (root / "receipts" / "schema").mkdir()
    (root / "receipts" / "keys").mkdir()
    for name, home in (("one", invented.home), ("two", frames_invented.home)):
        shutil.copy(home / "keys" / "harness.pub", root / "receipts" / "keys" / f"{name}.pub")
    monkeypatch.setattr(folders, "REPOSITORY", root)
    monkeypatch.setattr(folders, "COMMITTED", root / "receipts")
    monkeypatch.setattr(load, "COMMITTED", root / "receipts")
    return root
