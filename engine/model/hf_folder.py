"""Read a Hugging Face folder (config.json, safetensors, tokenizer) as one model.

Guarantees: the same `Checkpoint` as the GGUF of the same weights, bit for bit; a missing shard, a
tensor of another shape, or an index that does not match its files is refused by name. Never knows
about caches or kernels, and never runs code that a folder brings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.model.checkpoint import Checkpoint, Slot, check_tensors
from engine.model.config import (
    END_OF_GENERATION,
    ModelConfig,
    layer_shapes,
    layer_tensor_name,
    tensor_shapes,
)
from engine.model.hf_config import config_from_hf

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
_GENERATION_CONFIG = "generation_config.json"
_OPTIONAL = (_GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE)

_EMBEDDING = "model.embed_tokens.weight"
_FINAL_NORM = "model.norm.weight"
_HEAD = "lm_head.weight"
_ATTENTION = "self_attn"
_LAYER_TENSORS = {
    "attention_norm": "input_layernorm.weight",
    "query": f"{_ATTENTION}.q_proj.weight",
    "key": f"{_ATTENTION}.k_proj.weight",
    "value": f"{_ATTENTION}.v_proj.weight",
    "query_bias": f"{_ATTENTION}.q_proj.bias",
    "key_bias": f"{_ATTENTION}.k_proj.bias",
    "value_bias": f"{_ATTENTION}.v_proj.bias",
    "query_norm": f"{_ATTENTION}.q_norm.weight",
    "key_norm": f"{_ATTENTION}.k_norm.weight",
    "attention_output": f"{_ATTENTION}.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
}
# with norms after the blocks too, the name of the one before the feed-forward block moves
_POST_NORM_TENSORS = {
    "attention_post_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}
_EXPERT_PARTS = ("gate", "up", "down")


def folder_files(folder: Path) -> list[Path]:
    """List every file of a folder that decides what the model computes or says.

    Raises:
        ModelError: config or weights are missing, or the index names a file that is.
    """
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder} has no {CONFIG}; give a GGUF file or a Hugging Face folder")
    needed = [CONFIG, *_shard_names(folder)]
    if (folder / INDEX).is_file():
        needed.append(INDEX)
    optional = [name for name in _OPTIONAL if (folder / name).is_file()]
    return [folder / name for name in sorted([*needed, *optional])]


def read_folder(folder: Path) -> Checkpoint:
    """Read one folder completely.

    Raises:
        ModelError: if its files contradict each other or the model is of an unsupported kind.
    """
    try:
        return _checkpoint(folder)
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        # what a file says is not of the form that its name promises
        raise ModelError(f"{folder}: its files cannot be: {error!r}") from error


def _checkpoint(folder: Path) -> Checkpoint:
    shards = {name: folder / name for name in _shard_names(folder)}
    place_of = _check_index(folder, {name: _shapes(path) for name, path in shards.items()})
    found = {name: shape for name, (_, shape) in place_of.items()}
    fields = _read_json(folder / CONFIG)
    config = config_from_hf(fields, _eos_ids(folder, fields), has_head=_HEAD in found)
    slots = _slots(config)
    check_tensors(str(folder), found, slots, config, ignored=_ignored(config))
    tensors = _empty_experts(config)
    for shard_name, path in shards.items():
        with safe_open(path, framework="pt") as shard:
            for name, slot in slots.items():
                if place_of[name][0] == shard_name:
                    _store(tensors, slot, shard.get_tensor(name), config)
    return Checkpoint(config, tensors, _tokenizer_fields(folder))


def _shard_names(folder: Path) -> list[str]:
    """Name the weight files, all of them present."""
    if (folder / INDEX).is_file():
        weight_map = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{folder / INDEX} has no weight_map; get the folder again")
        names = sorted(set(weight_map.values()))
    else:
        names = [WEIGHTS]
    if odd := [name for name in names if Path(name).name != name]:
        raise ModelError(
            f"{folder / INDEX} names {odd[0]!r}; weight files lie in the folder itself"
        )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        wanted_by = f"{INDEX} names" if (folder / INDEX).is_file() else "without an index it is"
        raise ModelError(
            f"{folder} lacks {', '.join(missing)} ({wanted_by} {len(names)} weight files); get the "
            "missing files; only safetensors are read"
        )
    return names


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of a shard without its tensors."""
    try:
        with safe_open(path, framework="pt") as shard:
            return {name: tuple(shard.get_slice(name).get_shape()) for name in shard.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ModelError(f"{path} is not a complete safetensors file: {error}") from error


def _check_index(
    folder: Path, shapes_of: dict[str, dict[str, tuple[int, ...]]]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return shard and shape of every tensor, which must be where the index says."""
    place_of = {
        name: (shard_name, shape)
        for shard_name, shapes in shapes_of.items()
        for name, shape in shapes.items()
    }
    if (folder / INDEX).is_file():
        for name, shard_name in _read_json(folder / INDEX)["weight_map"].items():
            if name not in shapes_of[shard_name]:
                raise ModelError(f"{folder / INDEX} says {shard_name} holds {name}; it does not")
            place_of[name] = (shard_name, shapes_of[shard_name][name])
    return place_of


def _slots(config: ModelConfig) -> dict[str, Slot]:
    """Map every tensor name of the folder to this engine's."""
    names = _LAYER_TENSORS | (_POST_NORM_TENSORS if config.family.post_norms else {})
    slots = {_EMBEDDING: Slot("embedding"), _FINAL_NORM: Slot("final_norm")}
    if not config.tied_head:
        slots[_HEAD] = Slot("head")
    for layer_idx in range(config.num_layers):
        for part in layer_shapes(config):
            ours = layer_tensor_name(layer_idx, part)
            if config.family.has_experts and part in _EXPERT_PARTS:
                for expert_idx in range(config.num_experts):
                    theirs = f"model.layers.{layer_idx}.mlp.experts.{expert_idx}.{part}_proj.weight"
                    slots[theirs] = Slot(ours, expert_idx)
            else:
                slots[f"model.layers.{layer_idx}.{names[part]}"] = Slot(ours)
    return slots


def _ignored(config: ModelConfig) -> Iterator[str]:
    """Name what some folders hold beside the weights: a second copy of the head, frequencies."""
    if config.tied_head:
        yield _HEAD
    for layer_idx in range(config.num_layers):
        yield f"model.layers.{layer_idx}.{_ATTENTION}.rotary_emb.inv_freq"


def _empty_experts(config: ModelConfig) -> dict[str, np.ndarray]:
    """Make room for the tensors that come expert by expert."""
    parts = _EXPERT_PARTS if config.family.has_experts else ()
    names = [layer_tensor_name(idx, part) for idx in range(config.num_layers) for part in parts]
    shapes = tensor_shapes(config)
    return {name: np.empty(shapes[name], dtype=np.float32) for name in names}


def _store(
    tensors: dict[str, np.ndarray], slot: Slot, weight: torch.Tensor, config: ModelConfig
) -> None:
    values = weight.to(torch.float32)
    if config.family.unit_offset_norms and slot.name.endswith("norm"):
        values = values + 1.0
    if slot.expert_idx is None:
        tensors[slot.name] = np.ascontiguousarray(values.numpy())
    else:
        tensors[slot.name][slot.expert_idx] = values.numpy()


def _eos_ids(folder: Path, fields: dict[str, Any]) -> set[int]:
    """Collect declared ids and every known end-of-generation token, as for a GGUF."""
    eos_ids: set[int | None] = set()
    generation = folder / _GENERATION_CONFIG
    for source in (fields, _read_json(generation) if generation.is_file() else {}):
        declared = source.get("eos_token_id")
        eos_ids.update(declared if isinstance(declared, list) else [declared])
    if (folder / TOKENIZER).is_file():
        for token in _read_json(folder / TOKENIZER).get("added_tokens") or []:
            if token["content"] in END_OF_GENERATION:
                eos_ids.add(token["id"])
    return {int(idx) for idx in eos_ids if idx is not None}


def _tokenizer_fields(folder: Path) -> dict[str, Any]:
    """Keep what the tokenizer needs; a folder without one can still be computed with ids."""
    if not (folder / TOKENIZER).is_file():
        return {}
    path = folder / TOKENIZER_CONFIG
    settings = _read_json(path) if path.is_file() else {}
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if (folder / CHAT_TEMPLATE).is_file():
        template = (folder / CHAT_TEMPLATE).read_text(encoding="utf-8")
    return {
        TOKENIZER: (folder / TOKENIZER).read_text(encoding="utf-8"),
        "chat_template": template,
        "bos_token": _token_text(settings.get("bos_token")),
        "eos_token": _token_text(settings.get("eos_token")),
    }


def _token_text(entry: str | dict[str, Any] | None) -> str | None:
    return entry["content"] if isinstance(entry, dict) else entry


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds {type(content).__name__}, an object is wanted")
    return content
