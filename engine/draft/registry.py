"""Drafters by name. Adding one is one file and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.defaults import TREE_NODES_MAX
from engine.draft.drafter import Drafter, NoDrafter
from engine.draft.eagle import EagleDrafter
from engine.draft.filled import FilledDrafter
from engine.draft.head import EagleHead
from engine.draft.head_file import DEFAULT_HEAD, HeadFacts, read_facts
from engine.draft.hybrid import HybridDrafter, Router
from engine.draft.ngram import NgramDrafter
from engine.draft.ready import with_ready
from engine.draft.tree import TreeLimits
from engine.errors import ConfigError, ModelError, unknown_name


@dataclass(frozen=True, slots=True)
class DrafterSetting:
    """What a drafter is made from.

    Attributes:
        min_match_len: shortest suffix that n-grams believe.
        params: the drafter's own numbers, complete.
        head: the learned head, ready to run; raises where there is none for this target.
        router: chooses between sources, by what the head's file says.
    """

    min_match_len: int
    params: Mapping[str, int]
    head: Callable[[], EagleHead]
    router: Callable[[HeadFacts], Router]


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


_TREE = {"nodes": (16, 1, TREE_NODES_MAX), "children": (3, 1, 8), "depth": (6, 1, 16)}


def shipped_tap_layers() -> tuple[int, ...]:
    """Layers that the shipped head was trained on; none if there is no head to feed."""
    try:
        return read_facts(DEFAULT_HEAD).tap_layers
    except ModelError:
        return ()  # making the drafter says why, and n-grams take over


def _eagle(setting: DrafterSetting) -> EagleDrafter:
    return EagleDrafter(setting.head(), "chain", TreeLimits(1, 1, 1))


def _tree(setting: DrafterSetting) -> EagleDrafter:
    sizes = setting.params
    limits = TreeLimits(sizes["nodes"], sizes["children"], sizes["depth"])
    return EagleDrafter(setting.head(), "tree", limits)


def _hybrid(setting: DrafterSetting) -> HybridDrafter:
    learned = _tree(setting)
    ngram = with_ready(NgramDrafter(setting.min_match_len))
    return HybridDrafter(ngram, learned, setting.router(learned.facts))


DRAFTERS: Mapping[str, DrafterKind] = {
    "none": DrafterKind(lambda setting: NoDrafter()),
    "ngram": DrafterKind(lambda setting: NgramDrafter(setting.min_match_len)),
    "ngram-filled": DrafterKind(lambda setting: FilledDrafter(setting.min_match_len)),
    "eagle": DrafterKind(_eagle, tap_layers=shipped_tap_layers),
    "tree": DrafterKind(_tree, _TREE, shipped_tap_layers),
    "hybrid": DrafterKind(_hybrid, _TREE, shipped_tap_layers),
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


def make_drafter(
    name: str,
    min_match_len: int,
    params: Mapping[str, int] | None = None,
    head: Callable[[], EagleHead] | None = None,
    router: Callable[[HeadFacts], Router] | None = None,
) -> Drafter:
    """Build a drafter by name.

    Args:
        head, router: of learned drafters; see `DrafterSetting`.

    Raises:
        ConfigError: unknown name (the valid ones are listed) or parameter out of range.
        ModelError: it needs a head, and there is none for this target.
    """
    resolved = resolve_drafter_params(name, params or {})
    setting = DrafterSetting(min_match_len, resolved, head or _no_head, router or _no_router)
    return drafter_kind(name).make(setting)


def _no_head() -> EagleHead:
    raise ModelError("a learned drafter needs the target's files; nobody gave any")


def _no_router(facts: HeadFacts) -> Router:
    raise ModelError("a hybrid drafter needs a router; nobody gave one")
