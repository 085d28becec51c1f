"""A contiguous range of decoder layers.

Guarantees: a position's hidden states and logits have the same bits however positions are chunked,
layers are split over stages, and whatever was computed and truncated before. Never knows about
sockets, jobs or text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.errors import JobError, ModelError
from engine.model.attention import MIN_QUERY_ROWS, CausalMasks, attention
from engine.model.config import ModelConfig
from engine.model.kv_cache import KVCache
from engine.model.linear import (
    MAX_ROW_FLOOR,
    LinearKernel,
    PackedWeight,
    linear,
    linear_add,
    linear_kernel,
    pack,
)
from engine.model.sampling import greedy_ids
from engine.model.weights import LayerWeights, ModelFiles, StageWeights, load_layers


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One layer, ready to run. Maps of one input share a matrix: each call wakes the workers."""

    attention_norm: torch.Tensor
    query_key_value: PackedWeight
    attention_output: PackedWeight
    mlp_norm: torch.Tensor
    gate_up: PackedWeight
    down: PackedWeight


class Decoder:
    """Layers `[layer_start, layer_end)` of a model; the first embeds, the last has the head."""

    def __init__(self, config: ModelConfig, layer_start: int, layer_end: int) -> None:
        """Make a decoder without weights; `load` makes a usable one."""
        self.config = config
        self.layer_start = layer_start
        self.layer_end = layer_end
        self.kernel = linear_kernel()
        rows_per_position = config.num_heads // config.num_kv_heads
        self._masks = CausalMasks(config.context_len, rows_per_position)
        # rows below the floor would round differently, so a short call is padded with zero rows
        self._row_floor = max(self.kernel.row_floor, -(-MIN_QUERY_ROWS // rows_per_position))
        self._rotations = _rotations(config)
        self._layers: tuple[PackedLayer, ...] = ()
        self._embedding: torch.Tensor | None = None
        self._final_norm: torch.Tensor | None = None
        self._head: PackedWeight | None = None

    @classmethod
    def load(cls, files: ModelFiles, layer_start: int, layer_end: int) -> Decoder:
        """Load and pack the weights of a layer range.

        Raises:
            ModelError: if the range is not within the model.
        """
        config = files.config
        weights = load_layers(
            files, layer_start, layer_end, layer_start == 0, layer_end == config.num_layers
        )
        decoder = cls(config, layer_start, layer_end)
        decoder._take(weights)
        return decoder

    @property
    def num_layers(self) -> int:
        """Layers of this stage."""
        return self.layer_end - self.layer_start

    def new_cache(self) -> KVCache:
        """Make an empty cache for this layer range."""
        return KVCache(self.config, self.num_layers)

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up token embeddings.

        Shapes:
            ids: [T] int64 -> [T, H] float32

        Raises:
            ModelError: if this stage does not embed.
            JobError: `bad_token` if an id is outside the vocabulary.
        """
        if self._embedding is None:
            raise ModelError(f"layers from {self.layer_start} do not embed; only the first stage")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.config.vocab_size:
            raise JobError("bad_token", f"ids must be in [0, {self.config.vocab_size})")
        return self._embedding[ids]

    @torch.inference_mode()
    def forward(self, hidden: torch.Tensor, start: int, cache: KVCache) -> torch.Tensor:
        """Run the layers over consecutive positions.

        Args:
            hidden: input of the first layer of this range.
            start: absolute position of the first row; the cache is truncated to it first.
            cache: from `new_cache`, extended by T.

        Shapes:
            hidden: [T, H] float32 -> [T, H]

        Raises:
            JobError: `kv_gap` if `start` exceeds the cache, `context_overflow` if it would,
                `bad_shape` for other hidden states; the cache never counts a refused frame.
        """
        num_new = hidden.shape[0]
        if hidden.shape[1:] != (self.config.hidden_size,) or hidden.dtype != torch.float32:
            expected = f"[T, {self.config.hidden_size}] float32"
            raise JobError("bad_shape", f"{expected} wanted, got {hidden.shape} {hidden.dtype}")
        cache.truncate(start)
        cache.extend(num_new)
        if num_new == 0:
            return hidden
        rows = self._pad_rows(hidden)
        mask = self._masks.mask(start, rows.shape[0], cache.kv_len)
        rotations = self._rotations[start : start + rows.shape[0]].unsqueeze(1)
        for layer_idx, layer in enumerate(self._layers):
            rows = self._run_layer(
                layer, layer_idx, rows, (start, num_new), (rotations, mask), cache
            )
        return rows[:num_new]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the final norm and the head.

        Shapes:
            hidden: [T, H] float32 -> [T, V] float32

        Raises:
            ModelError: if this stage has no head.
        """
        if self._head is None or self._final_norm is None:
            raise ModelError(f"layers to {self.layer_end} have no head; only the last stage")
        rows = _rms_norm(self._pad_rows(hidden), self._final_norm, self.config.rms_eps)
        return linear(rows, self._head)[: hidden.shape[0]]

    def greedy(self, hidden: torch.Tensor) -> list[int]:
        """Return the most likely next token of every position.

        Shapes:
            hidden: [T, H] float32 -> T ids
        """
        return greedy_ids(self.logits(hidden))

    def _pad_rows(self, hidden: torch.Tensor) -> torch.Tensor:
        missing = self._row_floor - hidden.shape[0]
        return hidden if missing <= 0 else functional.pad(hidden, (0, 0, 0, missing))

    def _run_layer(
        self,
        layer: PackedLayer,
        layer_idx: int,
        rows: torch.Tensor,
        span: tuple[int, int],
        position_terms: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
    ) -> torch.Tensor:
        config = self.config
        start, num_new = span
        rotations, mask = position_terms
        normed = _rms_norm(rows, layer.attention_norm, config.rms_eps)
        projected = linear(normed, layer.query_key_value)
        heads = projected.view(rows.shape[0], -1, config.head_dim)
        rotated = heads[:, : config.num_heads + config.num_kv_heads]
        torch.view_as_complex(rotated.unflatten(2, (-1, 2))).mul_(rotations)
        cache.write(layer_idx, start, heads[:num_new, config.num_heads :])
        mixed = attention(
            heads[:, : config.num_heads], cache.layer(layer_idx), mask, config.num_kv_heads
        )
        rows = linear_add(mixed, layer.attention_output, rows)
        normed = _rms_norm(rows, layer.mlp_norm, config.rms_eps)
        gate, up = linear(normed, layer.gate_up).chunk(2, dim=1)
        return linear_add(functional.silu(gate).mul_(up), layer.down, rows)

    def _take(self, weights: StageWeights) -> None:
        """Pack weights; the memory-mapped originals are dropped, but for the embedding."""
        self._layers = tuple(self._pack_layer(layer) for layer in weights.layers)
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm
        if weights.head is not None:
            self._head = pack(weights.head, self.kernel)

    def _pack_layer(self, layer: LayerWeights) -> PackedLayer:
        kernel: LinearKernel = self.kernel
        head_dim = self.config.head_dim
        fused = torch.cat(
            [_interleave(layer.query, head_dim), _interleave(layer.key, head_dim), layer.value]
        )
        return PackedLayer(
            attention_norm=layer.attention_norm.clone(),
            query_key_value=pack(fused, kernel),
            attention_output=pack(layer.attention_output, kernel),
            mlp_norm=layer.mlp_norm.clone(),
            gate_up=pack(torch.cat([layer.gate, layer.up]), kernel),
            down=pack(layer.down, kernel),
        )


def _rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.rms_norm(rows, weight.shape, weight, eps)


def _interleave(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Put the two halves of every rotary pair side by side, so that one complex product rotates.

    Scores do not change: queries and keys are permuted alike.

    Shapes:
        weight: [heads * D, H] -> [heads * D, H]
    """
    halves = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def _rotations(config: ModelConfig) -> torch.Tensor:
    """Tabulate the rotary factors of every position.

    Shapes:
        return: [context_len and room for padded rows, D/2] complex64

    Source:
        Rotary embedding: angle of pair i at position t is t * theta^(-2 i / D).
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    angles = torch.outer(torch.arange(config.context_len + MAX_ROW_FLOOR).float(), frequencies)
    return torch.complex(angles.cos(), angles.sin())
