"""A `ModelConfig` from a Hugging Face config.json.

Guarantees: fields of both layouts in use (rope fields at the top, or under `rope_parameters`) mean
the same; a model type or variant whose arithmetic would silently be wrong is refused by name.
Never knows about tensors' contents or text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.errors import ModelError
from engine.model.config import FAMILIES, Family, LayerKind, ModelConfig, Rope
from engine.model.rotary import scaled_rope

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_KINDS: dict[str, LayerKind] = {"full_attention": "full", "sliding_attention": "sliding"}
_GEMMA3_SLIDING_PER_FULL = 6
_GEMMA3_THETA, _GEMMA3_SLIDING_THETA = 1_000_000.0, 10_000.0
_THETA = 10_000.0
# variants of supported families that this engine does not compute
_REFUSED = (
    "attention_bias",
    "mlp_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "mlp_only_layers",
    "quantization_config",
)


def config_from_hf(
    fields: Mapping[str, Any], eos_ids: Iterable[int], has_head: bool
) -> ModelConfig:
    """Build the config from a parsed config.json.

    Args:
        fields: its content.
        eos_ids: ids that end generation, collected from the folder's files.
        has_head: whether the folder holds an output head; decides where the config does not say.

    Raises:
        ModelError: for an unsupported model type or variant, a missing field or shapes that cannot
            be.
    """
    architecture, family = _family(fields)
    _refuse_unhandled(fields, family)
    try:
        num_heads, hidden_size = int(fields["num_attention_heads"]), int(fields["hidden_size"])
        head_dim = int(fields.get("head_dim") or hidden_size // max(num_heads, 1))
        kinds = _layer_kinds(fields, architecture)
        rope, sliding_rope = _ropes(fields, architecture, head_dim)
        width = "moe_intermediate_size" if family.has_experts else "intermediate_size"
        num_experts = fields.get("num_local_experts") or fields.get("num_experts") or 0
        return ModelConfig(
            architecture=architecture,
            num_layers=int(fields["num_hidden_layers"]),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=int(fields.get("num_key_value_heads") or num_heads),
            head_dim=head_dim,
            intermediate_size=int(fields[width]),
            vocab_size=int(fields["vocab_size"]),
            rms_eps=float(fields["rms_norm_eps"]),
            rope=rope,
            sliding_rope=sliding_rope,
            attention_scale=float(fields.get("query_pre_attn_scalar") or head_dim) ** -0.5,
            context_len=int(fields["max_position_embeddings"]),
            bos_id=fields.get("bos_token_id"),
            eos_ids=tuple(sorted(set(eos_ids))),
            tied_head=bool(fields.get("tie_word_embeddings", not has_head)),
            sliding_window=int(fields["sliding_window"]) if "sliding" in kinds else None,
            layer_kinds=kinds,
            num_experts=int(num_experts) if family.has_experts else 0,
            experts_per_token=int(fields["num_experts_per_tok"]) if family.has_experts else 0,
            renormalise_experts=family.has_experts and bool(fields.get("norm_topk_prob")),
        )
    except KeyError as error:
        raise ModelError(f"config.json lacks {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"config.json holds a field of the wrong type: {error}") from error


def _family(fields: Mapping[str, Any]) -> tuple[str, Family]:
    model_type = fields.get("model_type")
    for architecture, family in FAMILIES.items():
        if family.folder_name == model_type:
            return architecture, family
    supported = ", ".join(family.folder_name for family in FAMILIES.values())
    raise ModelError(f"unsupported model_type {model_type!r}; supported: {supported}")


def _refuse_unhandled(fields: Mapping[str, Any], family: Family) -> None:
    """Refuse variants of a supported family whose arithmetic would silently be wrong."""
    for name in _REFUSED:
        if fields.get(name):
            raise ModelError(f"config.json sets {name}: {fields[name]!r}; this is not supported")
    if fields.get("decoder_sparse_step", 1) != 1:
        raise ModelError("config.json sets decoder_sparse_step; only 1 is supported")
    activation = fields.get("hidden_activation") or fields.get("hidden_act") or "silu"
    if _ACTIVATIONS.get(activation) != family.activation:
        raise ModelError(
            f"config.json sets activation {activation!r}; {family.folder_name} is supported with "
            f"{next(name for name, ours in _ACTIVATIONS.items() if ours == family.activation)}"
        )


def _layer_kinds(fields: Mapping[str, Any], architecture: str) -> tuple[LayerKind, ...]:
    """Tell sliding layers from full ones: by list, else by each family's older rule."""
    num_layers = int(fields["num_hidden_layers"])
    listed = fields.get("layer_types")
    if listed is not None:
        unknown = sorted(set(listed) - set(_KINDS))
        if unknown:
            allowed = ", ".join(_KINDS)
            raise ModelError(f"config.json lists layer type {unknown[0]!r}; allowed: {allowed}")
        return tuple(_KINDS[kind] for kind in listed)
    if architecture == "gemma3":
        period = int(fields.get("sliding_window_pattern") or _GEMMA3_SLIDING_PER_FULL)
        first_sliding, is_sliding = 0, fields.get("sliding_window") is not None
    else:
        period = num_layers + 1
        is_sliding = bool(fields.get("use_sliding_window")) and bool(fields.get("sliding_window"))
        # the mixture's windows, if any, are on every layer
        first_sliding = 0 if architecture == "qwen3moe" else int(fields.get("max_window_layers", 0))
    return tuple(
        "sliding" if is_sliding and idx >= first_sliding and (idx + 1) % period else "full"
        for idx in range(num_layers)
    )


def _ropes(fields: Mapping[str, Any], architecture: str, head_dim: int) -> tuple[Rope, Rope]:
    """Return the rotation of full layers and of sliding layers."""
    nested = fields.get("rope_parameters") or {}
    if set(nested) & set(_KINDS):
        full = _rope(nested["full_attention"], head_dim)
        return full, _rope(nested["sliding_attention"], head_dim)
    default_theta = _GEMMA3_THETA if architecture == "gemma3" else _THETA
    terms = {"rope_theta": fields.get("rope_theta", default_theta)}
    terms |= fields.get("rope_scaling") or {}
    full = _rope(terms | nested, head_dim)
    if architecture == "gemma3":
        return full, Rope(float(fields.get("rope_local_base_freq", _GEMMA3_SLIDING_THETA)))
    return full, full


def _rope(terms: Mapping[str, Any], head_dim: int) -> Rope:
    kind = terms.get("rope_type") or terms.get("type") or "default"
    return scaled_rope(str(kind), float(terms["rope_theta"]), head_dim, terms)
