"""One decoder layer of any family: attention, then a feed-forward block.

Guarantees: one code path; what a family does without is absent from its packed layer. A position's
output has the same bits whatever positions share the call. Never knows stages, jobs or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.attention_kernel import Attend
from engine.model.config import LayerKind, ModelConfig
from engine.model.elementwise import ACTIVATIONS, rms_norm, rotate
from engine.model.kv_cache import KVCache
from engine.model.linear import Kernel, PackedWeight, linear, linear_add, pack
from engine.model.moe import PackedExperts, mix_experts, pack_experts
from engine.model.rotary import interleave
from engine.model.span import KeyView
from engine.model.weights import LayerWeights


@dataclass(frozen=True, slots=True)
class PackedMlp:
    """A gated feed-forward block, ready to run."""

    gate_up: PackedWeight
    down: PackedWeight


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One layer, ready to run. Maps of one input share a matrix: each call wakes the workers.

    Attributes:
        kind: full or sliding.
        attention_norm: [H].
        query_key_value: [(N + 2 G) D, H].
        query_key_value_bias: [(N + 2 G) D], or None.
        query_key_norm: [N + G, D], one row a head, or None.
        attention_output: [H, N D].
        attention_post_norm: [H], or None.
        mlp_norm: [H].
        mlp: dense or experts.
        mlp_post_norm: [H], or None.
    """

    kind: LayerKind
    attention_norm: torch.Tensor
    query_key_value: PackedWeight
    query_key_value_bias: torch.Tensor | None
    query_key_norm: torch.Tensor | None
    attention_output: PackedWeight
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: PackedMlp | PackedExperts
    mlp_post_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Rows of a pass at consecutive positions: a whole chain, or one run of a tree.

    Attributes:
        rows: which ones; the last call of a pass has the padding too.
        num_new: rows that count.
        view: their keys in the cache.
        masks: as `attend` wants them.
    """

    rows: slice
    num_new: int
    view: KeyView
    masks: list[torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class KindTerms:
    """What the layers of one kind share in one pass.

    Attributes:
        calls: in row order; one overwrites what an earlier one wrote at its positions.
        num_new: rows that count; those behind are padding.
        rotations: [T, 1, D/2] complex64.
        attend: this host's attention.
    """

    calls: tuple[AttentionCall, ...]
    num_new: int
    rotations: torch.Tensor
    attend: Attend


def pack_layer(
    layer: LayerWeights, kind: LayerKind, config: ModelConfig, kernel: Kernel
) -> PackedLayer:
    """Pack a layer's weights; nothing of the originals is kept."""
    head_dim = config.head_dim
    by_head = [interleave(layer.query, head_dim), interleave(layer.key, head_dim), layer.value]
    bias = None
    if layer.query_bias is not None and layer.key_bias is not None and layer.value_bias is not None:
        query_bias, key_bias = (interleave(b, head_dim) for b in (layer.query_bias, layer.key_bias))
        bias = torch.cat([query_bias, key_bias, layer.value_bias])
    head_norms = None
    if layer.query_norm is not None and layer.key_norm is not None:
        query_norm, key_norm = (interleave(n, head_dim) for n in (layer.query_norm, layer.key_norm))
        head_norms = torch.stack([query_norm] * config.num_heads + [key_norm] * config.num_kv_heads)
    return PackedLayer(
        kind=kind,
        attention_norm=layer.attention_norm.clone(),
        query_key_value=pack(torch.cat(by_head), kernel),
        query_key_value_bias=bias,
        query_key_norm=head_norms,
        attention_output=pack(layer.attention_output, kernel),
        attention_post_norm=_copy(layer.attention_post_norm),
        mlp_norm=layer.mlp_norm.clone(),
        mlp=_pack_mlp(layer, config, kernel),
        mlp_post_norm=_copy(layer.mlp_post_norm),
    )


def run_layer(
    layer: PackedLayer,
    layer_idx: int,
    rows: torch.Tensor,
    terms: KindTerms,
    cache: KVCache,
    config: ModelConfig,
) -> torch.Tensor:
    """Run one layer over the rows of a pass.

    Args:
        layer: its weights.
        layer_idx: its place in the cache.
        rows: hidden states, padded to the row floor.
        terms: what its kind of layer shares.
        cache: extended by the new positions already.
        config: the decoder's shape.

    Shapes:
        rows: [T, H] -> [T, H]
    """
    normed = rms_norm(rows, layer.attention_norm, config.rms_eps)
    heads = _project_heads(layer, normed, terms.rotations, config)
    mixed = _mix_heads(layer_idx, heads, terms, cache, config)
    rows = _add(rows, mixed, layer.attention_output, layer.attention_post_norm, config.rms_eps)
    normed = rms_norm(rows, layer.mlp_norm, config.rms_eps)
    activation = ACTIVATIONS[config.family.activation]
    if isinstance(layer.mlp, PackedExperts):
        return mix_experts(normed, terms.num_new, layer.mlp, activation).add_(rows)
    gate, up = linear(normed, layer.mlp.gate_up).chunk(2, dim=1)
    gated = activation(gate).mul_(up)
    return _add(rows, gated, layer.mlp.down, layer.mlp_post_norm, config.rms_eps)


def _mix_heads(
    layer_idx: int, heads: torch.Tensor, terms: KindTerms, cache: KVCache, config: ModelConfig
) -> torch.Tensor:
    """Write and attend call by call: what a row follows stands in the slots before its own.

    Hiding siblings by a mask instead would scatter the keys of a path, and other bits come of that.

    Shapes:
        heads: [T, N + 2 G, D] -> [T, N D]
    """
    mixed = []
    for call in terms.calls:
        own = heads[call.rows]
        cache.write(layer_idx, call.view, own[: call.num_new, config.num_heads :])
        queries, keys_values = own[:, : config.num_heads], cache.read(layer_idx, call.view)
        mixed.append(terms.attend(queries, keys_values, call.masks, config.attention_scale))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _project_heads(
    layer: PackedLayer, normed: torch.Tensor, rotations: torch.Tensor, config: ModelConfig
) -> torch.Tensor:
    """Return rotated queries, rotated keys and values.

    Shapes:
        normed: [T, H] -> [T, N + 2 G, D]
    """
    if layer.query_key_value_bias is None:
        projected = linear(normed, layer.query_key_value)
    else:
        bias = layer.query_key_value_bias.expand(normed.shape[0], -1)
        projected = linear_add(normed, layer.query_key_value, bias)
    heads = projected.view(normed.shape[0], -1, config.head_dim)
    rotated = heads[:, : config.num_heads + config.num_kv_heads]
    if layer.query_key_norm is not None:
        rotated.copy_(rms_norm(rotated, None, config.rms_eps).mul_(layer.query_key_norm))
    rotate(rotated, rotations)
    return heads


def _add(
    rows: torch.Tensor,
    inputs: torch.Tensor,
    weight: PackedWeight,
    post_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Map a block's inner result back to H and add it to the residual stream."""
    if post_norm is None:
        return linear_add(inputs, weight, rows)
    return rms_norm(linear(inputs, weight), post_norm, eps).add_(rows)


def _pack_mlp(
    layer: LayerWeights, config: ModelConfig, kernel: Kernel
) -> PackedMlp | PackedExperts:
    if layer.router is None:
        return PackedMlp(
            gate_up=pack(torch.cat([layer.gate, layer.up]), kernel), down=pack(layer.down, kernel)
        )
    return pack_experts(
        (layer.router, layer.gate, layer.up, layer.down),
        kernel,
        config.experts_per_token,
        config.renormalise_experts,
    )


def _copy(norm: torch.Tensor | None) -> torch.Tensor | None:
    return None if norm is None else norm.clone()
