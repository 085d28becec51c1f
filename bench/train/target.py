"""The target model over many sequences at once: what it says and what it taps.

The engine's decoder runs one sequence with fixed bits; here speed counts and rounding does not, so
ordinary matrix products do. Guarantees: the weights are those that stages load, in float32. Never
knows drafters or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.errors import ModelError
from engine.model.rotary import rotate_halves, rotations
from engine.model.weights import LayerWeights, ModelFiles, load_layers

TAP_LAYERS = (2, 15, 27)  # early, middle and late outputs, as EAGLE-3 fuses them


@dataclass(frozen=True, slots=True)
class Seen:
    """What one pass saw, a row for every position.

    Attributes:
        taps: outputs of the tapped layers side by side, [B, T, taps * H].
        final: behind the final norm, what the head reads, [B, T, H].
    """

    taps: torch.Tensor
    final: torch.Tensor


class BatchedTarget:
    """A dense model of the Llama family, for batches.

    Args:
        files: a prepared model.
        tap_layers: layers whose outputs are kept.

    Raises:
        ModelError: the model is of another family, or has no such layers.
    """

    def __init__(self, files: ModelFiles, tap_layers: tuple[int, ...]) -> None:
        config = files.config
        if config.architecture != "llama" or config.sliding_window is not None:
            raise ModelError(
                f"training reads models of the Llama family, not {config.architecture}"
            )
        if not all(0 <= layer < config.num_layers for layer in tap_layers):
            raise ModelError(
                f"tapped layers {tap_layers}; the model has 0..{config.num_layers - 1}"
            )
        weights = load_layers(files, 0, config.num_layers, with_embed=True, with_head=True)
        assert weights.embedding is not None, "asked for"
        assert weights.final_norm is not None and weights.head is not None, "asked for"
        self.config = config
        self.tap_layers = tap_layers
        self.embedding = weights.embedding.clone()
        self.head = self.embedding if config.tied_head else weights.head.clone()
        self._final_norm = weights.final_norm.clone()
        self._layers = [_Layer.of(layer) for layer in weights.layers]
        factors = torch.view_as_real(rotations(config.rope, config.head_dim, config.context_len))
        self._cos, self._sin = factors[..., 0].clone(), factors[..., 1].clone()

    def new_cache(self, num_sequences: int, capacity_len: int) -> torch.Tensor:
        """Make an empty cache. Shapes: [L, 2, B, G, capacity, D]."""
        shape = (self.config.num_kv_heads, capacity_len, self.config.head_dim)
        return torch.zeros(self.config.num_layers, 2, num_sequences, *shape)

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, starts: torch.Tensor, cache: torch.Tensor) -> Seen:
        """Run positions `starts … starts + T` of every sequence.

        Rows behind a sequence's own end may be anything: nothing before them sees them, and the
        next pass writes over them.

        Shapes:
            ids: [B, T]; starts: [B]
        """
        num_sequences, num_new = ids.shape
        positions = starts.unsqueeze(1) + torch.arange(num_new)
        seen_len = int(positions.max()) + 1
        mask = torch.arange(seen_len) <= positions.unsqueeze(2)
        cos, sin = (table[positions].unsqueeze(2) for table in (self._cos, self._sin))
        rows, taps = self.embedding[ids], []
        for idx, layer in enumerate(self._layers):
            normed = rms_norm(rows, layer.norm, self.config.rms_eps)
            heads = (normed @ layer.query_key_value.t()).unflatten(2, (-1, self.config.head_dim))
            num_heads, num_kv = self.config.num_heads, self.config.num_kv_heads
            queries, keys, values = heads.split([num_heads, num_kv, num_kv], dim=2)
            at = positions.view(num_sequences, 1, num_new, 1).expand(
                -1, num_kv, -1, self.config.head_dim
            )
            stored = cache[idx]
            stored[0].scatter_(2, at, rotate_halves(keys, cos, sin).transpose(1, 2))
            stored[1].scatter_(2, at, values.transpose(1, 2))
            queries = rotate_halves(queries, cos, sin).transpose(1, 2)
            mixed = self._attend(queries, stored[:, :, :, :seen_len], mask)
            rows = rows + mixed.transpose(1, 2).flatten(2) @ layer.output.t()
            normed = rms_norm(rows, layer.mlp_norm, self.config.rms_eps)
            gate, up = (normed @ layer.gate_up.t()).chunk(2, dim=2)
            rows = rows + (functional.silu(gate) * up) @ layer.down.t()
            if idx in self.tap_layers:
                taps.append(rows)
        final = rms_norm(rows, self._final_norm, self.config.rms_eps)
        return Seen(torch.cat(taps, dim=2), final)

    def _attend(
        self, queries: torch.Tensor, stored: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Attend without a copy of the cache, which the library's function makes.

        Shapes:
            queries: [B, N, T, D]; stored: [2, B, G, S, D]; mask: [B, T, S] bool -> [B, N, T, D]
        """
        num_kv = self.config.num_kv_heads
        grouped = queries.unflatten(1, (num_kv, -1))  # [B, G, N / G, T, D]
        rows = grouped.flatten(2, 3).flatten(0, 1)
        keys, values = stored.flatten(1, 2)
        scores = torch.bmm(rows, keys.transpose(1, 2)).mul_(self.config.attention_scale)
        by_head = scores.view(*grouped.shape[:-1], -1)
        by_head.masked_fill_(~mask[:, None, None], float("-inf"))
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
        return mixed.view(grouped.shape).flatten(1, 2)


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide every row by its root mean square. Shapes: [..., D], [D] -> [..., D]."""
    return rows * (rows.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: torch.Tensor
    query_key_value: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, layer: LayerWeights) -> _Layer:
        return cls(
            norm=layer.attention_norm.clone(),
            query_key_value=torch.cat([layer.query, layer.key, layer.value]),
            output=layer.attention_output.clone(),
            mlp_norm=layer.mlp_norm.clone(),
            gate_up=torch.cat([layer.gate, layer.up]),
            down=layer.down.clone(),
        )
