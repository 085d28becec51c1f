"""Fixtures that runs on scripted rings share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.schema import Plan
from bench.store import ExperimentStore
from engine.trust.identity import Identity
from tests.bench.scripted_rings import small_plan, two_rings


@pytest.fixture
def plan() -> Plan:
    """One ring."""
    return small_plan()


@pytest.fixture
def two_ring_plan(plan: Plan) -> Plan:
    """`chain-k8` has a ring of its own."""
    return two_rings(plan)


@pytest.fixture
def store(tmp_path: Path) -> ExperimentStore:
    """An empty experiment and a key of its own."""
    identity = Identity.load_or_create(tmp_path / "keys" / "bench.key")
    return ExperimentStore(tmp_path / "experiment", identity)


@pytest.fixture
def stub_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs encode no prompt; scripted rings do not read it."""
    stub = SimpleNamespace(encode_chat=lambda messages, tools=None: [1, 2, 3])
    monkeypatch.setattr("bench.run.Tokenizer", SimpleNamespace(load=lambda files: stub))
