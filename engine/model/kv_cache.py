"""Keys and values of the positions computed so far, of one job on one stage.

Guarantees: entries are addressed by absolute position and keys are stored rotated by it; `truncate`
is the only way back; what no query may see any more is dropped, so that memory stays within the
window and what a truncation may restore. Whether a truncation is refused depends on the model, the
limits and the positions alone: every stage of a ring says the same. Never knows about tokens,
frames or weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.errors import JobError
from engine.model.config import ModelConfig
from engine.model.key_store import KeyStore
from engine.model.span import NO_LIMITS, CacheLimits, KeyView, Span, key_rules, pass_len


class KVCache:
    """Cache of a layer range.

    Attributes:
        kv_len: number of valid positions; a front trim does not lower it.
        limits: what this ring agreed on.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer_start: int,
        layer_end: int,
        limits: CacheLimits = NO_LIMITS,
    ) -> None:
        """Make an empty cache.

        Args:
            config: the decoder's shape.
            layer_start: first layer of this stage.
            layer_end: behind its last.
            limits: the same on every stage.
        """
        self.kv_len = 0
        self.limits = limits
        self._longest_len = 0  # most positions held since the cache was empty
        self._context_len = config.context_len
        self._pass_len = pass_len(config)
        rules = key_rules(config, limits)
        recent_lens = [rule.recent_len for rule in rules.values() if rule.recent_len is not None]
        self._shortest_recent_len = min(recent_lens, default=None)
        kinds = config.layer_kinds[layer_start:layer_end]
        reserve_len = max(limits.restore_len, self._pass_len)
        self._stores = {
            kind: KeyStore(
                rule,
                (kinds.count(kind), 2 * config.num_kv_heads, config.head_dim),
                config.context_len,
                reserve_len,
            )
            for kind, rule in rules.items()
            if kind in kinds
        }
        # layer -> its store and its place there
        self._places = [
            (self._stores[kind], kinds[:idx].count(kind)) for idx, kind in enumerate(kinds)
        ]

    @property
    def offset(self) -> int:
        """Rotary position of the next row: only a truncation lowers it, never a front trim."""
        return self.kv_len

    @property
    def live_start(self) -> int:
        """Positions that the front trim has hidden from the next query."""
        max_kv_size = self.limits.max_kv_size
        return 0 if max_kv_size is None else max(self.kv_len - max_kv_size, 0)

    @property
    def live_len(self) -> int:
        """Positions that the front trim has left."""
        return self.offset - self.live_start

    @property
    def capacity_len(self) -> int:
        """Rows a layer that memory is held for; of the kind of layer that holds most."""
        return max(store.capacity_len for store in self._stores.values())

    def begin(self, start: int, num_new: int) -> Iterator[Span]:
        """Truncate to `start` and plan `num_new` positions from there.

        Returns:
            Spans to run through all layers, one after the other: each makes room for itself when
            it is asked for, and may drop what only earlier ones needed.

        Raises:
            JobError: `kv_gap` or `kv_dropped` as `truncate`, `context_overflow` if the positions
                exceed the context; nothing changes then.
        """
        end = start + num_new
        if end > self._context_len:
            raise JobError(
                "context_overflow",
                f"{start} + {num_new} positions exceed the context of {self._context_len}; "
                "shorten the prompt or ask for fewer tokens",
            )
        self.truncate(start)
        return self._spans(start, end)

    def part(self, start: int, num_new: int) -> Span:
        """A part of the span at hand, with the keys that its own queries see.

        Args:
            start: absolute position of its first.
            num_new: how many.
        """
        end = start + num_new
        views = {kind: store.view(start, end) for kind, store in self._stores.items()}
        return Span(start, num_new, views)

    def truncate(self, kv_len: int) -> None:
        """Forget every position from `kv_len` on.

        Raises:
            JobError: `kv_gap` if positions before `kv_len` were never computed, `kv_dropped` if
                keys that its query sees are gone for good; nothing changes then.
        """
        self._check_start(kv_len)
        if kv_len < self.kv_len:
            for store in self._stores.values():
                store.clear(kv_len, self.kv_len)
            self.kv_len = kv_len
        if kv_len == 0:
            self._longest_len = 0

    def write(self, layer_idx: int, view: KeyView, keys_values: torch.Tensor) -> None:
        """Store the new rows of one layer.

        Args:
            layer_idx: place of the layer in this stage.
            view: the span's, for the layer's kind.
            keys_values: keys first.

        Shapes:
            keys_values: [T, 2 G, D]
        """
        store, place = self._places[layer_idx]
        store.layers[place][:, view.new_slots].copy_(keys_values.transpose(0, 1))

    def read(self, layer_idx: int, view: KeyView) -> list[torch.Tensor]:
        """Return one layer's rows of every segment of a view.

        Shapes:
            return: [2 G, keys of the segment, D] each, keys first, zero from `kv_len` on
        """
        store, place = self._places[layer_idx]
        layer = store.layers[place]
        return [layer[:, segment.slots] for segment in view.segments]

    def _spans(self, start: int, end: int) -> Iterator[Span]:
        for span_start in range(start, end, self._pass_len):
            span_end = min(span_start + self._pass_len, end)
            self._longest_len = max(self._longest_len, span_end)
            for store in self._stores.values():
                store.make_room(span_start, span_end, self._longest_len)
            self.kv_len = span_end
            yield self.part(span_start, span_end - span_start)

    def _check_start(self, start: int) -> None:
        if not 0 <= start <= self.kv_len:
            raise JobError("kv_gap", f"start {start} asked for, {self.kv_len} positions held")
        recent_len, oldest_start = self._shortest_recent_len, self._longest_len
        oldest_start -= self.limits.restore_len
        if recent_len is not None and 0 < start < oldest_start and oldest_start >= recent_len:
            raise JobError(
                "kv_dropped",
                f"start {start} asked for, but after {self._longest_len} positions with a window "
                f"of {recent_len} the keys before it are dropped: at most the last "
                f"{self.limits.restore_len} positions can be taken back, to {oldest_start}, "
                "or all of them, to 0",
            )
