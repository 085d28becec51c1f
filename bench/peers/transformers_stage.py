"""The transformers library's layers of one stage, in any dtype: other kernels, same weights.

Guarantees: takes and gives float32 states as the engine's own executor does, so that either can
stand in for the other; keeps no cache but its inputs; never changes the peer. Must never know jobs
or frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from engine.model.tree import runs_of


def in_dtype(peer: Any, dtype: torch.dtype) -> Any:
    """A peer that computes in another dtype: a copy, since its own `to` rounds in place."""
    return deepcopy(peer).to(dtype)


class PeerStage:
    """Layers `[layer_start, layer_end)` of a peer from `transformers_speed.build_peer`.

    Args:
        peer: everything is computed in its dtype.
        order: layers to run instead of the stage's own, for a stage that cheats.
    """

    def __init__(self, peer: Any, span: tuple[int, int], order: Sequence[int] = ()) -> None:
        self.layer_start, self.layer_end = span
        self.is_first, self.is_last = span[0] == 0, span[1] == peer.config.num_hidden_layers
        self._order = order or range(*span)
        self._peer, self._dtype = peer, peer.dtype
        self.reset()

    def reset(self) -> None:
        """Forget the job."""
        self._rows = torch.zeros(0, self._peer.config.hidden_size)

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """Ids → hidden [T, H] float32."""
        embedded: torch.Tensor = self._peer.model.embed_tokens(torch.tensor(ids))
        return embedded.float()

    def forward(
        self, hidden: torch.Tensor, start: int, parents: Sequence[int] = ()
    ) -> torch.Tensor:
        """Hidden [T, H] float32 → [T, H]; a tree run by run, each on the path that it ends."""
        runs = runs_of(parents, len(hidden))
        return torch.cat(
            [
                self._chain(hidden[run.first_row :][: run.num_rows], start + run.offset)
                for run in runs
            ]
        )

    @torch.inference_mode()
    def _chain(self, hidden: torch.Tensor, start: int) -> torch.Tensor:
        """All positions from the start anew."""
        model = self._peer.model
        self._rows = torch.cat([self._rows[:start], hidden])
        rows = self._rows.to(self._dtype).unsqueeze(0)
        num = rows.shape[1]
        positions = torch.arange(num).unsqueeze(0)
        blocked = torch.full((num, num), torch.finfo(self._dtype).min, dtype=self._dtype).triu(1)
        turns = model.rotary_emb(rows, positions)
        for layer_idx in self._order:
            rows = model.layers[layer_idx](
                rows,
                attention_mask=blocked[None, None],
                position_ids=positions,
                position_embeddings=turns,
            )
        sent: torch.Tensor = rows[0, start:].float()
        return sent

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [T, H] → scores [T, V] float32."""
        states = hidden.to(self._dtype)
        scores: torch.Tensor = self._peer.lm_head(self._peer.model.norm(states))
        return scores.float()
