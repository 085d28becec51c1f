"""Drafters by name. Adding one is one file and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.draft.drafter import Drafter, NoDrafter
from engine.draft.filled import FilledDrafter
from engine.draft.ngram import NgramDrafter
from engine.errors import unknown_name

DRAFTERS: Mapping[str, Callable[[int], Drafter]] = {
    "none": lambda min_match_len: NoDrafter(),
    "ngram": NgramDrafter,
    "ngram-filled": FilledDrafter,
}


def make_drafter(name: str, min_match_len: int) -> Drafter:
    """Build a drafter by name.

    Raises:
        ConfigError: unknown name (the valid ones are listed) or parameter out of range.
    """
    if name not in DRAFTERS:
        raise unknown_name("drafter", name, DRAFTERS)
    return DRAFTERS[name](min_match_len)
