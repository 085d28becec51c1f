"""Keys and values of the positions computed so far.

Guarantees: entries are addressed by absolute position; `truncate` is the only way back; whatever
lies beyond `kv_len` is zero, so that attention may read whole key blocks. Memory grows by doubling
up to the context length and never shrinks. Never knows about tokens, frames or weights.
"""

from __future__ import annotations

import torch

from engine.errors import JobError
from engine.model.config import ModelConfig

KEY_BLOCK = 128  # attention reads keys in aligned blocks of this many
_FIRST_CAPACITY_LEN = 512


class KVCache:
    """Cache of one job on one stage.

    Attributes:
        kv_len: number of valid positions.
    """

    def __init__(self, config: ModelConfig, num_layers: int) -> None:
        """Make an empty cache.

        Args:
            config: the decoder's shape.
            num_layers: layers of this stage.
        """
        self.kv_len = 0
        self._context_len = config.context_len
        self._num_layers = num_layers
        self._row_shape = (2 * config.num_kv_heads, config.head_dim)
        self._store = self._zeros(min(_FIRST_CAPACITY_LEN, _up_to_block(config.context_len)))
        self._layers = list(self._store.unbind(0))

    @property
    def capacity_len(self) -> int:
        """Positions that fit without growing."""
        return self._store.shape[2]

    def truncate(self, kv_len: int) -> None:
        """Forget every position from `kv_len` on.

        Raises:
            JobError: `kv_gap` if positions before `kv_len` were never computed.
        """
        if kv_len > self.kv_len or kv_len < 0:
            raise JobError("kv_gap", f"start {kv_len} asked for, {self.kv_len} positions held")
        if kv_len < self.kv_len:
            self._store[:, :, kv_len : self.kv_len].zero_()
            self.kv_len = kv_len

    def extend(self, num_new: int) -> None:
        """Make room for `num_new` positions after `kv_len` and count them as valid.

        Raises:
            JobError: `context_overflow` if they exceed the context length; nothing changes then.
        """
        end = self.kv_len + num_new
        if end > self._context_len:
            raise JobError(
                "context_overflow",
                f"{self.kv_len} + {num_new} positions exceed the context of {self._context_len}",
            )
        if end > self.capacity_len:
            self._grow(end)
        self.kv_len = end

    def write(self, layer_idx: int, start: int, keys_values: torch.Tensor) -> None:
        """Store new rows of one layer.

        Shapes:
            keys_values: [T, 2 G, D], keys first
        """
        end = start + keys_values.shape[0]
        self._layers[layer_idx][:, start:end].copy_(keys_values.transpose(0, 1))

    def layer(self, layer_idx: int) -> torch.Tensor:
        """Return one layer's store.

        Shapes:
            return: [2 G, capacity, D], keys first, zero beyond `kv_len`
        """
        return self._layers[layer_idx]

    def _grow(self, needed_len: int) -> None:
        """Double until `needed_len` fits, so that growing costs O(1) a position."""
        capacity_len = self.capacity_len
        while capacity_len < needed_len:
            capacity_len *= 2
        larger = self._zeros(min(capacity_len, _up_to_block(self._context_len)))
        larger[:, :, : self.kv_len].copy_(self._store[:, :, : self.kv_len])
        self._store = larger
        self._layers = list(larger.unbind(0))

    @torch.inference_mode(False)
    def _zeros(self, capacity_len: int) -> torch.Tensor:
        # Growing happens inside a forward, in inference mode; a tensor made there could not be
        # changed outside it, and the next job's reset is outside.
        num_rows, head_dim = self._row_shape
        return torch.zeros(self._num_layers, num_rows, capacity_len, head_dim)


def _up_to_block(length: int) -> int:
    return -(-length // KEY_BLOCK) * KEY_BLOCK
