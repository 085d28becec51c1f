"""A layer range's forward pass and its cache, as the stage process sees it.

Guarantees: a frame at `start` truncates the cache to `start` and extends it, by no node of a tree;
failures of one job are `JobError`s and leave the executor usable. Must never know sockets or
frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.errors import JobError
from engine.model.arithmetic import rounds_to_nearest
from engine.model.decoder import Decoder, Passed
from engine.model.sampling import greedy_ids
from engine.model.span import NO_LIMITS, CacheLimits

WARM_UP_ROW_COUNTS = (1, 2, 9, 8, 17, 16)


class Executor(Protocol):
    """What a stage needs of a model; tests put an oracle in its place."""

    layer_start: int
    layer_end: int
    is_first: bool
    is_last: bool
    model_digest: str
    kernel: str
    weights: str  # what the layers' matrices are kept in
    max_kv_size: int  # keys a query may see; 0: all

    def reset(self) -> None:
        """Forget the job: empty caches."""

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """First stage only: ids → hidden [T, H]."""

    def run(
        self, hidden: torch.Tensor, start: int, parents: Sequence[int], tap_layers: Sequence[int]
    ) -> Passed:
        """Run the layers: hidden [T, H] → [T, H], and its own of the tapped ones.

        Raises:
            JobError: positions, states or `parents` (`engine.model.tree`) that cannot be.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage only: scores of the token after each row, hidden [T, H] → [T, V]."""


class DecoderExecutor:
    """The real one: a `Decoder` and its KV cache."""

    def __init__(
        self, decoder: Decoder, model_digest: str, limits: CacheLimits = NO_LIMITS
    ) -> None:
        self.layer_start = decoder.layer_start
        self.layer_end = decoder.layer_end
        self.is_first = decoder.layer_start == 0
        self.is_last = decoder.layer_end == decoder.config.num_layers
        self.model_digest = model_digest
        self.kernel = decoder.kernel.name
        self.weights = decoder.weights
        self._decoder = decoder
        self.max_kv_size = limits.max_kv_size or 0
        self._cache = decoder.new_cache(limits)

    def warm_up(self) -> None:
        """Run each row count once, so that no job pays for the first call of a kernel."""
        for num_rows in WARM_UP_ROW_COUNTS:
            hidden = torch.zeros(num_rows, self._decoder.config.hidden_size)
            hidden = self.forward(hidden, 0)
            if self.is_last:
                greedy_ids(self.logits(hidden))
        self.reset()

    def reset(self) -> None:
        """Forget the job; see that this process still computes as it did.

        Raises:
            JobError: `arithmetic`, it does not.
        """
        self._cache.truncate(0)
        if not rounds_to_nearest():
            raise JobError(
                "arithmetic",
                "this process no longer rounds to nearest: something in it changed how its "
                "processor rounds; start it anew",
            )

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        return self._decoder.embed(torch.tensor(ids, dtype=torch.int64))

    def run(
        self,
        hidden: torch.Tensor,
        start: int,
        parents: Sequence[int] = (),
        tap_layers: Sequence[int] = (),
    ) -> Passed:
        return self._decoder.run(hidden, start, self._cache, parents, tap_layers)

    def forward(
        self, hidden: torch.Tensor, start: int, parents: Sequence[int] = ()
    ) -> torch.Tensor:
        """What `run` does, without taps: all that a verifier's replica is asked."""
        return self.run(hidden, start, parents).hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(hidden)
