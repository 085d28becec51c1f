"""Digest of the engine's own source, so that every process of a ring can say which build it is."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def engine_source_digest() -> str:
    """SHA-256 over (relative path, SHA-256 of bytes) of every Python file of this package, sorted.

    Read once per process: a file edited while a ring runs does not change what the ring is.
    """
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda item: item.relative_to(root).as_posix()):
        file_digest = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()} {file_digest}\n".encode())
    return digest.hexdigest()
