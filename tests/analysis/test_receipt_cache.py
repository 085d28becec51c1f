"""Checked receipts are known again, and nothing else ever is."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import documents, receipt_cache
from analysis.documents import Documents
from analysis.load import Experiment, jobs_frame, load_experiment, rounds_frame
from bench.receipt import load_signed, parse_document, signature_path, write_signed
from bench.schema import Receipt
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import make_identity, receipt_path

NUM_DOCUMENTS = 1 + 8 * 7  # the plan, and the jobs of eight blocks


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "receipts"


@pytest.fixture
def folder(invented: Invented, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(invented.folder, tmp_path / "copy"))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the documents whose signature and form were checked, as they are."""
    names: list[str] = []

    def listed(path: Path, *more: object) -> object:
        names.append(path.name)
        return load_signed(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(documents, "load_signed", listed)
    return names


def entry_in(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def assert_same(one: Experiment, other: Experiment) -> None:
    for field in fields(Experiment):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, pd.DataFrame):
            pd.testing.assert_frame_equal(left, right)
        else:
            assert left == right, field.name
    for make in (jobs_frame, rounds_frame):
        pd.testing.assert_frame_equal(make(one), make(other))


def test_the_second_load_checks_nothing_and_gives_the_same(
    folder: Path, invented: Invented, cache: Path, checked: list[str]
) -> None:
    for path in (receipt_path(folder, 3), signature_path(receipt_path(folder, 3))):
        path.unlink()  # a missing job is excluded both times
    first = load_experiment(folder, invented.key_folders)
    assert len(checked) == NUM_DOCUMENTS - 1 and len(first.exclusions) == 1
    second = load_experiment(folder, invented.key_folders)
    assert len(checked) == NUM_DOCUMENTS - 1, "the second load checked again"
    assert_same(first, second)


def test_a_copy_elsewhere_is_known(
    folder: Path, invented: Invented, cache: Path, checked: list[str]
) -> None:
    """What counts is bytes and names: error messages alone hang on the path, and there are none."""
    load_experiment(invented.folder, invented.key_folders)
    checked.clear()
    load_experiment(folder, invented.key_folders)
    assert checked == []


def edit_receipt(folder: Path) -> None:
    path = receipt_path(folder, 3)
    path.write_bytes(path.read_bytes().replace(b'"seed":"00"', b'"seed":"01"'))


def edit_plan(folder: Path) -> None:
    path = folder / "plan.json"
    path.write_bytes(path.read_bytes().replace(b'"alpha":"0.05"', b'"alpha":"0.06"'))


def edit_signature(folder: Path) -> None:
    path = signature_path(receipt_path(folder, 3))
    path.write_bytes(path.read_bytes().replace(b'"key_id":"', b'"key_id":"0'))


def swap_receipts(folder: Path) -> None:
    three, four = (receipt_path(folder, idx) for idx in (3, 4))
    for one, other in ((three, four), (signature_path(three), signature_path(four))):
        body = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(body)


@pytest.mark.parametrize(
    ("damage", "name", "reason"),
    [
        (edit_receipt, "0003.json", "bytes are not the ones"),
        (edit_plan, "plan.json", "bytes are not the ones"),
        (edit_signature, "0003.json", "signed by unknown key"),
        (lambda f: signature_path(receipt_path(f, 3)).unlink(), "0003.json", "unsigned"),
        (swap_receipts, "0003.json", "under the name of job 3"),
    ],
)
def test_an_edit_is_refused_by_name_though_the_rest_is_known(
    folder: Path,
    invented: Invented,
    cache: Path,
    checked: list[str],
    damage: Callable[[Path], object],
    name: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = load_experiment(folder, invented.key_folders)
    damage(folder)
    for _ in range(2):  # a refusal is not remembered as anything else
        with pytest.raises(ReceiptError, match=reason) as caught:
            load_experiment(folder, invented.key_folders)
        assert f"{name}:" in str(caught.value)
    assert len(list(cache.iterdir())) == 1
    assert not capsys.readouterr().err, "an edit of receipts is no damage of the cache"
    shutil.rmtree(folder)
    shutil.copytree(invented.folder, folder)
    checked.clear()
    assert_same(whole, load_experiment(folder, invented.key_folders))
    assert checked == [], "the untouched experiment is still known"


def test_what_contradicts_itself_is_refused_every_time(
    folder: Path, invented: Invented, cache: Path
) -> None:
    """Catches an entry that is written before the last check."""
    path = receipt_path(folder, 3)
    receipt = parse_document(path.read_bytes(), Receipt)
    write_signed(path, msgspec.structs.replace(receipt, output_ids=[1, 2]), invented.identity)
    for _ in range(2):
        with pytest.raises(ReceiptError, match=r"0003\.json: its rounds commit"):
            load_experiment(folder, invented.key_folders)
    assert not cache.exists()


def test_a_key_that_is_no_longer_trusted_opens_nothing(
    folder: Path, invented: Invented, cache: Path, tmp_path: Path
) -> None:
    load_experiment(folder, invented.key_folders)
    make_identity(tmp_path / "stranger")
    with pytest.raises(ReceiptError, match=r"plan\.json: signed by unknown key"):
        load_experiment(folder, [tmp_path / "stranger" / "keys"])


@pytest.mark.parametrize("what", ["source", "package", "python"])
def test_other_checks_are_made_anew(
    folder: Path,
    invented: Invented,
    cache: Path,
    checked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    load_experiment(folder, invented.key_folders)
    checked.clear()
    if what == "source":
        monkeypatch.setattr(documents, "CHECKS", "another check")
    elif what == "package":
        monkeypatch.setattr(receipt_cache.metadata, "version", lambda package: "0")
    else:
        monkeypatch.setattr(sys, "version", "4")
    load_experiment(folder, invented.key_folders)
    assert len(checked) == NUM_DOCUMENTS


def foreign_table(path: Path) -> None:
    pq.write_table(pa.table({"file": ["plan.json"], "sha256": ["0" * 64]}), path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:200]), "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_text("no table"), "damaged"),
        (foreign_table, "lists other receipts"),
        (as_folder, "damaged"),
    ],
)
def test_a_damaged_entry_is_told_of_and_made_anew(
    folder: Path,
    invented: Invented,
    cache: Path,
    checked: list[str],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], object],
    words: str,
) -> None:
    whole = load_experiment(folder, invented.key_folders)
    path = entry_in(cache)
    damage(path)
    checked.clear()
    assert_same(whole, load_experiment(folder, invented.key_folders))
    told = capsys.readouterr().err
    assert len(checked) == NUM_DOCUMENTS and told.startswith(f"{path}: {words}")
    if path.is_dir():
        assert "cannot keep what was checked" in told, "nothing takes a folder's place"
        assert list(cache.iterdir()) == [path], "nor is anything left beside it"
        return
    assert told.count("\n") == 1
    checked.clear()
    load_experiment(folder, invented.key_folders)
    assert checked == [] and not capsys.readouterr().err


def test_no_flipped_byte_makes_an_entry_say_more_than_it_did(
    folder: Path, invented: Invented, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches an entry that is believed because it can be read."""
    load_experiment(folder, invented.key_folders)
    path = entry_in(cache)
    body, key = path.read_bytes(), path.name.removesuffix(receipt_cache.ENDING)
    listed = dict(zip(*pq.read_table(path).to_pydict().values(), strict=True))
    others = {**listed, "plan.json": "0" * 64}
    num_refused = 0
    for at in range(0, len(body), max(1, len(body) // 400)):
        path.write_bytes(body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :])
        assert not receipt_cache.is_known(key, others)
        num_refused += not receipt_cache.is_known(key, listed)
    assert num_refused > 200, "most of a table is what it lists"
    assert capsys.readouterr().err.count(str(path)) >= num_refused


def test_a_cache_that_cannot_be_written_costs_time_only(
    folder: Path,
    invented: Invented,
    checked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "file"))
    first, second = (load_experiment(folder, invented.key_folders) for _ in range(2))
    assert_same(first, second)
    assert len(checked) == 2 * NUM_DOCUMENTS
    assert capsys.readouterr().err.count("cannot keep what was checked") == 2


def test_what_changed_while_it_was_checked_is_not_kept(
    folder: Path, invented: Invented, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an entry under the digest of bytes that were never checked."""
    true_check = documents._checked

    def mended_meanwhile(folder: Path, keys: dict[str, PublicIdentity]) -> Documents:
        shutil.rmtree(folder)
        shutil.copytree(invented.folder, folder)
        return true_check(folder, keys)

    edit_receipt(folder)
    monkeypatch.setattr(documents, "_checked", mended_meanwhile)
    load_experiment(folder, invented.key_folders)
    monkeypatch.setattr(documents, "_checked", true_check)
    edit_receipt(folder)
    with pytest.raises(ReceiptError, match=r"0003\.json: its bytes are not the ones"):
        load_experiment(folder, invented.key_folders)


def test_the_oldest_entries_make_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_cache, "MAX_ENTRIES", 3)
    for idx in range(5):
        receipt_cache.keep(f"{idx}", {"plan.json": f"{idx}"})
    kept = [receipt_cache.is_known(f"{idx}", {"plan.json": f"{idx}"}) for idx in range(5)]
    assert kept == [False, False, True, True, True]


def test_writers_at_once_leave_whole_entries(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a reader that sees half an entry, and writers that take each other's staging file."""
    listed = {f"receipts/{idx:04d}.json": f"{idx:064d}" for idx in range(200)}
    receipt_cache.keep("key", listed)
    start = threading.Barrier(4)

    def write_and_read(_: int) -> bool:
        start.wait()
        for _ in range(20):
            receipt_cache.keep("key", listed)
            if not receipt_cache.is_known("key", listed):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write_and_read, range(4)))
    assert [path.name for path in cache.iterdir()] == ["key.parquet"]
    assert not capsys.readouterr().err


def test_the_checks_are_followed_through_every_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a check that is changed without the entries of the old one being forgotten."""
    found = set(receipt_cache.sources_of("analysis.documents"))
    assert {
        "analysis.documents",
        "analysis.checks",
        "analysis.folders",
        "analysis.receipt_cache",
        "bench.receipt",
        "bench.schema",
        "bench.schema_levers",
        "engine.trust.identity",
    } <= found
    files = {
        "room/__init__.py": "",
        "room/a.py": "import json\nfrom room import b\n",
        "room/b.py": "def late():\n    import room.deep.c\n",
        "room/deep/__init__.py": "X = 1\n",
        "room/deep/c.py": "from room.a import late\n",
        "room/unused.py": "",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.setattr(receipt_cache, "SOURCES", tmp_path)
    names = ["room", "room.a", "room.b", "room.deep", "room.deep.c"]
    assert list(receipt_cache.sources_of("room.a")) == names
    before = receipt_cache.source_digest("room.a")
    (tmp_path / "room/unused.py").write_text("Y = 2\n")
    assert receipt_cache.source_digest("room.a") == before
    (tmp_path / "room/deep/__init__.py").write_text("X = 2\n")
    assert receipt_cache.source_digest("room.a") != before


def test_every_package_that_checks_is_in_the_key() -> None:
    """Catches a parser whose new version reads old entries."""
    standing_on = {
        name.split(".")[0]
        for source in receipt_cache.sources_of("analysis.documents").values()
        for name in receipt_cache._imported(source)
    }
    foreign = standing_on - sys.stdlib_module_names - {"analysis", "bench", "engine"}
    assert foreign == {*receipt_cache.CHECKING_PACKAGES, "pyarrow"}
