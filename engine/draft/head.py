"""The learned head: one decoder layer that drafts from what the target tapped.

A *slot* `i` joins the feature of position i with the token at i + 1 and predicts the token at
i + 2. Features of verified positions are fused taps; beyond them a slot takes the output of the
slot before it. Keys and values of verified slots stay; those of drafted ones are scratch, given in
and out by the caller, and never enter the store. Guarantees: nothing but drafts comes out of here.
Never knows texts, rounds or links.

Source: Li et al. 2025, EAGLE-3.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from engine.draft.head_file import DEFAULT_HEAD, VOCAB_TENSOR, HeadFile, load_head
from engine.errors import ModelError
from engine.model.config import Rope
from engine.model.linear import linear, linear_add, linear_kernel, pack_f32
from engine.model.rotary import rotate_halves, rotations
from engine.model.weights import ModelFiles, load_layers

_FIRST_CAPACITY_LEN = 512


@dataclass(frozen=True, slots=True)
class Slots:
    """Outputs of some slots, and their keys and values.

    Attributes:
        outputs: the next slots' features, [T, H].
        keys_values: [2, G, T, D].
    """

    outputs: torch.Tensor
    keys_values: torch.Tensor


class EagleHead:
    """A head, ready to run, and the verified slots of one job.

    Args:
        file: its weights.
        embedding: the target's, [vocabulary, H].
        context_len: positions that may ever come.
    """

    def __init__(self, file: HeadFile, embedding: torch.Tensor, context_len: int) -> None:
        kernel, tensors = linear_kernel(), file.tensors
        self.facts = file.facts
        self.vocab_ids = tensors[VOCAB_TENSOR]
        self._embedding = embedding
        self._norms = {name: tensor for name, tensor in tensors.items() if name.endswith("_norm")}
        self._packed = {
            name: pack_f32(tensor, kernel)
            for name, tensor in tensors.items()
            if name not in self._norms and name != VOCAB_TENSOR
        }
        shape = self.facts.shape
        self._rotations = rotations(Rope(self.facts.rope_theta), shape.head_dim, context_len)
        self._store = torch.zeros(2, shape.num_kv_heads, _FIRST_CAPACITY_LEN, shape.head_dim)
        self.num_slots = 0

    def reset(self) -> None:
        """Forget the job."""
        self.num_slots = 0

    @torch.inference_mode()
    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """Join tapped layers to features. Shapes: [T, taps, H] -> [T, H]."""
        normed = self._rms_norm(taps, "tap_norm")
        return linear(normed.flatten(1), self._packed["fuse"])

    @torch.inference_mode()
    def extend(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Append verified slots.

        Args:
            features: fused taps of consecutive positions, from `num_slots` on.
            ids: the tokens behind them.

        Shapes:
            features: [T, H]; ids: [T] -> outputs [T, H]
        """
        first, num_new = self.num_slots, len(ids)
        self._make_room(first + num_new)
        positions = torch.arange(first, first + num_new)
        hidden = torch.ones(num_new, num_new, dtype=torch.bool).triu(1)
        slots = self._run(features, ids, positions, None, hidden)
        self._store[:, :, first : first + num_new] = slots.keys_values
        self.num_slots += num_new
        return slots.outputs

    @torch.inference_mode()
    def draft(
        self,
        features: torch.Tensor,
        ids: torch.Tensor,
        depth: int,
        scratch: torch.Tensor | None,
        hidden: torch.Tensor,
    ) -> Slots:
        """Run drafted slots of one depth, side by side.

        Args:
            features: outputs of the slots before them.
            ids: the drafted tokens behind those.
            depth: of the tokens, from 1 on.
            scratch: keys and values of drafted slots so far, [2, G, S, D].
            hidden: which scratch and own keys a row does not see, [T, S + T].
        """
        positions = torch.full((len(ids),), self.num_slots + depth - 1)
        return self._run(features, ids, positions, scratch, hidden)

    @torch.inference_mode()
    def log_probs(self, outputs: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, over the draft vocabulary. Shapes: [T, H] -> [T, V]."""
        logits = linear(self._rms_norm(outputs, "final_norm"), self._packed["head"])
        return torch.log_softmax(logits, dim=1)

    def _run(
        self,
        features: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        scratch: torch.Tensor | None,
        hidden: torch.Tensor,
    ) -> Slots:
        shape = self.facts.shape
        joined = torch.cat(
            [
                self._rms_norm(self._embedding[ids], "token_norm"),
                self._rms_norm(features, "feature_norm"),
            ],
            dim=1,
        )
        projected = linear(joined, self._packed["query_key_value"])
        heads = projected.view(len(ids), -1, shape.head_dim)
        queries, keys, values = torch.split(
            heads, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1
        )
        factors = self._rotations[positions].unsqueeze(1)
        cos, sin = factors.real, factors.imag
        new = torch.stack([rotate_halves(keys, cos, sin), values]).transpose(1, 2)
        mixed = self._attend(rotate_halves(queries, cos, sin), new, scratch, hidden)
        rows = linear_add(mixed, self._packed["attention_output"], features)
        normed = self._rms_norm(rows, "mlp_norm")
        gate, up = linear(normed, self._packed["gate_up"]).chunk(2, dim=1)
        return Slots(linear_add(functional.silu(gate) * up, self._packed["down"], rows), new)

    def _attend(
        self,
        queries: torch.Tensor,
        new: torch.Tensor,
        scratch: torch.Tensor | None,
        hidden: torch.Tensor,
    ) -> torch.Tensor:
        """Every row sees all verified slots, and of the others what is not hidden.

        Shapes:
            queries: [T, N, D]; new: [2, G, T, D] -> [T, N D]
        """
        verified = self._store[:, :, : self.num_slots]
        parts = [verified, new] if scratch is None else [verified, scratch, new]
        keys, values = torch.cat(parts, dim=2)
        unseen = functional.pad(hidden, (self.num_slots, 0))
        by_key_head = queries.reshape(len(queries), keys.shape[0], -1, queries.shape[2])
        rows = by_key_head.permute(1, 2, 0, 3)  # [G, N / G, T, D]
        scores = rows @ keys.unsqueeze(1).transpose(2, 3) * queries.shape[2] ** -0.5
        probs = torch.softmax(scores.masked_fill(unseen, float("-inf")), dim=3)
        mixed: torch.Tensor = (probs @ values.unsqueeze(1)).permute(2, 0, 1, 3).flatten(1)
        return mixed

    def _rms_norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        eps = self.facts.rms_eps
        return rows * (rows.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * self._norms[name]

    def _make_room(self, num_slots: int) -> None:
        while num_slots > self._store.shape[2]:
            self._store = torch.cat([self._store, torch.zeros_like(self._store)], dim=2)


class ShippedHead:
    """The head that comes with the engine, made ready once, for one target.

    Args:
        files: of the target.
        path: of the head.
    """

    def __init__(self, files: ModelFiles, path: Path = DEFAULT_HEAD) -> None:
        self._files, self._path = files, path
        self._ready: EagleHead | None = None

    def __call__(self) -> EagleHead:
        """The head; one job at a time uses it.

        Raises:
            ModelError: it is missing, damaged, or of another target.
        """
        if self._ready is None:
            file = load_head(self._path)
            if file.facts.model_digest != self._files.model_digest:
                raise ModelError(
                    f"{self._path.name} drafts for model {file.facts.model_digest[:16]}, not for "
                    f"{self._files.model_digest[:16]}; train one for it: python -m bench.train"
                )
            weights = load_layers(self._files, 0, 0, with_embed=True, with_head=False)
            assert weights.embedding is not None, "asked for"
            self._ready = EagleHead(file, weights.embedding, self._files.config.context_len)
        return self._ready
