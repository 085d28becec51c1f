"""The README says what the receipts say, and its commands and files exist."""

from __future__ import annotations

import re
from pathlib import Path

from analysis.folders import committed_experiments
from analysis.readme import README, committed_block, with_block

ROOT = Path(__file__).resolve().parents[1]


def test_the_results_are_the_committed_receipts() -> None:
    """Catches a number in the README that was typed, or that a newer experiment has overtaken."""
    text = README.read_text(encoding="utf-8")
    assert with_block(text, committed_block()) == text
    for name in committed_experiments():
        assert re.search(rf"^(- |Committed experiment )`{name}`", text, re.M), name


def test_every_make_target_it_names_exists() -> None:
    """Catches a command that a newcomer types in vain."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"make ([a-z-]+)", README.read_text(encoding="utf-8")))
    assert named <= targets, named - targets


def test_every_folder_of_its_file_map_exists() -> None:
    """Catches a map of files that were moved."""
    block = README.read_text(encoding="utf-8").split("## Files")[1].split("```")[1]
    named = re.findall(r"^([a-z/]+/)\s", block, re.M)
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).is_dir()] == []
