"""Drafters by name. Adding one is one file and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.draft.drafter import Drafter, NoDrafter
from engine.draft.filled import FilledDrafter
from engine.draft.ngram import NgramDrafter
from engine.errors import ConfigError, unknown_name


@dataclass(frozen=True, slots=True)
class DrafterSetting:
    """What a drafter is made from.

    Attributes:
        min_match_len: shortest suffix that n-grams believe.
        params: the drafter's own numbers, complete.
    """

    min_match_len: int
    params: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """A registry entry.

    Attributes:
        make: builds one.
        params: the drafter's own numbers: default, least and most of each.
        tap_layers: of the target, whose outputs it drafts from; asked when levers are made, since
            its weights say so.
    """

    make: Callable[[DrafterSetting], Drafter]
    params: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    tap_layers: Callable[[], tuple[int, ...]] = tuple


DRAFTERS: Mapping[str, DrafterKind] = {
    "none": DrafterKind(lambda setting: NoDrafter()),
    "ngram": DrafterKind(lambda setting: NgramDrafter(setting.min_match_len)),
    "ngram-filled": DrafterKind(lambda setting: FilledDrafter(setting.min_match_len)),
}


def drafter_kind(name: str) -> DrafterKind:
    """Look a drafter up.

    Raises:
        ConfigError: unknown name; the valid ones are listed.
    """
    if name not in DRAFTERS:
        raise unknown_name("drafter", name, DRAFTERS)
    return DRAFTERS[name]


def resolve_drafter_params(name: str, params: Mapping[str, int]) -> dict[str, int]:
    """Fill in defaults and refuse what the drafter does not take.

    Raises:
        ConfigError: unknown drafter or parameter (the valid ones are listed), or a value out of
            range.
    """
    allowed = drafter_kind(name).params
    for key, value in params.items():
        if key not in allowed:
            raise unknown_name(f"parameter of drafter {name!r}", key, allowed)
        _, least, most = allowed[key]
        if not least <= value <= most:
            raise ConfigError(f"{name}: {key} is {value}; allowed: {least}..{most}")
    return {**{key: default for key, (default, _, _) in allowed.items()}, **params}


def make_drafter(name: str, min_match_len: int, params: Mapping[str, int] | None = None) -> Drafter:
    """Build a drafter by name.

    Raises:
        ConfigError: unknown name (the valid ones are listed) or parameter out of range.
    """
    resolved = resolve_drafter_params(name, params or {})
    return drafter_kind(name).make(DrafterSetting(min_match_len, resolved))
