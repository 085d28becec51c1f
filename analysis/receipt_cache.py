"""Which documents were checked before: a Parquet file for each checked experiment.

Guarantees: an entry is found only under the digest of all that the checks depend on: names and
bytes of every document and signature as they lie on disk now, the trusted keys, the source of the
modules that check, and the packages under these. It is believed only if it lists exactly the
documents at hand. It spares the checks and nothing else: no number, word or name is taken out of
it. A refusal is never kept; a damaged entry is told of, not believed, and written anew.
What is trusted is the folder: `receipts` in `$LONGHAUL_CACHE`, else in this user's cache folder.
Who can write there can also write `.venv` and this user's keys, so it is trusted like those.
Must never know what a document says.
"""

from __future__ import annotations

import ast
import hashlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from engine.trust.identity import PublicIdentity

SOURCES = Path(__file__).resolve().parent.parent
CHECKING_PACKAGES = ("cryptography", "msgspec", "rfc8785")  # verify, parse, make canonical
ENDING = ".parquet"
MAX_ENTRIES = 64  # every change of an experiment or of the checks leaves one behind


def cache_folder() -> Path:
    """Where the entries are or will be."""
    if chosen := os.environ.get("LONGHAUL_CACHE"):
        return Path(chosen) / "receipts"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "longhaul" / "receipts"


def checks_key(digests: Mapping[str, str], keys: Mapping[str, PublicIdentity], checks: str) -> str:
    """Digest of all that the checks of these documents depend on.

    Args:
        digests: SHA-256 of every file, hex, by its name.
        keys: the trusted ones.
        checks: `source_digest` of the module that checks.
    """
    lines = [
        sys.version,
        *(f"{package} {metadata.version(package)}" for package in CHECKING_PACKAGES),
        checks,
        *(f"{key_id} {key.raw.hex()}" for key_id, key in sorted(keys.items())),
        *(f"{digest} {name}" for name, digest in digests.items()),
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def source_digest(module: str) -> str:
    """Digest of a module and of every module of this repository that it stands on."""
    found = sources_of(module)
    listing = "".join(f"{hashlib.sha256(found[name]).hexdigest()} {name}\n" for name in found)
    return hashlib.sha256(listing.encode()).hexdigest()


def sources_of(module: str) -> dict[str, bytes]:
    """Source by dotted name, sorted: the module's own and all that its imports lead to.

    Read off the syntax trees, so that nobody has to keep a list of what checks.
    """
    found: dict[str, bytes] = {}
    wanted = [module]
    while wanted:
        name = wanted.pop()
        path = _source_path(name)
        if path is None or name in found:
            continue
        found[name] = path.read_bytes()
        wanted += _imported(found[name])
        wanted.append(name.rpartition(".")[0])  # a package runs before what lies in it
    return dict(sorted(found.items()))


def is_known(key: str, digests: Mapping[str, str]) -> bool:
    """Whether exactly these documents passed the checks under this key."""
    path = cache_folder() / f"{key}{ENDING}"
    try:
        # Without the path's own readers: a folder named like a partition would add columns.
        kept = pq.read_table(pa.BufferReader(path.read_bytes()), use_threads=False)
        is_same: bool = kept.to_pydict() == _columns(digests)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, pa.ArrowException) as error:
        words = " ".join(str(error).split())
        print(f"{path}: damaged, so the receipts are checked again: {words}", file=sys.stderr)
        return False
    if not is_same:
        print(f"{path}: lists other receipts, so these are checked again", file=sys.stderr)
    return is_same


def keep(key: str, digests: Mapping[str, str]) -> None:
    """Note that these documents passed; a folder that cannot be written costs time, not results."""
    folder = cache_folder()
    staging = folder / f".{key}.{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            pq.write_table(pa.table(_columns(digests)), staging)
            staging.replace(folder / f"{key}{ENDING}")  # whole or not at all, whoever else writes
        finally:
            staging.unlink(missing_ok=True)
        _drop_oldest(folder)
    except (OSError, pa.ArrowException) as error:
        print(f"{folder}: cannot keep what was checked: {error}", file=sys.stderr)


def _columns(digests: Mapping[str, str]) -> dict[str, list[str]]:
    return {"file": list(digests), "sha256": list(digests.values())}


def _drop_oldest(folder: Path) -> None:
    written = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process was first to drop or to rename it
            written.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(written)[:-MAX_ENTRIES]:
        path.unlink(missing_ok=True)


def _source_path(module: str) -> Path | None:
    """A module's file in this repository; None: it is none of ours, or a name in a module."""
    place = SOURCES.joinpath(*module.split("."))
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in candidates if module and path.is_file()), None)


def _imported(source: bytes) -> Iterator[str]:
    """Every dotted name that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
