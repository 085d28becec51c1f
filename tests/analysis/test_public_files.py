"""Reading the public receipts: the published bytes or nothing, refused by file and field."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.public.files import (
    MATRIX,
    PAPER_OFF,
    PAPER_ON,
    PINNED,
    REAL_RING,
    TREE_TRIAL,
    read_public,
    set_digest,
)
from engine.errors import ConfigError, ReceiptError
from tests.analysis.public_builder import PublicSet, honest

Change = Callable[[PublicSet], None]


def refused(tmp_path: Path, change: Change) -> str:
    """What is said of a set that was changed and pinned as it then is."""
    pins = honest().changed(change).write(tmp_path)
    with pytest.raises(ReceiptError) as caught:
        read_public(tmp_path, pins)
    return str(caught.value)


def test_files_as_published_are_read_in_their_order(tmp_path: Path) -> None:
    files = honest()
    pins = files.write(tmp_path)
    public = read_public(tmp_path, pins)
    assert [job.cell for job in public.on] == [record["cell"] for record in files.on]
    assert (len(public.on), len(public.off)) == (64, 52)
    assert public.on[0].frames == 10 and public.on[1].frames == 13
    assert public.tree_trial.cells["reason-math"]["tree_hybrid"] == 5.0
    assert public.tree_trial.means["chain"] == 4.0
    assert public.matrix.ring.places[-1] == ("Czechia", 24, 43)
    assert public.ids(MATRIX) == [f"{MATRIX}:{pins[MATRIX][:16]}"]
    assert list(public.digests) == list(PINNED) and dict(public.digests) == pins


def test_the_digest_of_a_set_is_over_every_file_in_order() -> None:
    """Catches a digest that leaves a file out, or that forgets the order."""
    assert set_digest({"a": "1", "b": "2"}) == hashlib.sha256(b"1\n2").hexdigest()


@pytest.mark.parametrize("name", PINNED)
def test_an_altered_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """Catches numbers of files that nobody published: one space more changes nothing but bytes."""
    pins = honest().write(tmp_path)
    with (tmp_path / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ReceiptError, match=rf"{name}: altered: its SHA-256 is [0-9a-f]{{64}}"):
        read_public(tmp_path, pins)


@pytest.mark.parametrize("name", PINNED)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    pins = honest().write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ReceiptError, match=rf"{name}: No such file"):
        read_public(tmp_path, pins)


def test_a_missing_folder_is_told_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no such folder; name the one that holds {PAPER_ON}"):
        read_public(tmp_path / "nowhere")


def test_pins_are_those_of_the_published_files(tmp_path: Path) -> None:
    """Catches an invented set that passes for the published one."""
    honest().write(tmp_path)
    with pytest.raises(ReceiptError, match=f"{PAPER_ON}: altered"):
        read_public(tmp_path)


WRONG: dict[str, tuple[Change, str, str]] = {
    "missing field": (
        lambda files: files.on[3].pop("g"), PAPER_ON, r"required field `g` - at `\$\[3\]`"
    ),
    "wrong type": (
        lambda files: files.off[2].update(tok_s="fast"),
        PAPER_OFF, r"got `str` - at `\$\[2\]\.tok_s`",
    ),
    "unknown arm": (lambda files: files.on[0].update(arm="tree"), PAPER_ON, r"\$\[0\]\.arm"),
    "no rounds": (lambda files: files.on[0].update(rounds=0), PAPER_ON, r"\$\[0\]\.rounds"),
    "more accepted than drafted": (
        lambda files: files.on[1].update(accept=8.5), PAPER_ON, r"<= 8.0 - at `\$\[1\]\.accept`"
    ),
    "span without compute": (
        lambda files: files.on[1]["per_stage_ms"].update({"0": [21.0]}),
        PAPER_ON, r"array` of length 2 - at `\$\[1\]\.per_stage_ms",
    ),
    "repeated job": (
        lambda files: files.on.append(dict(files.on[5])), PAPER_ON, r"record 64 repeats record 5"
    ),
    "no ar": (
        lambda files: files.on.__setitem__(
            slice(None), [record for record in files.on if record["arm"] != "ar"]
        ),
        PAPER_ON, "holds no job of arm ar$",
    ),
    "another ring": (
        lambda files: files.off[7]["per_stage_ms"].pop("3"), PAPER_OFF,
        r"record 7: per_stage_ms names stages \('0', '1', '2'\)",
    ),
    "other receipt format": (
        lambda files: files.real_ring["receipts"][0].update(schema="shard-receipt/2"),
        REAL_RING, r"schema",
    ),
    "short root": (
        lambda files: files.real_ring["receipts"][1].update(in_root="00"), REAL_RING, r"in_root"
    ),
    "no receipts": (lambda files: files.real_ring.update(receipts=[]), REAL_RING, r"receipts"),
    "tree arm missing": (
        lambda files: files.tree["results_tok_s_and_g"]["code-edit"].pop("tree_hybrid"),
        TREE_TRIAL, "code-edit has no tree_hybrid",
    ),
    "bare number for a cell": (
        lambda files: files.tree["results_tok_s_and_g"]["code-edit"].update(chain=4.0),
        TREE_TRIAL, "code-edit, chain: a pair of tok/s and g is needed",
    ),
    "pair for the mean": (
        lambda files: files.tree["results_tok_s_and_g"]["decode_weighted_mean"].update(
            chain=[4.0, 2.0]
        ),
        TREE_TRIAL, "decode_weighted_mean, chain: a number is needed",
    ),
    "no mean": (
        lambda files: files.tree["results_tok_s_and_g"].pop("decode_weighted_mean"),
        TREE_TRIAL, "cells and decode_weighted_mean are needed",
    ),
    "nameless place": (
        lambda files: files.matrix["ring"].update(topology="Poland[0:8) -> somewhere"),
        MATRIX, "topology: 'somewhere' is not of the form",
    ),
    "one repetition": (
        lambda files: files.matrix["headline"].update(reps=[30.0]), MATRIX, r"headline\.reps"
    ),
    "flag that is no flag": (
        lambda files: files.matrix["matrix"][1].update(lossless_vs_greedy="yes"),
        MATRIX, r"matrix\[1\]\.lossless_vs_greedy",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_file_of_another_form_is_refused_by_file_and_field(tmp_path: Path, case: str) -> None:
    """Catches a default for what is not there, and an error that does not say where."""
    change, name, words = WRONG[case]
    said = refused(tmp_path, change)
    assert said.startswith(str(tmp_path / name)), said
    assert re.search(words, said), said


def test_fields_that_nobody_reads_may_be_there(tmp_path: Path) -> None:
    pins = honest().changed(lambda files: files.on[0].update(mood="calm")).write(tmp_path)
    assert len(read_public(tmp_path, pins).on) == 64
