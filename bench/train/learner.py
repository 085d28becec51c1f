"""The head while it learns: the layer of `engine.draft.head`, over batches, with gradients.

A slot `i` joins what the target tapped at position i with the token behind it, and predicts the one
after that. While drafting there are no taps beyond the last verified position: a slot then takes
the head's own output instead. So training unrolls `num_steps` slots from every position, each on
what the one before it put out. Guarantees: the parameters are those that `engine.draft.head_file`
reads, by the same names. Never knows files or the target's layers.

Source: Li et al. 2025, EAGLE-3: fused taps, no feature loss, training-time test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from bench.train.target import rms_norm
from engine.draft.head_file import HeadShape
from engine.model.rotary import rotate_halves

_FIRST_SURENESS = 0.3


@dataclass(frozen=True, slots=True)
class Lesson:
    """Some texts side by side, padded behind their ends.

    Attributes:
        taps: [B, T, taps * H].
        embedded: of every token, by the target's table, [B, T, H].
        final: what the target's head reads, [B, T, H].
        is_taught: whether a position's successor is an answer's, [B, T].
    """

    taps: torch.Tensor
    embedded: torch.Tensor
    final: torch.Tensor
    is_taught: torch.Tensor


class Learner(nn.Module):
    """The head's parameters and its unrolled pass.

    Args:
        shape: of the head.
        rms_eps: the target's.
        cos, sin: rotary factors by position, [T, D / 2].
    """

    def __init__(
        self, shape: HeadShape, rms_eps: float, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        super().__init__()
        hidden, inner, width = shape.hidden_size, shape.intermediate_size, shape.head_dim
        num_heads, num_kv = shape.num_heads, shape.num_kv_heads
        self.shape, self._eps = shape, rms_eps
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.tap_norm = nn.Parameter(torch.ones(shape.num_taps, hidden))
        self.fuse = _matrix(hidden, shape.num_taps * hidden)
        self.token_norm = nn.Parameter(torch.ones(hidden))
        self.feature_norm = nn.Parameter(torch.ones(hidden))
        self.query_key_value = _matrix((num_heads + 2 * num_kv) * width, 2 * hidden)
        self.attention_output = _matrix(hidden, num_heads * width)
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = _matrix(2 * inner, hidden)
        self.down = _matrix(hidden, inner)
        self.final_norm = nn.Parameter(torch.ones(hidden))
        self.head = _matrix(shape.vocab_size, hidden)

    def begin_as(self, head: torch.Tensor, final_norm: torch.Tensor) -> None:
        """Start from the target's own head, [V, H] over the draft vocabulary, and final norm.

        Scaled down: what the layer puts out at first means nothing, and scores that are sure of it
        would take a hundred steps to unlearn.
        """
        with torch.no_grad():
            self.head.copy_(head)
            self.final_norm.copy_(_FIRST_SURENESS * final_norm)

    def fused(self, taps: torch.Tensor) -> torch.Tensor:
        """Join taps to one feature. Shapes: [B, T, taps * H] -> [B, T, H]."""
        by_layer = taps.unflatten(2, (self.shape.num_taps, -1))
        return rms_norm(by_layer, self.tap_norm, self._eps).flatten(2) @ self.fuse.t()

    def unroll(self, lesson: Lesson, num_steps: int) -> list[torch.Tensor]:
        """Return each step's outputs; row i of step s predicts the token at position i + s + 2.

        Shapes:
            return: [B, T - 1 - s, H] each
        """
        features = self.fused(lesson.taps)
        stored: list[tuple[torch.Tensor, torch.Tensor]] = []
        outputs = []
        for step in range(num_steps):
            length = lesson.taps.shape[1] - 1 - step
            features = self._slot(
                features[:, :length], lesson.embedded[:, step + 1 :], step, stored
            )
            outputs.append(features)
        return outputs

    def scores(self, outputs: torch.Tensor) -> torch.Tensor:
        """Shapes: [..., H] -> [..., V]."""
        return rms_norm(outputs, self.final_norm, self._eps) @ self.head.t()

    def _slot(
        self,
        features: torch.Tensor,
        embedded: torch.Tensor,
        step: int,
        stored: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Run one step of all rows; row i stands at position i + step.

        Shapes:
            features, embedded: [B, T, H] -> [B, T, H]
        """
        length, shape = features.shape[1], self.shape
        joined = torch.cat(
            [
                rms_norm(embedded, self.token_norm, self._eps),
                rms_norm(features, self.feature_norm, self._eps),
            ],
            dim=2,
        )
        heads = (joined @ self.query_key_value.t()).unflatten(2, (-1, shape.head_dim))
        cos, sin = (table[step : step + length].unsqueeze(1) for table in (self.cos, self.sin))
        queries, keys, values = heads.split(
            [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=2
        )
        stored.append((rotate_halves(keys, cos, sin), values))
        mixed = self._attend(rotate_halves(queries, cos, sin), stored)
        rows = features + mixed.flatten(2) @ self.attention_output.t()
        gate, up = (rms_norm(rows, self.mlp_norm, self._eps) @ self.gate_up.t()).chunk(2, dim=2)
        return rows + (functional.silu(gate) * up) @ self.down.t()

    def _attend(
        self, queries: torch.Tensor, stored: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Row i sees the first step's keys of rows up to i, and its own of the later steps.

        Shapes:
            queries: [B, T, N, D] -> [B, T, N, D]
        """
        length, per_head = queries.shape[1], queries.shape[2] // self.shape.num_kv_heads
        scale = self.shape.head_dim**-0.5
        spread = [
            tuple(part[:, :length].repeat_interleave(per_head, dim=2) for part in pair)
            for pair in stored
        ]
        keys, values = (part.transpose(1, 2) for part in spread[0])
        scores = queries.transpose(1, 2) @ keys.transpose(2, 3) * scale
        hidden = torch.ones(length, length, dtype=torch.bool, device=queries.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        own = [(queries * keys).sum(dim=3).transpose(1, 2) * scale for keys, _ in spread[1:]]
        probs = torch.softmax(torch.cat([scores, *(o.unsqueeze(3) for o in own)], dim=3), dim=3)
        mixed = (probs[..., :length] @ values).transpose(1, 2)
        for idx, (_, later) in enumerate(spread[1:]):
            mixed = mixed + probs[..., length + idx].transpose(1, 2).unsqueeze(3) * later
        return mixed


def _matrix(num_out: int, num_in: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(num_out, num_in) * num_in**-0.5)
