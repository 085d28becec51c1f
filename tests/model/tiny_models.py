"""Small random checkpoints of every family, as transformers saves them and as llama.cpp names them.

The GGUF writer here knows nothing of the engine's tables: names come from the gguf package's own
map for each architecture, and the conventions (permuted llama rows, norms plus one, stacked
experts, rotary factors) are written out from llama.cpp's converter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

VOCAB = 320
WINDOW = 24
CONTEXT = 512
_SHARED = {
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One tiny model: its architecture in GGUF and the config that transformers builds."""

    architecture: str
    make_config: Callable[[], Any]


def _dense(kind: str, **settings: Any) -> Callable[[], Any]:
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 72,  # no multiple of a vector's width
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return lambda: getattr(transformers, kind)(**{**_SHARED, **sizes, **settings})


def _gemma3(**settings: Any) -> Callable[[], Any]:
    sizes = {
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 16,
    }
    return lambda: transformers.Gemma3TextConfig(**{**_SHARED, **sizes, **settings})


CASES = {
    "llama": Case("llama", _dense("LlamaConfig")),
    "llama-tied": Case("llama", _dense("LlamaConfig", tie_word_embeddings=True)),
    "llama-llama3": Case("llama", _dense("LlamaConfig", rope_parameters=_LLAMA3)),
    "llama-linear": Case(
        "llama",
        _dense(
            "LlamaConfig",
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        ),
    ),
    "qwen2": Case("qwen2", _dense("Qwen2Config")),
    "qwen2-tied": Case("qwen2", _dense("Qwen2Config", tie_word_embeddings=True)),
    "qwen2-yarn": Case("qwen2", _dense("Qwen2Config", rope_parameters=_YARN)),
    "qwen2-window": Case(
        "qwen2",
        _dense("Qwen2Config", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    ),
    "qwen3": Case("qwen3", _dense("Qwen3Config", head_dim=20)),
    "qwen3-tied": Case("qwen3", _dense("Qwen3Config", head_dim=32, tie_word_embeddings=True)),
    "gemma3": Case("gemma3", _gemma3()),
    "gemma3-scale": Case("gemma3", _gemma3(query_pre_attn_scalar=40, sliding_window=7)),
    "gemma3-linear": Case(
        "gemma3",
        _gemma3(
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
    ),
    "qwen3moe": Case("qwen3moe", _dense("Qwen3MoeConfig", head_dim=16, norm_topk_prob=True,
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)),
    "qwen3moe-raw": Case("qwen3moe", _dense("Qwen3MoeConfig", head_dim=16, norm_topk_prob=False,
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40)),
}  # fmt: skip
# sizes that the 4-bit kernel multiplies by; where it cannot, a matrix stays float32
_INT4 = {"hidden_size": 64, "intermediate_size": 96}
INT4_CASES = {
    "int4-llama": Case("llama", _dense("LlamaConfig", **_INT4)),
    "int4-part": Case("qwen2", _dense("Qwen2Config", hidden_size=64)),
    "int4-gemma3": Case("gemma3", _gemma3(**_INT4)),
    "int4-qwen3moe": Case("qwen3moe", _dense("Qwen3MoeConfig", head_dim=16, hidden_size=64,
        norm_topk_prob=True, num_experts=16, num_experts_per_tok=2, moe_intermediate_size=32)),
}  # fmt: skip
# a GGUF always renormalises experts, knows Gemma's windows only, and rounds other scales
NOT_GGUF = ("qwen3moe-raw", "qwen2-window", "gemma3-scale")
GGUF_CASES = [name for name in CASES if name not in NOT_GGUF]


@torch.no_grad()
def make_peer(case: Case, seed: int = 0) -> Any:
    """Build the transformers model with weights that make logits of order one."""
    peer = transformers.AutoModelForCausalLM.from_config(case.make_config(), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in peer.named_parameters():
        draw = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            # Gemma stores what is added to one
            weight.copy_(draw * 0.2 + (0.0 if case.architecture == "gemma3" else 1.0))
        elif weight.dim() == 1:
            weight.copy_(draw * 0.3)
        else:
            weight.copy_(draw / math.sqrt(weight.shape[-1]))
    return peer.eval()


def save_folder(peer: Any, folder: Path, **settings: Any) -> Path:
    """Save as the library does; `max_shard_size` splits it."""
    peer.save_pretrained(folder, **settings)
    return folder


def write_gguf(peer: Any, case: Case, path: Path) -> Path:
    """Write the same weights as llama.cpp's converter would, in float32."""
    config = peer.config
    writer = gguf.GGUFWriter(path, case.architecture)
    _write_metadata(writer, config, case.architecture)
    tensors = {name: weight.float().numpy() for name, weight in peer.state_dict().items()}
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[case.architecture.upper()], config.num_hidden_layers
    )
    for name, weight in _converted(tensors, config, case.architecture).items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(gguf_name or f"{name}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"token{idx}" for idx in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def _converted(
    tensors: dict[str, np.ndarray], config: Any, architecture: str
) -> dict[str, np.ndarray]:
    """Apply what the converter does to a checkpoint's tensors."""
    converted: dict[str, np.ndarray] = {}
    for name, weight in tensors.items():
        if architecture == "llama" and name.endswith("q_proj.weight"):
            weight = _permuted(weight, config.num_attention_heads)
        if architecture == "llama" and name.endswith("k_proj.weight"):
            weight = _permuted(weight, config.num_key_value_heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            weight = weight + np.float32(1.0)
        if name.endswith("experts.gate_up_proj"):  # the library keeps experts stacked in memory
            gate, up = np.split(weight, 2, axis=1)
            converted[name.replace("gate_up_proj", "gate_proj.weight")] = gate
            converted[name.replace("gate_up_proj", "up_proj.weight")] = up
            continue
        if name.endswith("experts.down_proj"):
            name += ".weight"
        converted[name] = weight
    if config.rope_parameters.get("rope_type") == "llama3":
        converted["rope_freqs.weight"] = _llama3_factors(config)
    return converted


def _permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _llama3_factors(config: Any) -> np.ndarray:
    rope, head_dim = config.rope_parameters, config.head_dim
    old_len = rope["original_max_position_embeddings"]
    factors = []
    for exponent in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (exponent / head_dim)
        if wavelength < old_len / rope["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > old_len / rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            smooth = (old_len / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)
