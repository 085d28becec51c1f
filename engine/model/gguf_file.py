"""Read a GGUF file into float32 tensors and tokenizer fields.

Guarantees: every tensor comes back under this engine's own name, dequantised to float32, with the
row order of the original checkpoint (llama files permute query and key rows for interleaved
rotation; that is undone here, once). A file that does not hold exactly the tensors of its config
is a `ModelError`. Never knows about caches, digests or where files live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from engine.errors import ModelError
from engine.model.config import ModelConfig, config_from_gguf

EMBEDDING = "embedding"
FINAL_NORM = "final_norm"
HEAD = "head"

_LAYER_TENSORS = {
    "attn_norm": "attention_norm",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "attention_output",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
_OUTER_TENSORS = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": FINAL_NORM,
    "output.weight": HEAD,
}
_TOKENIZER_PREFIX = "tokenizer."


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A decoded GGUF file.

    Attributes:
        config: the decoder's shape.
        tensors: name to float32 array; matrices are [out, in].
        tokenizer_fields: every `tokenizer.*` key of the file with its Python value.
    """

    config: ModelConfig
    tensors: dict[str, np.ndarray]
    tokenizer_fields: dict[str, Any]


def layer_tensor_name(layer_idx: int, part: str) -> str:
    """Name one tensor of one layer, such as `layers.3.query`."""
    return f"layers.{layer_idx}.{part}"


def read_gguf(path: Path) -> GgufModel:
    """Decode one GGUF file completely.

    Args:
        path: the file.

    Raises:
        ModelError: if it is not GGUF, is cut short, or holds other tensors than its config needs.
    """
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        # gguf reports a cut header as an index or reshape error
        raise ModelError(f"{path} is not a complete GGUF file: {error}") from error
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    config = config_from_gguf(metadata, tied_head="output.weight" not in by_name)
    tensors = {
        name: _dequantise(by_name, gguf_name, config)
        for gguf_name, name in _tensor_names(config).items()
    }
    unused = sorted(set(by_name) - set(_tensor_names(config)) - {"rope_freqs.weight"})
    if unused:
        raise ModelError(f"{path} holds tensors this engine would ignore: {', '.join(unused[:5])}")
    fields = {key: value for key, value in metadata.items() if key.startswith(_TOKENIZER_PREFIX)}
    return GgufModel(config, tensors, fields)


def _tensor_names(config: ModelConfig) -> dict[str, str]:
    """Map every GGUF tensor name the config needs to this engine's name."""
    names = dict(_OUTER_TENSORS)
    if config.tied_head:
        del names["output.weight"]
    for layer_idx in range(config.num_layers):
        for gguf_part, part in _LAYER_TENSORS.items():
            names[f"blk.{layer_idx}.{gguf_part}.weight"] = layer_tensor_name(layer_idx, part)
    return names


def _dequantise(
    by_name: Mapping[str, gguf.gguf_reader.ReaderTensor], gguf_name: str, config: ModelConfig
) -> np.ndarray:
    """Return one tensor as contiguous float32 in checkpoint row order."""
    if gguf_name not in by_name:
        raise ModelError(f"GGUF file lacks tensor {gguf_name}")
    tensor = by_name[gguf_name]
    weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if gguf_name.endswith("attn_q.weight"):
        weight = _undo_rotary_permutation(weight, config.num_heads)
    if gguf_name.endswith("attn_k.weight"):
        weight = _undo_rotary_permutation(weight, config.num_kv_heads)
    return np.ascontiguousarray(weight)


def _undo_rotary_permutation(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Restore half-split rotary rows from the interleaved order of llama GGUF files.

    Shapes:
        weight: [num_heads * D, H] -> [num_heads * D, H]

    Source:
        llama.cpp's converter stores row (pair i, half h) of a head at 2 i + h.
    """
    rows, columns = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)
