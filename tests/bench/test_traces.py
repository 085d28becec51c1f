"""Recorded texts and rings fitted from receipts, and the command that replays them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.__main__ import main
from bench.receipt import load_signed
from bench.ring_fit import fit_ring
from bench.schema import Study
from bench.traces import Recorded, load_recorded
from engine.errors import ReceiptError
from engine.trust.identity import Identity, load_public_keys, longhaul_home
from tests.bench.receipt_builder import SmallExperiment

ROOT = Path(__file__).resolve().parents[2]
KEYS = load_public_keys(ROOT / "receipts" / "keys")


@pytest.fixture(scope="module")
def seal() -> Recorded:
    return load_recorded(ROOT / "receipts" / "seal", KEYS)


def test_one_text_a_cell_of_a_reference_that_ended_well(seal: Recorded) -> None:
    """Catches measured arms, repetitions or failed jobs taken for the target's own text."""
    traces = seal.traces()
    assert [trace.cell for trace in traces] == [cell.name for cell in seal.plan.cells]
    receipts = dict(seal.receipts)
    for trace in traces:
        receipt = receipts[trace.receipt_id]
        assert receipt.position.role == "reference" and receipt.position.rep == 0
        assert list(trace.output_ids) == receipt.output_ids
        assert trace.eos_ids == (
            {receipt.output_ids[-1]} if receipt.finish_reason == "eos" else frozenset()
        )


def test_failed_references_give_no_text(seal: Recorded) -> None:
    """Catches a text that ends where an error cut it."""
    failed = [
        (name, msgspec.structs.replace(receipt, status="failed")) for name, receipt in seal.receipts
    ]
    assert Recorded(seal.plan, tuple(failed)).traces() == []


def test_a_ring_is_fitted_from_what_was_measured(seal: Recorded) -> None:
    """Catches delays of the profile in place of probed ones, and costs that are no times."""
    receipts = [receipt for _, receipt in seal.receipts]
    ring = fit_ring(receipts, overlap=0.5)
    assert len(ring.stages) == 4 and ring.overlap == 0.5
    for fitted, link in zip(ring.one_way_ns, receipts[0].links, strict=True):
        assert min(link.rtt_ns) <= 2 * fitted + 1 and 2 * fitted - 1 <= max(link.rtt_ns)
    for stage in ring.stages:
        assert stage.frame_ns > 0 and stage.position_ns >= 0 and stage.context_ns >= 0
    assert fit_ring(receipts, overlap=0.5) == ring


def test_without_a_frame_alone_there_is_no_fit(seal: Recorded) -> None:
    """Catches a ring made of nothing."""
    bare = [msgspec.structs.replace(receipt, frames=[]) for _, receipt in seal.receipts]
    with pytest.raises(ReceiptError, match="alone"):
        fit_ring(bare, overlap=1.0)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """Catches replays of no receipts at all."""
    identity = Identity.load_or_create(tmp_path / "home" / "x.key")
    made = SmallExperiment(tmp_path / "experiment", identity)
    for path in (made.folder / "receipts").iterdir():
        path.unlink()
    keys = {identity.key_id: identity.public}
    with pytest.raises(ReceiptError, match="holds no receipts"):
        load_recorded(made.folder, keys)


def test_the_command_prints_every_cell_and_signs_its_rows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a table that is not what was recorded, and rows without the receipts they rest on."""
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    folder = str(ROOT / "receipts" / "seal")
    arguments = ["replay", folder, "--arms", "ar,planner,clairvoyant", "--grid", "--cells", "chat"]
    assert main([*arguments, "--record", str(tmp_path / "out")]) == 0
    shown = capfd.readouterr().err
    assert "chat" in shown and "planner / clairvoyant" in shown and "best fixed" in shown
    (path,) = [p for p in (tmp_path / "out" / "replay").iterdir() if ".sig" not in p.name]
    keys = load_public_keys(longhaul_home() / "keys")
    record, _ = load_signed(path, Study, keys)
    assert len(record.rows) == 3 + 15
    known = {name for name, _ in load_recorded(ROOT / "receipts" / "seal", KEYS).receipts}
    assert {row["receipt"] for row in record.rows} <= known


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--arms", "chain-k9"], "chain-k8"),
        (["--cells", "chatter"], "chat"),
        (["--cells", " , "], "names nothing"),
    ],
)
def test_bad_arguments_name_what_is_valid(
    arguments: list[str], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Catches a misspelt arm or cell that is left out in silence."""
    assert main(["replay", str(ROOT / "receipts" / "seal"), *arguments]) == 2
    assert named in capfd.readouterr().err
