"""Fixtures that several ring tests share."""

from __future__ import annotations

import pytest

from engine.trust.identity import Identity


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    """Signing keys of a ring of three."""
    folder = tmp_path_factory.mktemp("keys")
    return [Identity.load_or_create(folder / f"stage-{idx}.key") for idx in range(3)]
