"""Which keys a query sees, and which of them one pass of the layers has to read.

Guarantees: visibility is a rule of the query's own position: never of the frame it came in, nor of
what the cache happens to hold. Bounds are whole key blocks, aligned to position 0. Never knows
tensors, weights or jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.defaults import DEPTH_MAX, DRAFT_LEN_MAX
from engine.errors import ConfigError
from engine.model.config import LayerKind, ModelConfig

KEY_BLOCK = 128  # attention adds up keys in aligned blocks of this many
PINNED_LEN = 4  # first positions, which a front trim never drops
MASK_LEN_MAX = 4096  # dense masks are no wider and no higher
PASS_LEN_MAX = 256  # positions that run through the layers at a time; 512 are no faster


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What the stages of one ring agree on about their caches.

    Attributes:
        max_kv_size: keys a query may see on any layer: the first 4 and the last ones; None: all.
        restore_len: positions that a truncation may take back where older keys are dropped;
            a ring never has more beyond its frontier than full depth of the longest frames.
    """

    max_kv_size: int | None = None
    restore_len: int = DEPTH_MAX * (DRAFT_LEN_MAX + 1)

    def __post_init__(self) -> None:
        """Refuse sizes that leave a query blind.

        Raises:
            ConfigError: naming the value and what is allowed.
        """
        if self.max_kv_size is not None and self.max_kv_size <= PINNED_LEN:
            raise ConfigError(
                f"max_kv_size {self.max_kv_size} leaves no recent key beside the {PINNED_LEN} "
                f"pinned ones; give at least {PINNED_LEN + 1}, or none to keep every key"
            )
        if self.restore_len < 1:
            raise ConfigError(f"restore_len {self.restore_len} must be at least 1")


NO_LIMITS = CacheLimits()


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The keys that queries of one kind of layer see, all of them at or before the query.

    Attributes:
        window_len: the query sees the last so many; None: all.
        max_kv_size: of those, the first 4 positions and the last `max_kv_size - 4`; None: all.
    """

    window_len: int | None = None
    max_kv_size: int | None = None

    @property
    def recent_len(self) -> int | None:
        """Last keys that a query sees, its own included; None: all."""
        recent = None if self.max_kv_size is None else self.max_kv_size - PINNED_LEN
        if recent is None or (self.window_len is not None and self.window_len <= recent):
            return self.window_len
        return recent

    @property
    def pinned_len(self) -> int:
        """First positions that stay visible behind the recent keys, within the window."""
        return PINNED_LEN if self.recent_len != self.window_len else 0

    def first_recent(self, position: int) -> int:
        """Oldest recent key that a query at `position` sees."""
        return 0 if self.recent_len is None else max(position - self.recent_len + 1, 0)

    def sees_pinned(self, position: int) -> bool:
        """True if a pinned key is within the window of a query at `position`."""
        window_first = 0 if self.window_len is None else position - self.window_len + 1
        return window_first < self.pinned_len


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys that lie side by side in a store, at consecutive positions.

    Attributes:
        first: absolute position of the first key, a multiple of `KEY_BLOCK`.
        slots: where they lie; whole blocks, at most `MASK_LEN_MAX` keys.
    """

    first: int
    slots: slice

    @property
    def num_keys(self) -> int:
        """Keys in this segment, those that no query sees included."""
        num_keys: int = self.slots.stop - self.slots.start
        return num_keys


@dataclass(frozen=True, slots=True)
class KeyView:
    """What the layers of one kind write and read in one pass.

    Attributes:
        rule: which keys a query sees.
        new_slots: where the new positions lie.
        segments: every key that a query of the pass sees, in order of position.
    """

    rule: KeyRule
    new_slots: slice
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive new positions that pass through the layers together.

    Attributes:
        start: absolute position of the first.
        num_new: how many.
        views: by kind of layer, for the kinds that this stage has.
    """

    start: int
    num_new: int
    views: Mapping[LayerKind, KeyView]


def key_rules(config: ModelConfig, limits: CacheLimits) -> dict[LayerKind, KeyRule]:
    """Return the rule of every kind of layer that the model has, on whatever stage."""
    windows = {"full": None, "sliding": config.sliding_window}
    kinds = dict.fromkeys(config.layer_kinds)  # in a fixed order
    return {kind: KeyRule(windows[kind], limits.max_kv_size) for kind in kinds}


def pass_len(config: ModelConfig) -> int:
    """Most positions of one pass: what keeps its masks small, with a row for every query head."""
    return min(PASS_LEN_MAX, MASK_LEN_MAX * config.num_kv_heads // config.num_heads)


def block_floor(position: int) -> int:
    """Round down to a whole key block."""
    return position // KEY_BLOCK * KEY_BLOCK


def block_ceil(length: int) -> int:
    """Round up to whole key blocks."""
    return -(-length // KEY_BLOCK) * KEY_BLOCK
