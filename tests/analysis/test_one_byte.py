"""One byte of one receipt: what depends on it breaks or changes, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis import check_paper
from analysis.load import load_experiment
from analysis.product_kind import Kind, make_products
from bench.receipt import parse_document, receipt_id, write_signed
from bench.schema import Receipt
from engine.errors import ReceiptError
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import receipt_path

JOB_IDX = 3  # a measured job of the arm chain-k8, on the first cell


@pytest.fixture
def paper(two_committed: Path, separate_kinds: dict[str, Kind]) -> Path:
    """The products of a repository with two experiments."""
    list(make_products(separate_kinds.values(), two_committed / "paper"))
    return two_committed / "paper"


@pytest.fixture
def receipt(two_committed: Path) -> Path:
    """The receipt that is edited."""
    return receipt_path(two_committed / "receipts" / "decode", JOB_IDX)


def products_in(paper: Path) -> dict[str, bytes]:
    """Every file by name."""
    found = [path for path in paper.rglob("*") if path.is_file()]
    return {path.relative_to(paper).as_posix(): path.read_bytes() for path in found}


def edit_last_commit(path: Path) -> None:
    """Exactly one byte: the job commits its last token a little earlier."""
    name = b'"last_commit_ns":'
    body = path.read_bytes()
    at = body.index(name) + len(name) + 1  # the second digit: tenths of the second
    assert body[at : at + 1].isdigit() and body[at : at + 1] != b"0"
    path.write_bytes(body[:at] + bytes([body[at] - 1]) + body[at + 1 :])


def sign_again(path: Path, invented: Invented) -> None:
    write_signed(path, parse_document(path.read_bytes(), Receipt), invented.identity)


def names_of(receipt: Path) -> tuple[bytes, bytes]:
    """How products name the experiment's receipts, and the one."""
    experiment = load_experiment(receipt.parents[1])
    return experiment.receipt_set_digest.encode(), receipt_id(receipt.read_bytes()).encode()


def test_an_unsigned_edit_breaks_its_experiment_and_changes_no_product(
    paper: Path,
    receipt: Path,
    separate_kinds: dict[str, Kind],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = products_in(paper)
    edit_last_commit(receipt)
    with pytest.raises(ReceiptError) as caught:
        list(make_products(separate_kinds.values(), paper))
    told = f"{receipt}: its bytes are not the ones that {receipt.stem}.sig.json signs"
    assert str(caught.value) == told
    assert products_in(paper) == before
    assert check_paper.main([]) == 2
    assert told in capsys.readouterr().err
    load_experiment(receipt.parents[2] / "frames")  # the other one still holds


def test_a_signed_edit_changes_what_rests_on_it_alone(
    paper: Path, receipt: Path, separate_kinds: dict[str, Kind], invented: Invented
) -> None:
    before = products_in(paper)
    names = names_of(receipt)
    edit_last_commit(receipt)
    sign_again(receipt, invented)
    list(make_products(separate_kinds.values(), paper))
    after = products_in(paper)
    assert after.keys() == before.keys()
    changed = {name for name in before if before[name] != after[name]}
    # Every product names the receipts that it was made from, so all of the experiment's change …
    others = {"frames", "studies"}
    own = {name for name in before if others.isdisjoint(Path(name.partition(".")[0]).parts)}
    assert changed == own
    renamed = before
    for old, new in zip(names, names_of(receipt), strict=True):
        renamed = {name: body.replace(old, new) for name, body in renamed.items()}
    # … but in more than that name only what shows the times of the job.
    moved = {name.partition(".")[0] for name in before if renamed[name] != after[name]}
    assert moved == {
        "figures/arms_by_cell",
        "figures/traversal_split",
        "tables/decode",
        "tables/against_base",
        "tables/breakdown",
        "numbers",
    }
    # Of the numbers, speeds and ratios that list its receipt alone; a mean never stands still.
    old, new = (json.loads(made["numbers.json"])["numbers"] for made in (before, after))
    identifier = receipt_id(receipt.read_bytes())
    timed = {
        name
        for name, number in new.items()
        if identifier in number["receipt_ids"] and number["unit"] in ("tokens/s", "ratio")
    }
    moved = {name for name in old if old[name]["value"] != new[name]["value"]}
    assert {name for name in timed if name.endswith(".ratio")} < moved <= timed < new.keys()
