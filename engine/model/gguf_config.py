"""A `ModelConfig` from GGUF metadata.

Guarantees: an architecture or variant whose arithmetic would silently be wrong is refused by name.
Never knows about tensors' contents or text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError
from engine.model.config import END_OF_GENERATION, LayerKind, ModelConfig, Rope, family_of
from engine.model.rotary import scaled_rope

# Gemma 3 files name the window but not the layers it holds for, nor how those are rotated: both are
# constants of the family, as is the scale of its one size with D other than H / N.
_GEMMA3_SLIDING_PER_FULL = 6
_GEMMA3_SLIDING_THETA = 10000.0
_GEMMA3_27B_LAYERS = 62

# What this engine computes without; a file that says otherwise is refused, not read as if it did.
_YARN_NEUTRAL = {"rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0}


def config_from_gguf(
    metadata: Mapping[str, Any], tied_head: bool, rope_factors: tuple[float, ...] = ()
) -> ModelConfig:
    """Build the config from GGUF key-value pairs.

    Args:
        metadata: GGUF keys and their Python values.
        tied_head: True if the file holds no `output.weight`.
        rope_factors: content of `rope_freqs.weight`, empty if the file has none.

    Raises:
        ModelError: for an unsupported architecture, a missing key or shapes that cannot be.
    """
    architecture = metadata.get("general.architecture")
    family = family_of(architecture)
    keys = _Keys(metadata, f"{architecture}.")
    _refuse_unhandled(keys, family.has_experts)
    num_layers, num_heads = int(keys["block_count"]), int(keys["attention.head_count"])
    hidden_size = int(keys["embedding_length"])
    head_dim = int(keys.get("attention.key_length", hidden_size // max(num_heads, 1)))
    kinds = _layer_kinds(keys, num_layers, str(architecture))
    rope = _rope(keys, head_dim, rope_factors)
    is_gemma = architecture == "gemma3"
    width = "expert_feed_forward_length" if family.has_experts else "feed_forward_length"
    sliding_theta = float(keys.get("rope.freq_base_swa", _GEMMA3_SLIDING_THETA))
    scale = _attention_scale(keys, num_layers, hidden_size // max(num_heads, 1), head_dim)
    return ModelConfig(
        architecture=str(architecture),
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=int(keys.get("attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        intermediate_size=int(keys[width]),
        vocab_size=len(keys.tokens),
        rms_eps=_decimal(keys["attention.layer_norm_rms_epsilon"]),
        rope=rope,
        sliding_rope=Rope(_decimal(sliding_theta)) if is_gemma else rope,
        attention_scale=scale,
        context_len=int(keys["context_length"]),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=_eos_ids(metadata, keys.tokens),
        tied_head=tied_head,
        sliding_window=int(keys["attention.sliding_window"]) if "sliding" in kinds else None,
        layer_kinds=kinds,
        num_experts=int(keys.get("expert_count", 0)),
        experts_per_token=int(keys.get("expert_used_count", 0)),
        renormalise_experts=bool(keys.get("expert_weights_norm", family.has_experts)),
    )


class _Keys:
    """One architecture's keys; a missing one is an error that names it in full."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def __getitem__(self, key: str) -> Any:
        value = self.get(key, None)
        if value is None:
            raise ModelError(f"GGUF metadata lacks {self._prefix}{key}")
        return value

    def get(self, key: str, default: Any) -> Any:
        return self._metadata.get(f"{self._prefix}{key}", default)

    @property
    def tokens(self) -> list[str]:
        if "tokenizer.ggml.tokens" not in self._metadata:
            raise ModelError("GGUF metadata lacks tokenizer.ggml.tokens")
        return list(self._metadata["tokenizer.ggml.tokens"])


def _refuse_unhandled(keys: _Keys, has_experts: bool) -> None:
    """Refuse variants of a supported family whose arithmetic would silently be wrong."""
    if keys.get("expert_count", 0) and not has_experts:
        raise ModelError("a dense family with experts is not supported; supported: qwen3moe")
    for key in ("expert_shared_count", "attn_logit_softcapping", "final_logit_softcapping"):
        if keys.get(key, 0):
            raise ModelError(f"GGUF key {key} is not supported by this engine")
    key_dim = keys.get("attention.key_length", None)
    if keys.get("attention.value_length", key_dim) != key_dim:
        raise ModelError("keys and values of different size are not supported")


def _layer_kinds(keys: _Keys, num_layers: int, architecture: str) -> tuple[LayerKind, ...]:
    """Tell sliding layers from full ones.

    Source:
        Every sixth layer of Gemma 3 is full (its report, section 2); llama.cpp writes either the
        period or one flag a layer where a model differs.
    """
    if not keys.get("attention.sliding_window", 0):
        full: LayerKind = "full"
        return (full,) * num_layers
    if architecture != "gemma3":
        raise ModelError(
            f"{architecture}.attention.sliding_window is set; windows are supported in GGUF files "
            "of gemma3 only"
        )
    pattern = keys.get("attention.sliding_window_pattern", _GEMMA3_SLIDING_PER_FULL)
    if isinstance(pattern, list):
        return tuple("sliding" if is_sliding else "full" for is_sliding in pattern)
    return tuple("full" if idx % pattern == pattern - 1 else "sliding" for idx in range(num_layers))


def _rope(keys: _Keys, head_dim: int, rope_factors: tuple[float, ...]) -> Rope:
    theta = _decimal(keys.get("rope.freq_base", 10000.0))
    for key, neutral in _YARN_NEUTRAL.items():
        if keys.get(key, neutral) != neutral:
            raise ModelError(f"GGUF key {key} is not supported by this engine")
    if rope_factors:
        return Rope(theta, rope_factors)
    terms = {
        "factor": keys.get("rope.scaling.factor", keys.get("rope.scale_linear", None)),
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length", None),
        "attention_factor": keys.get("rope.scaling.attn_factor", None),
        "beta_fast": keys.get("rope.scaling.yarn_beta_fast", None),
        "beta_slow": keys.get("rope.scaling.yarn_beta_slow", None),
    }
    given = {name: _decimal(value) for name, value in terms.items() if value is not None}
    # llama.cpp takes a factor without a type, and the key of 2023's files, as linear
    kind = keys.get("rope.scaling.type", "linear" if "factor" in given else "none")
    return scaled_rope(kind, theta, head_dim, given)


def _attention_scale(keys: _Keys, num_layers: int, query_dim: int, head_dim: int) -> float:
    """Return the factor of scores; the one Gemma 3 that differs is known by its layer count."""
    if scale := keys.get("attention.scale", 0.0):
        return _decimal(scale)
    is_27b = keys["block_count"] == _GEMMA3_27B_LAYERS and keys.get("attention.sliding_window", 0)
    divisor = float(query_dim if is_27b else head_dim)
    return float(divisor**-0.5)


def _decimal(value: float) -> float:
    """Return the short decimal a float32 field was written from (1e-5, not 9.99999975e-06)."""
    return float(f"{value:.7g}")


def _eos_ids(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[int, ...]:
    """Collect the declared eos id and every known end-of-generation control token."""
    eos_ids = {idx for idx, text in enumerate(tokens) if text in END_OF_GENERATION}
    for name in ("eos", "eot", "eom"):
        declared = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if declared is not None:
            eos_ids.add(int(declared))
    return tuple(sorted(eos_ids))
