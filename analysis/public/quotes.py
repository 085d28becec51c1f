"""What was published about the public receipts, quoted as ranges with their source.

Guarantees: a quoted value stands here once, and both the sentence that repeats it and the check of
it read it from here. Must never know files.

Source: the paper of `leyten/shard` (`docs/paper/main.typ` of 2026-07-03, Zenodo
10.5281/zenodo.21178430), its figures' script, and the summaries inside the public files themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.named_number import NamedNumber, named

PAPER, FIGURES, TREE, MATRIX_FILE = "the paper", "the paper's figures", "tree trial", "matrix"


@dataclass(frozen=True, slots=True)
class Quote:
    """A published value, or a range of them."""

    low: float
    high: float
    decimals: int
    unit: str
    source: str

    def holds(self, value: float) -> bool:
        """Whether a value, rounded as the published one is, lies in the range."""
        return self.low <= round(value, self.decimals) <= self.high

    def __str__(self) -> str:
        ends = [f"{value:.{self.decimals}f}" for value in (self.low, self.high)]
        return ends[0] if self.low == self.high else "–".join(ends)


def _one(value: float, decimals: int, unit: str, source: str) -> Quote:
    return Quote(value, value, decimals, unit, source)


QUOTES: Mapping[str, Quote] = {
    "plain": Quote(4.8, 5.0, 1, "tokens/s", PAPER),
    "interactive": Quote(10.7, 12.6, 1, "tokens/s", PAPER),
    "novel_ceiling": Quote(12.0, 14.0, 0, "tokens/s", PAPER),
    "tool_call": _one(12.5, 1, "tokens/s", PAPER),
    "draftable": Quote(70.0, 87.0, 0, "tokens/s", PAPER),
    "batched": Quote(150.0, 194.0, 0, "tokens/s", PAPER),
    "batched_context": _one(12.0, 0, "thousand tokens", PAPER),
    "context_8k": Quote(9.8, 11.2, 1, "tokens/s", PAPER),
    "context_30k": Quote(5.0, 6.6, 1, "tokens/s", PAPER),
    "prefill_30k": Quote(22.0, 45.0, 0, "s", PAPER),
    "transport_share": Quote(55.0, 68.0, 0, "%", PAPER),
    "stage_spread": _one(4.0, 0, "times", PAPER),
    "loop_ms": Quote(300.0, 450.0, 0, "ms", PAPER),
    "figure_loop_ms": _one(380.0, 0, "ms", FIGURES),
    "figure_chain": Quote(50.0, 80.0, 0, "tokens/s", FIGURES),
    "figure_chain_alpha": _one(0.97, 2, "alpha", FIGURES),
    "figure_tree_tokens": _one(4.5, 1, "tokens", FIGURES),
    "figure_tree_alpha": _one(0.74, 2, "alpha", FIGURES),
    "figure_cover": _one(1.26, 2, "ratio", FIGURES),
    "figure_tree_levels": _one(4, 0, "levels", FIGURES),
    "receipt_cost": _one(0.4, 1, "%", PAPER),
    "end_to_end_cost": Quote(9.0, 16.0, 0, "%", PAPER),
    "verified_jobs": _one(64, 0, "jobs", PAPER),
    "countries": _one(5, 0, "countries", PAPER),
    "countries_elsewhere": _one(4, 0, "countries", PAPER),
    "kill_s": _one(14, 0, "s", PAPER),
    "chunks_at_kill": _one(4, 0, "chunks", PAPER),
    "layers": _one(62, 0, "layers", PAPER),
    "draft_len": _one(8, 0, "tokens", PAPER),
    "depth": _one(4, 0, "chunks", PAPER),
    "tree_gain.reason-math": _one(25, 0, "%", TREE),
    "tree_gain.reason-logic": _one(57, 0, "%", TREE),
    "tree_gain.code-edit": _one(36, 0, "%", TREE),
    "tree_gain.all": _one(18, 0, "%", TREE),
    "matrix.speedup": Quote(1.6, 5.2, 1, "ratio", MATRIX_FILE),
    "matrix.countries": _one(4, 0, "countries", MATRIX_FILE),
    "matrix.layers": _one(43, 0, "layers", MATRIX_FILE),
}


def quoted_numbers() -> dict[str, NamedNumber]:
    """Every quoted value as prose may print it; it rests on no receipt."""
    numbers = {}
    for name, quote in QUOTES.items():
        is_one = quote.low == quote.high
        ends = {"": quote.low} if is_one else {".low": quote.low, ".high": quote.high}
        for end, value in ends.items():
            words = f"quoted: {quote.source}"
            numbers[f"published.{name}{end}"] = named(value, quote.decimals, quote.unit, words, [])
    return numbers
