"""One fixed place, colour and marker per arm, the same in every table and figure.

Guarantees: an arm keeps its slot whatever else an experiment holds; a null arm looks like the arm
it repeats, but hollow; bounds, which are no claims, are stars and nothing else is; an arm that is
not listed gets a grey slot behind the listed ones, so a new arm needs no entry here to be drawn.
Must never know what an arm does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Arm -> (index into the style file's colour cycle, marker). The order is the reading order.
_SLOTS: dict[str, tuple[int, str]] = {
    "ar": (0, "o"),
    "null-ar": (0, "o"),
    "chain-k8": (1, "s"),
    "null": (1, "s"),
    "chain-k4": (0, "^"),
    "chain-d1": (0, "v"),
    "chain-d2": (2, "<"),
    "chain-d8": (4, ">"),
    "chain-s1": (0, "<"),
    "chain-s2": (2, "P"),
    "chain-s3": (3, "<"),
    "chain-s6": (4, "P"),
    "ar-attest": (0, "D"),
    "chain-attest": (2, "D"),
    "ar-warm": (0, "D"),
    "chain-warm": (2, "D"),
    "chain-m3": (1, "<"),
    "chain-k16": (2, "^"),
    "chain-k32": (2, "v"),
    "chain-k64": (4, "^"),
    "two-state": (3, "D"),
    "streak": (4, "v"),
    "planner": (5, "P"),
    "chain-eagle": (6, "X"),
    "tree": (7, "<"),
    "hybrid": (4, ">"),
    "hybrid-planner": (5, "h"),
    "ar-fp8": (0, "p"),
    "chain-fp8": (1, "d"),
    "ar-int4": (0, "H"),
    "chain-int4": (1, "X"),
    "clairvoyant": (6, "*"),
    "oracle": (7, "*"),
    "accept-k8": (1, "P"),
    "seal-none": (0, "o"),
    "null-seal": (0, "o"),
    "seal-chacha": (2, "^"),
    "seal-aes": (3, "D"),
    "ids-s1": (1, "o"),
    "ids-s2": (1, "s"),
    "ids-s3": (1, "^"),
    "ids-s4": (1, "D"),
    "logits-s1": (2, "o"),
    "logits-s2": (2, "s"),
    "logits-s3": (2, "^"),
    "logits-s4": (2, "D"),
}
_HOLLOW = ("null-ar", "null", "null-seal")
OTHER_COLOUR = "#7f7f7f"
OTHER_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True, slots=True)
class ArmSlot:
    """How an arm is drawn."""

    colour_idx: int | None  # None: OTHER_COLOUR
    marker: str
    is_hollow: bool


def in_reading_order(arms: Iterable[str]) -> list[str]:
    """Listed arms in their fixed order, then the others by name."""
    listed = list(_SLOTS)
    return sorted(
        set(arms), key=lambda arm: (listed.index(arm) if arm in _SLOTS else len(listed), arm)
    )


def slot_of(arm: str, arms: Iterable[str]) -> ArmSlot:
    """The slot of an arm; `arms` are all that are drawn, to tell unlisted ones apart."""
    if arm in _SLOTS:
        colour_idx, marker = _SLOTS[arm]
        return ArmSlot(colour_idx, marker, arm in _HOLLOW)
    others = [name for name in in_reading_order(arms) if name not in _SLOTS]
    return ArmSlot(None, OTHER_MARKERS[others.index(arm) % len(OTHER_MARKERS)], False)
