"""The receipts and study records of a repository: where each lies, its place, who signed it.

Guarantees: a file is known by the digest of its bytes; one whose signature by a key of the
repository does not hold over those bytes, or that says nothing of its place, is kept and says what
is wrong with it. Must never know what was measured: of a document it reads the place alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from analysis.folders import RECEIPTS_FOLDER, SIGNATURE_ENDING
from analysis.study_records import PRODUCTS as STUDIES
from bench.receipt import proven_signature, receipt_id
from bench.schema import Build
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity, load_public_keys

Host = Mapping[str, str | int | None]


class _Position(msgspec.Struct, frozen=True):
    job_idx: int
    rep: int
    cell: str
    role: str


class _Requested(msgspec.Struct, frozen=True):
    arm: str


class _Timing(msgspec.Struct, frozen=True):
    wall_start: str


class JobPlace(msgspec.Struct, frozen=True):
    """What a receipt says of where it stands; the rest is read by `analysis.load`."""

    position: _Position
    requested: _Requested
    timing: _Timing
    host: dict[str, str | int | None]


class RecordPlace(msgspec.Struct, frozen=True):
    """What a study record says of itself; the rest is read by `analysis.study_records`."""

    study: str
    created: str
    build: Build
    host: dict[str, str | int | None]


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """One signed document."""

    receipt_id: str
    path: Path
    key_id: str  # empty: nobody signed it
    place: JobPlace | RecordPlace | None  # None: it cannot be read
    problem: str  # empty: its signature holds

    @property
    def group(self) -> str:
        """Its experiment, or `studies`; an experiment and a study may have one name."""
        return self.path.parent.parent.name


def receipt_files(top: Path) -> list[ReceiptFile]:
    """Every receipt and record below `receipts/`, by path.

    Raises:
        ReceiptError: a file of `keys/` is no public key.
    """
    keys = load_public_keys(top / "keys")
    return [_read(path, keys) for path in _paths(top)]


def signing_key(path: Path, body: bytes, keys: Mapping[str, PublicIdentity]) -> str:
    """The id of the key whose signature holds over a document's bytes.

    Raises:
        ReceiptError: none does; the page names the file itself, so the words leave its folder out.
    """
    try:
        return proven_signature(path, body, keys).key_id
    except ReceiptError as error:
        words = str(error).removeprefix(f"{path}: ").replace(f"{path.parent}{os.sep}", "")
        raise ReceiptError(words) from error


def _paths(top: Path) -> Iterator[Path]:
    for pattern in (f"*/{RECEIPTS_FOLDER}/*.json", f"{STUDIES}/*/*.json"):
        for path in sorted(top.glob(pattern)):
            if not path.name.endswith(SIGNATURE_ENDING):
                yield path


def _read(path: Path, keys: Mapping[str, PublicIdentity]) -> ReceiptFile:
    body, key_id, problems = path.read_bytes(), "", []
    try:
        key_id = signing_key(path, body, keys)
    except ReceiptError as error:
        problems.append(str(error))
    place: JobPlace | RecordPlace | None = None
    try:
        if path.parent.name == RECEIPTS_FOLDER:
            place = msgspec.json.decode(body, type=JobPlace)
        else:
            place = msgspec.json.decode(body, type=RecordPlace)
    except msgspec.DecodeError as error:
        problems.append(f"no receipt: {error}")
    return ReceiptFile(receipt_id(body), path, key_id, place, "; ".join(problems))
