"""One number as prose may print it.

Guarantees: a number carries its unit, rounding, formula and the ids of the receipts that it rests
on, and is rounded once, here. Must never know which numbers there are.
"""

from __future__ import annotations

import msgspec


class NamedNumber(msgspec.Struct, frozen=True, kw_only=True):
    """One number as prose may print it."""

    value: str  # decimal, already rounded
    unit: str
    rounding: str
    formula: str
    receipt_ids: list[str]


def named(
    value: float, decimals: int, unit: str, formula: str, receipt_ids: list[str]
) -> NamedNumber:
    """Round a number for good."""
    return NamedNumber(
        value=f"{value:.{decimals}f}",
        unit=unit,
        rounding=f"{decimals} decimals",
        formula=formula,
        receipt_ids=sorted(receipt_ids),
    )
