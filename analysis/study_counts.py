"""Counts of the acceptance study: by match length, by what became of the round before, by prompt.

Guarantees: exact intervals of shares that would be binomial under the null; one request counts
once. Must never know files or axes, and claims nothing about independence: that is the tests'
business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.curves import clopper_pearson
from analysis.iid_evidence import MatchedRound
from analysis.requests import Request
from analysis.study import MATCH_CONTEXTS, match_context

PREVIOUS_CONTEXTS = ("first round", "a = 0", "0 < a < k", "a = k")
COUNT_COLUMNS = ("context", "rounds", "tested", "accepted", "rate", "low", "high", "full")


@dataclass(frozen=True, slots=True)
class Spread:
    """How much the prompts' shares of accepted drafts differ, beside what one α gives."""

    observed: float  # standard deviation over prompts
    expected: float


def by_match(requests: Sequence[Request]) -> pd.DataFrame:
    """COUNT_COLUMNS by the drafter's match length; 0: fillers."""
    pairs = [(match_context(row[2]), row) for request in requests for row in _drafted(request)]
    return _counted(pairs, MATCH_CONTEXTS)


def by_previous(requests: Sequence[Request]) -> pd.DataFrame:
    """COUNT_COLUMNS by what became of the round before, in the same request."""
    pairs: list[tuple[str, MatchedRound]] = []
    for request in requests:
        context = PREVIOUS_CONTEXTS[0]
        for row in _drafted(request):
            pairs.append((context, row))
            context = _fate(row)
    return _counted(pairs, PREVIOUS_CONTEXTS)


def by_prompt(requests: Sequence[Request]) -> pd.DataFrame:
    """Columns cell, group, tested, accepted, rate, low, high: one row a prompt."""
    rows = []
    for request in requests:
        tested, accepted = len(request.bits), sum(request.bits)
        if tested:
            ends = clopper_pearson(accepted, tested)
            rows.append((request.cell, request.group, tested, accepted, accepted / tested, *ends))
    columns = ["cell", "group", "tested", "accepted", "rate", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def spread_of(prompts: pd.DataFrame) -> Spread:
    """Standard deviation of the prompts' rates, and the one that their pooled α gives."""
    if prompts.empty:
        return Spread(float("nan"), float("nan"))
    alpha = prompts["accepted"].sum() / prompts["tested"].sum()
    variance = float((alpha * (1 - alpha) / prompts["tested"]).mean())
    return Spread(float(prompts["rate"].std(ddof=0)), float(np.sqrt(variance)))


def _drafted(request: Request) -> list[MatchedRound]:
    return [row for row in request.rounds if row[0]]


def _fate(row: MatchedRound) -> str:
    draft_len, accepted_len, _ = row
    if not accepted_len:
        return "a = 0"
    return "a = k" if accepted_len == draft_len else "0 < a < k"


def _counted(pairs: Iterable[tuple[str, MatchedRound]], contexts: Sequence[str]) -> pd.DataFrame:
    rows = []
    listed = list(pairs)
    for context in contexts:
        chosen = [row for name, row in listed if name == context]
        accepted = _total(chosen, lambda k, a: a)
        tested = accepted + _total(chosen, lambda k, a: a < k)
        full = _total(chosen, lambda k, a: a == k)
        ends = clopper_pearson(accepted, tested) if tested else (float("nan"),) * 2
        rate = accepted / tested if tested else float("nan")
        share = full / len(chosen) if chosen else float("nan")
        rows.append((context, len(chosen), tested, accepted, rate, *ends, share))
    return pd.DataFrame(rows, columns=list(COUNT_COLUMNS))


def _total(rows: Sequence[MatchedRound], count: Callable[[int, int], int]) -> int:
    return sum(count(draft_len, accepted_len) for draft_len, accepted_len, _ in rows)
