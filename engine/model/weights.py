"""Find a model, dequantise it once, and map the layers a stage needs.

Guarantees: what `prepare_model` returns has been checked: a packaged model against its known
SHA-256, the float32 cache against its own. `load_layers` maps only the tensors of its own layers.
Never knows about kernels, text or sockets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from engine.errors import ModelError
from engine.model.config import ModelConfig, layer_shapes, layer_tensor_name
from engine.model.packaged import DEFAULT_MODEL, PACKAGED_MODELS, PackagedModel, packaged_path
from engine.model.weight_cache import (
    TOKENIZER_TENSOR,
    build_cache,
    cache_dir,
    cache_path_of,
    model_digest_of,
    read_cache,
    write_atomically,
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A prepared model on this machine.

    Attributes:
        source_path: the GGUF file or folder it came from.
        cache_path: its float32 safetensors cache.
        model_digest: SHA-256 of the file, or of a folder's file digests, hex.
        config: the decoder's shape.
    """

    source_path: Path
    cache_path: Path
    model_digest: str
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's matrices, each [out, in], and norms and biases, each [out], float32.

    What a family does without is None; experts' matrices are [E, out, in].
    """

    attention_norm: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attention_output: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    query_bias: torch.Tensor | None = None
    key_bias: torch.Tensor | None = None
    value_bias: torch.Tensor | None = None
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    attention_post_norm: torch.Tensor | None = None
    mlp_post_norm: torch.Tensor | None = None
    router: torch.Tensor | None = None


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


def prepare_model(path: Path | str | None = None) -> ModelFiles:
    """Return a checked model, dequantising it on the first call.

    Args:
        path: a GGUF file, a Hugging Face folder or the name of a packaged model; default is
            `$LONGHAUL_MODEL`, then the default packaged model.

    Raises:
        ModelError: if the model is missing, altered, cut short or of an unsupported kind.
    """
    source_path, packaged = _locate(path or os.environ.get("LONGHAUL_MODEL") or DEFAULT_MODEL)
    model_digest = model_digest_of(_files_of(source_path))
    if packaged is not None and model_digest != packaged.digest:
        raise ModelError(
            f"{source_path} has SHA-256 {model_digest}, expected {packaged.digest}: the file is "
            f"altered or cut short; remove it and run: {packaged.install}"
        )
    cache_path = cache_path_of(model_digest)
    config = read_cache(cache_path, model_digest)
    if config is None:
        build_cache(source_path, cache_path, model_digest)
        config = read_cache(cache_path, model_digest)
    if config is None:
        raise ModelError(f"{cache_path} does not read back as written; check that disk")
    return ModelFiles(source_path, cache_path, model_digest, config)


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
    parts = tuple(layer_shapes(files.config))
    with safe_open(files.cache_path, framework="pt") as cache:
        head_name = "embedding" if files.config.tied_head else "head"
        return StageWeights(
            layers=tuple(
                _load_layer(cache.get_tensor, layer_idx, parts)
                for layer_idx in range(layer_start, layer_end)
            ),
            embedding=cache.get_tensor("embedding") if with_embed else None,
            final_norm=cache.get_tensor("final_norm") if with_head else None,
            head=cache.get_tensor(head_name) if with_head else None,
        )


def load_tokenizer_json(files: ModelFiles) -> str:
    """Return the model's tokenizer fields as the JSON text the cache keeps."""
    with safe_open(files.cache_path, framework="np") as cache:
        text: str = cache.get_tensor(TOKENIZER_TENSOR).tobytes().decode()
    return text


def _load_layer(
    get_tensor: Callable[[str], torch.Tensor], layer_idx: int, parts: tuple[str, ...]
) -> LayerWeights:
    return LayerWeights(**{part: get_tensor(layer_tensor_name(layer_idx, part)) for part in parts})


def _locate(asked: Path | str) -> tuple[Path, PackagedModel | None]:
    """Find a model by path or name; a file named as a packaged one must be that one."""
    path = Path(asked)
    if not path.exists() and str(asked) in PACKAGED_MODELS:
        model = PACKAGED_MODELS[str(asked)]
        return packaged_path(model, cache_dir(), write_atomically), model
    if not path.exists():
        names = ", ".join(PACKAGED_MODELS)
        raise ModelError(
            f"no model file at {path}; give a GGUF file, a Hugging Face folder or one of: {names}"
        )
    named = [model for model in PACKAGED_MODELS.values() if path.name == model.file_name]
    return path, named[0] if named else None


def _files_of(source_path: Path) -> list[Path]:
    if source_path.is_dir():
        from engine.model.hf_folder import folder_files

        return folder_files(source_path)
    return [source_path]
