"""Read a GGUF file into float32 tensors and tokenizer fields.

Guarantees: every tensor comes back under this engine's own name, dequantised to float32, with the
row order of the original checkpoint (llama files permute query and key rows for interleaved
rotation; that is undone here, once). A file that does not hold exactly the tensors of its config
is a `ModelError`. Never knows about caches, digests or where files live.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from engine.errors import ModelError
from engine.model.checkpoint import Checkpoint, Slot, check_tensors
from engine.model.config import ModelConfig, layer_shapes, layer_tensor_name
from engine.model.gguf_config import config_from_gguf
from engine.model.vocabulary import merges_of

_LAYER_TENSORS = {
    "attention_norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "attention_output": "attn_output.weight",
    "attention_post_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "mlp_post_norm": "post_ffw_norm.weight",
    "router": "ffn_gate_inp.weight",
}
_EXPERT_TENSORS = {
    "gate": "ffn_gate_exps.weight",
    "up": "ffn_up_exps.weight",
    "down": "ffn_down_exps.weight",
}
_HEAD = "output.weight"
_ROPE_FACTORS = "rope_freqs.weight"
_TOKENIZER_PREFIX = "tokenizer."
_MERGES = "tokenizer.ggml.merges"
_PERMUTED_ARCHITECTURES = ("llama",)


def read_gguf(path: Path) -> Checkpoint:
    """Decode one GGUF file completely.

    Args:
        path: the file.

    Raises:
        ModelError: if it is not GGUF, is cut short, or holds other tensors than its config needs.
    """
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError) as error:
        # gguf reports a cut header as an index or reshape error, and a key written twice as a key
        raise ModelError(f"{path} is not a complete GGUF file: {error}") from error
    if reader.byte_order != "I":
        raise ModelError(f"{path} is in the other byte order; convert it on a machine like this")
    try:
        return _checkpoint(str(path), reader)
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        # what the file says of itself is not of the form that its keys promise
        raise ModelError(f"{path}: its metadata cannot be: {error!r}") from error
    except NotImplementedError as error:
        raise ModelError(f"{path}: a tensor's type cannot be read: {error}") from error


def _checkpoint(name: str, reader: gguf.GGUFReader) -> Checkpoint:
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    factors = tuple(by_name[_ROPE_FACTORS].data.tolist()) if _ROPE_FACTORS in by_name else ()
    config = config_from_gguf(metadata, tied_head=_HEAD not in by_name, rope_factors=factors)
    slots = _slots(config)
    # GGUF writes sizes from the innermost out
    found = {name: tuple(tensor.shape.tolist()[::-1]) for name, tensor in by_name.items()}
    check_tensors(name, found, slots, config, ignored=[_ROPE_FACTORS])
    fields = {key: value for key, value in metadata.items() if key.startswith(_TOKENIZER_PREFIX)}
    if fields.get("tokenizer.ggml.model") == "llama" and _MERGES not in fields:
        # worked out once, for the cache: a large vocabulary takes seconds
        fields[_MERGES] = merges_of(
            fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
        )
    tensors = {slot.name: _dequantise(by_name[name], config) for name, slot in slots.items()}
    return Checkpoint(config, tensors, fields)


def _slots(config: ModelConfig) -> dict[str, Slot]:
    """Map every GGUF tensor name the config needs to this engine's."""
    slots = {"token_embd.weight": Slot("embedding"), "output_norm.weight": Slot("final_norm")}
    if not config.tied_head:
        slots[_HEAD] = Slot("head")
    names = _LAYER_TENSORS | (_EXPERT_TENSORS if config.family.has_experts else {})
    for layer_idx in range(config.num_layers):
        for part in layer_shapes(config):
            slots[f"blk.{layer_idx}.{names[part]}"] = Slot(layer_tensor_name(layer_idx, part))
    return slots


def _dequantise(tensor: gguf.gguf_reader.ReaderTensor, config: ModelConfig) -> np.ndarray:
    """Return one tensor as contiguous float32 in checkpoint row order."""
    weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if config.architecture in _PERMUTED_ARCHITECTURES:
        if tensor.name.endswith("attn_q.weight"):
            weight = _undo_rotary_permutation(weight, config.num_heads)
        if tensor.name.endswith("attn_k.weight"):
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
