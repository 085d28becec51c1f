"""The dequantised cache: a checkpoint as one safetensors file beside its seal.

Guarantees: what is read back is what was written, or nothing: a damaged or foreign cache is
rebuilt, never used; two processes may race to build it. Never knows kernels, text or sockets.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.errors import ModelError
from engine.model.config import ModelConfig

CACHE_FORMAT = 2  # raise it when names, layout, dequantisation or what configs say changes
TOKENIZER_TENSOR = "tokenizer_json"

_METADATA_KEY = "longhaul"
_READ_BYTES = 1 << 22


def cache_dir() -> Path:
    """Return the folder of dequantised models (not created here)."""
    if chosen := os.environ.get("LONGHAUL_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "longhaul"


def cache_path_of(model_digest: str) -> Path:
    """Return where the cache of a model is or will be."""
    return cache_dir() / f"{model_digest}.f32.v{CACHE_FORMAT}.safetensors"


def model_digest_of(paths: Sequence[Path]) -> str:
    """Return the SHA-256 that names a model: its file's, or that of a list of files and theirs."""
    if len(paths) == 1:
        return _file_digest(paths[0])
    listing = "".join(f"{_file_digest(path)}  {path.name}\n" for path in paths)
    return hashlib.sha256(listing.encode()).hexdigest()


def read_cache(cache_path: Path, model_digest: str) -> ModelConfig | None:
    """Return the cached config, or None if the cache is absent, damaged or of another model."""
    if not cache_path.is_file() or not _seal_holds(cache_path):
        return None
    try:
        # safetensors checks here that the header is whole and spans the file exactly
        with safe_open(cache_path, framework="np") as cache:
            written = json.loads((cache.metadata() or {})[_METADATA_KEY])
            if written["model_digest"] != model_digest or written["format"] != CACHE_FORMAT:
                return None
            return ModelConfig.from_json(written["config"])
    except (SafetensorError, KeyError, ValueError, ModelError):
        return None  # the caller rebuilds it from the model's own files, which are the truth


def build_cache(source_path: Path, cache_path: Path, model_digest: str) -> None:
    """Dequantise a GGUF file or a folder and write cache and seal.

    Raises:
        ModelError: as its reader says.
    """
    # only this path pays for importing the readers
    from engine.model.gguf_file import read_gguf
    from engine.model.hf_folder import read_folder

    model = read_folder(source_path) if source_path.is_dir() else read_gguf(source_path)
    fields = json.dumps(model.tokenizer_fields, sort_keys=True, ensure_ascii=False).encode()
    tensors = {**model.tensors, TOKENIZER_TENSOR: np.frombuffer(fields, dtype=np.uint8)}
    # one metadata entry only: safetensors writes several in no fixed order, and the file's bytes
    # must be the same whichever of two racing processes wrote them
    written = {
        "format": CACHE_FORMAT,
        "model_digest": model_digest,
        "config": model.config.to_json(),
    }
    metadata = {_METADATA_KEY: json.dumps(written, sort_keys=True)}
    try:
        write_atomically(cache_path, lambda target: save_file(tensors, target, metadata=metadata))
    except (SafetensorError, OSError) as error:
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        raise ModelError(
            f"{cache_path.parent}: cannot hold this model's {num_bytes >> 20} MiB: {error}; make "
            "room, or name another folder with LONGHAUL_CACHE"
        ) from error
    _write_seal(cache_path, _sha256_file(cache_path))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A pid alone may be another writer's too: of another container that shares this folder.
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def seal_path_of(cache_path: Path) -> Path:
    """Return where the seal of a cache is."""
    return cache_path.with_suffix(".seal.json")


def _file_digest(path: Path) -> str:
    """Hash a model file, or recall the hash while path, size and times are unchanged."""
    stat = path.stat()
    identity = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"
    stamp_name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    stamp_path = cache_dir() / f"file-{stamp_name}.sha256"
    if stamp_path.is_file():
        recalled = stamp_path.read_text().strip()
        if len(recalled) == 64:
            return recalled
    digest = _sha256_file(path)
    write_atomically(stamp_path, lambda target: target.write_text(digest + "\n"))
    return digest


def _sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _seal_holds(cache_path: Path) -> bool:
    """Check the cache's bytes against its seal; rehash only if size or mtime moved."""
    try:
        seal = json.loads(seal_path_of(cache_path).read_text())
        expected = (seal["size_bytes"], seal["mtime_ns"], seal["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no readable seal: rebuild, as for a damaged cache
    stat = cache_path.stat()
    if (stat.st_size, stat.st_mtime_ns) == expected[:2]:
        return True
    if stat.st_size != expected[0] or _sha256_file(cache_path) != expected[2]:
        return False
    _write_seal(cache_path, expected[2])
    return True


def _write_seal(cache_path: Path, digest: str) -> None:
    stat = cache_path.stat()
    seal = {"size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": digest}
    write_atomically(
        seal_path_of(cache_path), lambda target: target.write_text(json.dumps(seal) + "\n")
    )
