"""Storage of keys and values for the layers of one kind.

Guarantees: a position's row lies in the same key block as that position would in an endless store,
so that reading never depends on what was dropped; rows behind the last one written are zero.
Memory grows by doubling up to a bound and never shrinks; at the bound of a store with a window the
rows move to the front by whole blocks, at most once in 128 positions. Never knows about jobs,
frames or how queries use the rows.
"""

from __future__ import annotations

import torch

from engine.model.span import (
    KEY_BLOCK,
    MASK_LEN_MAX,
    KeyRule,
    KeyView,
    Segment,
    block_ceil,
    block_floor,
)

FIRST_CAPACITY_LEN = 512


class KeyStore:
    """Rows of some layers, addressed by absolute position.

    Attributes:
        layers: per layer [2 G, capacity, D], keys first.
    """

    def __init__(
        self, rule: KeyRule, shape: tuple[int, int, int], context_len: int, reserve_len: int
    ) -> None:
        """Make an empty store.

        Args:
            rule: which keys a query sees; what none can see any more is dropped.
            shape: layers, rows a position (2 G), D.
            context_len: positions that may ever come.
            reserve_len: positions behind the last one that may come anew, or come in one pass.
        """
        self._rule = rule
        self._shape = shape
        self._reserve_len = reserve_len
        # Pinned rows keep block 0; the blocks between it and the recent ones are what is dropped.
        self._pinned_len = KEY_BLOCK if rule.pinned_len else 0
        self._capacity_max_len = block_ceil(context_len)
        if rule.recent_len is not None:
            bound = block_ceil(rule.recent_len + reserve_len + KEY_BLOCK) + self._pinned_len
            self._capacity_max_len = min(self._capacity_max_len, bound)
        self._dropped_len = 0  # a position's slot is so much lower, unless it is pinned
        self._adopt(self._zeros(min(FIRST_CAPACITY_LEN, self._capacity_max_len)))

    @property
    def capacity_len(self) -> int:
        """Rows a layer that memory is held for."""
        return self._store.shape[2]

    def make_room(self, start: int, end: int, longest_len: int) -> None:
        """See to it that `[start, end)` can be written and its queries find their keys.

        Args:
            start: first position of the pass.
            end: behind its last.
            longest_len: most positions the cache has held, `end` included.
        """
        if end - self._dropped_len <= self.capacity_len:
            return
        oldest_query = min(start, max(longest_len - self._reserve_len, 0))
        oldest_key = block_floor(self._rule.first_recent(oldest_query))
        while end - self._dropped_len > self.capacity_len:
            if self.capacity_len < self._capacity_max_len:
                self._grow()
            else:
                self._drop(oldest_key - self._pinned_len)

    def clear(self, start: int, end: int) -> None:
        """Zero the rows of `[start, end)`, the last ones; from 0 on, the store is as new."""
        if start == 0:
            self._store[:, :, : end - self._dropped_len].zero_()
            self._dropped_len = 0
        else:
            self._store[:, :, start - self._dropped_len : end - self._dropped_len].zero_()

    def view(self, start: int, end: int) -> KeyView:
        """Say where the positions `[start, end)` lie and which keys their queries see."""
        dropped_len = self._dropped_len
        first = block_floor(self._rule.first_recent(start))
        segments = []
        if first >= KEY_BLOCK and self._rule.sees_pinned(start):
            segments.append(Segment(0, slice(0, KEY_BLOCK)))
        stop = block_ceil(end)
        for position in range(first, stop, MASK_LEN_MAX):
            slots = slice(position - dropped_len, min(position + MASK_LEN_MAX, stop) - dropped_len)
            segments.append(Segment(position, slots))
        new_slots = slice(start - dropped_len, end - dropped_len)
        return KeyView(self._rule, new_slots, tuple(segments))

    def _grow(self) -> None:
        larger = self._zeros(min(2 * self.capacity_len, self._capacity_max_len))
        larger[:, :, : self.capacity_len].copy_(self._store)
        self._adopt(larger)

    def _drop(self, dropped_len: int) -> None:
        """Move what is behind the first `dropped_len` positions to the front, block 0 if pinned."""
        step = dropped_len - self._dropped_len
        # a step at a time, so that no row is overwritten before it has moved
        for slot in range(self._pinned_len, self.capacity_len, step):
            moved = self._store[:, :, slot + step : slot + 2 * step]
            target = self._store[:, :, slot : slot + step]
            target[:, :, : moved.shape[2]].copy_(moved)
            target[:, :, moved.shape[2] :].zero_()
        self._dropped_len = dropped_len

    def _adopt(self, store: torch.Tensor) -> None:
        self._store = store
        self.layers = list(store.unbind(0))

    @torch.inference_mode(False)
    def _zeros(self, capacity_len: int) -> torch.Tensor:
        # Growing happens inside a forward, in inference mode; a tensor made there could not be
        # changed outside it, and the next job's reset is outside.
        num_layers, num_rows, head_dim = self._shape
        return torch.zeros(num_layers, num_rows, capacity_len, head_dim)
