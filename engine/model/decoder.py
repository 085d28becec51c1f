"""A contiguous range of decoder layers.

Guarantees: a position's hidden states and logits have the same bits however positions are chunked,
layers are split over stages, and whatever was computed and truncated before; a tree's node has
those of a chain that ends in it. Never knows about sockets, jobs or text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.errors import JobError, ModelError
from engine.model.attention_kernel import attention_kernel
from engine.model.config import LayerKind, ModelConfig
from engine.model.elementwise import rms_norm
from engine.model.kv_cache import KVCache
from engine.model.layer import AttentionCall, KindTerms, PackedLayer, pack_layer, run_layer
from engine.model.linear import PackedWeight, kernel_for, linear, pack_f32
from engine.model.masks import Masks
from engine.model.rotary import rotations
from engine.model.row_invariance import MAX_ROW_FLOOR
from engine.model.sampling import greedy_ids
from engine.model.span import NO_LIMITS, CacheLimits, Span, pass_len
from engine.model.tree import Run, check_tree, reach_of, runs_of
from engine.model.weights import ModelFiles, StageWeights, load_layers


@dataclass(frozen=True, slots=True)
class Passed:
    """What came of a frame.

    Attributes:
        hidden: [T, H] float32, behind the last layer of the range.
        taps: by layer of the model: [T, H] float32, what was behind it.
    """

    hidden: torch.Tensor
    taps: dict[int, torch.Tensor]


class Decoder:
    """Layers `[layer_start, layer_end)` of a model; the first embeds, the last has the head."""

    def __init__(
        self, config: ModelConfig, layer_start: int, layer_end: int, weights: str = "f32"
    ) -> None:
        """Make a decoder without weights; `load` makes a usable one."""
        self.config = config
        self.layer_start = layer_start
        self.layer_end = layer_end
        self.weights = weights
        self.kernel = kernel_for(weights)
        self._attend = attention_kernel().attend
        self.masks = Masks(config.num_heads, config.num_kv_heads)
        # rows below the floor would round differently, so a short call is padded with zero rows
        self._row_floor = self.kernel.row_floor
        self._pass_len = pass_len(config)
        num_positions = config.context_len + MAX_ROW_FLOOR  # padded rows have positions too
        self._rotations = {
            kind: rotations(rope, config.head_dim, num_positions)
            for kind, rope in (("full", config.rope), ("sliding", config.sliding_rope))
            if kind in config.layer_kinds[layer_start:layer_end]
        }
        self._embedding_scale = config.hidden_size**0.5
        self._layers: tuple[PackedLayer, ...] = ()
        self._embedding: torch.Tensor | None = None
        self._final_norm: torch.Tensor | None = None
        self._head: PackedWeight | None = None

    @classmethod
    def load(
        cls, files: ModelFiles, layer_start: int, layer_end: int, weights: str = "f32"
    ) -> Decoder:
        """Load and pack the weights of a layer range.

        Args:
            files: a prepared model.
            layer_start: first layer.
            layer_end: one past the last layer.
            weights: what the layers' matrices are kept in, "f32" or "int4"; embedding, head,
                router and norms are float32 always.

        Raises:
            ModelError: if the range is not within the model.
            ConfigError: if there are no such weights.
        """
        config = files.config
        loaded = load_layers(
            files, layer_start, layer_end, layer_start == 0, layer_end == config.num_layers
        )
        decoder = cls(config, layer_start, layer_end, weights)
        decoder._take(loaded)
        return decoder

    @property
    def num_layers(self) -> int:
        """Layers of this stage."""
        return self.layer_end - self.layer_start

    def new_cache(self, limits: CacheLimits = NO_LIMITS) -> KVCache:
        """Make an empty cache for this layer range."""
        return KVCache(self.config, self.layer_start, self.layer_end, limits)

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
        rows = self._embedding[ids]
        return rows * self._embedding_scale if self.config.family.scales_embedding else rows

    def forward(
        self, hidden: torch.Tensor, start: int, cache: KVCache, parents: Sequence[int] = ()
    ) -> torch.Tensor:
        """Run the layers; what `run` does, without taps.

        Shapes:
            hidden: [T, H] float32 -> [T, H]

        Raises:
            JobError: as `run`.
        """
        return self.run(hidden, start, cache, parents).hidden

    @torch.inference_mode()
    def run(
        self,
        hidden: torch.Tensor,
        start: int,
        cache: KVCache,
        parents: Sequence[int] = (),
        tap_layers: Collection[int] = (),
    ) -> Passed:
        """Run the layers over consecutive positions, and the nodes of a tree behind them.

        Args:
            hidden: input of the first layer of this range.
            start: absolute position of the first row; the cache is truncated to it first.
            cache: from `new_cache`, extended by T, less the nodes.
            parents: of the nodes, the last rows: see `engine.model.tree`.
            tap_layers: whose output is wanted too; those outside the range are left out.

        Shapes:
            hidden: [T, H] float32

        Raises:
            JobError: as `KVCache.begin`; `bad_shape` for other hidden states; `bad_tree` for
                parents that are no tree, or one that does not fit one pass. A refused frame
                leaves the cache as it was.
        """
        num_rows = hidden.shape[0]
        if hidden.shape[1:] != (self.config.hidden_size,) or hidden.dtype != torch.float32:
            expected = f"[T, {self.config.hidden_size}] float32"
            raise JobError("bad_shape", f"{expected} wanted, got {hidden.shape} {hidden.dtype}")
        check_tree(parents, num_rows)
        if parents and num_rows > self._pass_len:
            raise JobError(
                "bad_tree",
                f"a tree's frame of {num_rows} rows; allowed: {self._pass_len}, with all before "
                "the root in frames of their own",
            )
        runs = runs_of(parents, num_rows)
        outputs = []
        for span in cache.begin(start, reach_of(runs)):
            offset = span.start - start
            own_runs = [run.within(offset, span.num_new) for run in runs]
            outputs.append(self._run_layers(hidden, start, own_runs, cache, tap_layers))
        if parents:  # siblings overwrote each other: no node's keys may be taken for a path's
            cache.truncate(start + num_rows - len(parents))
        return _joined(outputs) if outputs else Passed(hidden, {})

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
        rows = rms_norm(self._pad_rows(hidden), self._final_norm, self.config.rms_eps)
        return linear(rows, self._head)[: hidden.shape[0]]

    def greedy(self, hidden: torch.Tensor) -> list[int]:
        """Return the most likely next token of every position.

        Shapes:
            hidden: [T, H] float32 -> T ids
        """
        return greedy_ids(self.logits(hidden))

    def _run_layers(
        self,
        hidden: torch.Tensor,
        start: int,
        runs: Sequence[Run],
        cache: KVCache,
        tap_layers: Collection[int],
    ) -> Passed:
        """Run one pass: the rows of these runs."""
        first_row, num_new = runs[0].first_row, sum(run.num_rows for run in runs)
        rows = self._pad_rows(hidden[first_row : first_row + num_new])
        lens = [run.num_rows for run in runs]
        lens[-1] += rows.shape[0] - num_new  # the padding goes with the last run
        parts = [cache.part(start + run.offset, run.num_rows) for run in runs]
        terms = {kind: self._kind_terms(kind, parts, lens, num_new) for kind in self._rotations}
        taps = {}
        for layer_idx, layer in enumerate(self._layers):
            rows = run_layer(layer, layer_idx, rows, terms[layer.kind], cache, self.config)
            if self.layer_start + layer_idx in tap_layers:
                taps[self.layer_start + layer_idx] = rows[:num_new]
        return Passed(rows[:num_new], taps)

    def _kind_terms(
        self, kind: LayerKind, parts: Sequence[Span], lens: Sequence[int], num_new: int
    ) -> KindTerms:
        """What layers of a kind share, by the parts of a pass and their lengths with padding."""
        calls, rotations, first_row = [], [], 0
        for part, num_rows in zip(parts, lens, strict=True):
            view, rows = part.views[kind], slice(first_row, first_row + num_rows)
            masks = self.masks.of(part, view, num_rows)
            calls.append(AttentionCall(rows, part.num_new, view, masks))
            rotations.append(self._rotations[kind][part.start : part.start + num_rows])
            first_row += num_rows
        factors = rotations[0] if len(rotations) == 1 else torch.cat(rotations)
        return KindTerms(tuple(calls), num_new, factors.unsqueeze(1), self._attend)

    def _pad_rows(self, hidden: torch.Tensor) -> torch.Tensor:
        missing = self._row_floor - hidden.shape[0]
        return hidden if missing <= 0 else functional.pad(hidden, (0, 0, 0, missing))

    def _take(self, weights: StageWeights) -> None:
        """Pack weights; the memory-mapped originals are dropped, but for the embedding."""
        kinds = self.config.layer_kinds[self.layer_start : self.layer_end]
        self._layers = tuple(
            pack_layer(layer, kind, self.config, self.kernel)
            for layer, kind in zip(weights.layers, kinds, strict=True)
        )
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm
        if weights.head is not None:
            self._head = pack_f32(weights.head, self.kernel)


def _joined(passes: Sequence[Passed]) -> Passed:
    """The passes of one frame, one behind the other."""
    if len(passes) == 1:
        return passes[0]
    taps = {layer: torch.cat([passed.taps[layer] for passed in passes]) for layer in passes[0].taps}
    return Passed(torch.cat([passed.hidden for passed in passes]), taps)
