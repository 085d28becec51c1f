"""Study records: signed, canonical, named by their bytes; checked and shown like receipts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench import check
from bench.check_files import CheckedFolder
from bench.check_study import check_study, holds_records
from bench.receipt import canonical_bytes, load_signed, receipt_id, signature_path, write_signed
from bench.schema import Plan, Receipt, Study
from bench.show import explain
from bench.study_record import make_study, write_study
from engine.errors import ReceiptError
from engine.trust.identity import Identity, PublicIdentity
from tests.bench.receipt_builder import make_plan, make_receipt

ROWS = [
    {"rep": 0, "suite": "plain", "exchange_ns": 1000},
    {"rep": 0, "suite": "aes-256-gcm", "exchange_ns": 2**53 - 1},
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def identity(home: Path) -> Identity:
    return Identity.load_or_create(home / "keys" / "bench.key")


@pytest.fixture
def keys(identity: Identity) -> dict[str, PublicIdentity]:
    return {identity.key_id: identity.public}


@pytest.fixture
def path(tmp_path: Path, identity: Identity) -> Path:
    study = make_study("seal-cost", {"frame_bytes": 405_000}, ROWS)
    return write_study(study, tmp_path / "studies")


def findings(folder: Path, keys: dict[str, PublicIdentity]) -> set[tuple[str, str]]:
    files = CheckedFolder(folder, keys)
    check_study(files)
    return {(finding.file, finding.rule) for finding in files.findings}


def test_a_record_is_signed_named_by_its_bytes_and_clean(
    path: Path, keys: dict[str, PublicIdentity], capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    """Catches a record that its own check, or a stranger's parser, would refuse."""
    study, body = load_signed(path, Study, keys)
    assert study.rows == ROWS and study.schema == "longhaul-study/1"
    assert body == canonical_bytes(study) and path.stem == receipt_id(body)
    assert path.parent.name == "seal-cost" and signature_path(path).exists()
    assert study.build.source_digest and study.host["num_cores"]
    assert findings(path.parent, keys) == set() and holds_records(path.parent)
    shutil.copy(_public_file(home, keys), home / "keys" / "bench.pub")
    assert check.main([str(path.parent), "--keys", str(home / "keys")]) == 0
    assert capsys.readouterr().out == "1 records, 0 findings\n"


def _public_file(home: Path, keys: dict[str, PublicIdentity]) -> Path:
    written = home / "mine.pub"
    written.write_text(next(iter(keys.values())).to_text())
    return written


def test_a_record_is_explained(path: Path, keys: dict[str, PublicIdentity]) -> None:
    text = explain(path, keys)
    for words in ("study seal-cost", "2 rows", "frame_bytes 405000", "exchange_ns 1000"):
        assert words in text


@pytest.mark.parametrize("value", [1.5, True, None, 2**53, [1], -(2**53)])
def test_what_is_no_integer_or_string_is_not_written(tmp_path: Path, value: object) -> None:
    """Catches a mean that slips into a record, or a number that a reader would round."""
    study = make_study("x", {"size": 1}, [{"value": value}])  # type: ignore[dict-item]
    with pytest.raises(ReceiptError):
        write_study(study, tmp_path / "studies")
    assert not (tmp_path / "studies").exists()


def test_a_study_has_a_folder_s_name(tmp_path: Path) -> None:
    """Catches a record outside its folder."""
    with pytest.raises(ReceiptError):
        write_study(make_study("../x", {}, ROWS), tmp_path / "studies")


def other_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"exchange_ns":1000', b'"exchange_ns":1001'))


def renamed(path: Path) -> None:
    for old in (path, signature_path(path)):
        old.rename(old.with_name(old.name.replace(path.stem, "0" * 16)))


def rewritten(change: Callable[[Study], Study], folder: str = "seal-cost") -> Callable:
    def plant(path: Path, identity: Identity) -> None:
        study = change(msgspec.json.decode(path.read_bytes(), type=Study))
        write_signed(
            path.parent.parent / folder / f"{receipt_id(canonical_bytes(study))}.json",
            study,
            identity,
        )

    return plant


PLANTS: dict[str, tuple[Callable, str]] = {
    "altered": (lambda path, identity: other_bytes(path), "signature"),
    "altered and signed again": (
        lambda path, identity: write_signed(
            path,
            msgspec.structs.replace(
                msgspec.json.decode(path.read_bytes(), type=Study), created="2020"
            ),
            identity,
        ),
        "misplaced",
    ),
    "unsigned": (lambda path, identity: signature_path(path).unlink(), "signature"),
    "renamed": (lambda path, identity: renamed(path), "misplaced"),
    "record gone": (lambda path, identity: path.unlink(), "foreign"),
    "foreign file": (lambda path, identity: (path.parent / "x.txt").write_text(""), "foreign"),
    "foreign folder": (lambda path, identity: (path.parent / "0123456789abcdef.json").mkdir(),
                       "foreign"),
    "another study's": (
        rewritten(lambda study: msgspec.structs.replace(study, study="other")),
        "misplaced",
    ),
    "no rows": (rewritten(lambda study: msgspec.structs.replace(study, rows=[])), "rows"),
    "ragged rows": (
        rewritten(lambda study: msgspec.structs.replace(study, rows=[*study.rows, {"x": 1}])),
        "rows",
    ),
    "stranger's": (
        lambda path, identity: write_signed(
            path,
            msgspec.json.decode(path.read_bytes(), type=Study),
            Identity.load_or_create(path.parent.parent / "other.key"),
        ),
        "signature",
    ),
    "a receipt": (
        lambda path, identity: write_signed(
            path, make_receipt(make_plan(), "0" * 64, make_plan().jobs[0], None), identity
        ),
        "schema",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTS)
def test_planted_defects_are_found(
    path: Path, identity: Identity, keys: dict[str, PublicIdentity], name: str
) -> None:
    """Catches a record that is taken on trust."""
    plant, rule = PLANTS[name]
    plant(path, identity)
    assert rule in {found for _, found in findings(path.parent, keys)}


def test_an_experiment_is_no_study_and_a_plan_is_not_explained(
    path: Path, identity: Identity, keys: dict[str, PublicIdentity], tmp_path: Path
) -> None:
    """Catches an experiment that is checked by the rules of records only."""
    write_signed(path.parent / "plan.json", make_plan(), identity)
    assert not holds_records(path.parent)
    with pytest.raises(ReceiptError, match="show explains"):
        explain(path.parent / "plan.json", keys)
    for kind in (Receipt, Plan):
        with pytest.raises(ReceiptError, match="longhaul-study"):
            load_signed(path, kind, keys)
