"""What the acceptance study's drafts say of requests that differ and of streaks: two tables.

Guarantees: the requests, bits and results are those of `analysis.study`; every share of the two
causes is of one statistic. Must never know files or axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis.iid import TESTS, IidResult, stream_runs
from analysis.iid_result import Bits
from analysis.load import Experiment
from analysis.named_number import NamedNumber, named
from analysis.power import STUDY_ARM
from analysis.streak_spread import chain_spread, counts_of, dispersion, fit_beta, within_lag
from analysis.streak_tests import CHAIN, POOLED, StratifiedTest, stratified_tests
from analysis.study import study_result
from analysis.study_rules import p_words
from analysis.table_parts import make_spec
from analysis.table_spec import NOTHING, Column, TableSpec, interval, number, rounded, text
from engine.errors import ReceiptError

ALL_GROUPS = "all groups"
CHAIN_DRAWS = 999
SMALLEST_P = 1e-99
STRATA_WORDS = {
    "pooled": "all drafts together",
    "by group": "within groups",
    "by request": "within requests",
    CHAIN: "one rate, streaks as recorded",
}


@lru_cache(maxsize=2)
def stratified_results(experiment: Experiment, arm: str = STUDY_ARM) -> tuple[StratifiedTest, ...]:
    """Every conditional test of the study under every reference set.

    Raises:
        ConfigError: the arm has no one draft length.
    """
    result = study_result(experiment, arm)
    groups = [request.group for request in result.requests]
    return tuple(stratified_tests(result.study, result.results, groups, result.level))


def taken_out(rows: Sequence[StratifiedTest], row: StratifiedTest) -> float:
    """Share of a test's excess over all orders of the pooled drafts that this reference set takes.

    Excess: statistic less its mean. NaN: of that reference set itself, or where there is no test.
    """
    (pooled,) = (one for one in rows if (one.strata, one.test) == (POOLED, row.test))
    excess = [_excess(one) for one in (row, pooled)]
    if row is pooled or not all(map(np.isfinite, excess)) or not excess[1]:
        return float("nan")
    return 1 - excess[0] / excess[1]


def _excess(row: StratifiedTest) -> float:
    if not isinstance(row.result, IidResult):
        return float("nan")
    return float(row.result.statistic) - row.expected


def pooled_table(experiment: Experiment, arm: str = STUDY_ARM) -> TableSpec:
    """The tests over all orders of the pooled drafts, within groups and within requests."""
    found = stratified_results(experiment, arm)
    rows = [
        {
            "test": row.test,
            "strata": STRATA_WORDS[row.strata],
            "statistic": float(row.result.statistic)
            if isinstance(row.result, IidResult)
            else float("nan"),
            "expected": row.expected,
            "p": p_words(row.result),
            "verdict": _verdict(row),
            "taken_out": 100 * taken_out(found, row),
            "method": row.result.method if isinstance(row.result, IidResult) else NOTHING,
        }
        for row in sorted(found, key=lambda row: TESTS.index(row.test))
    ]
    columns = (
        text("test"),
        text("strata", "orders of the drafts"),
        number("statistic", "statistic", 1),
        number("expected", "its mean over them", 1),
        Column("p", lambda row: str(row["p"])),
        text("verdict"),
        number("taken_out", "of the excess, taken out (%)"),
        text("method"),
    )
    result = study_result(experiment, arm)
    notes = [
        "A test over orders of all drafts together mistakes requests that differ for streaks; "
        "orders within a request leave its rate alone. Taken out: how much smaller the excess, "
        "statistic less its mean, is than over all drafts together. That part requests (or groups) "
        "made that differ; what is left within requests is serial dependence. Tests of order see "
        "the requests of a stratum end to end; within requests they are the study's own.",
        "`between_requests` the other way round: Σ (accepted − tested · rate)² / tested, the rate "
        "that of all drafts or of the group. `one rate, streaks as recorded`: every request a "
        "two-state chain with the pooled rate and the autocorrelation within requests, drawn: what "
        "it takes out of the excess is over-dispersion that streaks alone give.",
        f"Rejected: by Holm's procedure at {result.level:g} among the tests of the same orders. "
        "`context_e` has no reference set of orders.",
    ]
    title = "Pooled against stratified tests of independence"
    frame = pd.DataFrame(rows)
    return make_spec(experiment, "pooled_stratified", title, frame, columns, notes)


def _verdict(row: StratifiedTest) -> str:
    if row.holm is None:
        return "not applicable"
    return "rejected" if row.holm.rejected else "not rejected"


@lru_cache(maxsize=2)
def spread_frame(experiment: Experiment, arm: str = STUDY_ARM) -> pd.DataFrame:
    """Over-dispersion of requests, all groups first; a group without spread has NaN in its fit.

    Raises:
        ReceiptError: no request has a tested draft.
    """
    result = study_result(experiment, arm)
    groups = [request.group for request in result.requests]
    rows = []
    for group in (ALL_GROUPS, *dict.fromkeys(groups)):
        own = [
            bits
            for bits, name in zip(result.study.bits, groups, strict=True)
            if len(bits) and group in (ALL_GROUPS, name)
        ]
        if own:
            rows.append({"group": group, **_spread_row(own)})
    if not rows:
        raise ReceiptError(f"arm {arm!r}: the data rule leaves no request a tested draft")
    return pd.DataFrame(rows)


def _spread_row(streams: Sequence[Bits]) -> dict[str, object]:
    ones, lengths = counts_of(streams)
    rate, lag = float(ones.sum() / lengths.sum()), within_lag(streams)
    runs = stream_runs(streams)
    row: dict[str, object] = {
        "requests": len(streams),
        "tested": int(lengths.sum()),
        "rate": rate,
        "lag": lag,
        "runs_p": p_words(runs),
    }
    if len(streams) < 2 or not 0 < rate < 1 or np.isnan(lag):
        fitted = ("dispersion", "alone", "rho", "rho_low", "rho_high", "ratio_p", "fit_p")
        return row | dict.fromkeys(fitted, float("nan"))
    one_rate = rate * (1 - rate) * (len(streams) - 1)
    fit = fit_beta(ones, lengths)
    return row | {
        "dispersion": dispersion(ones, lengths),
        "alone": float(chain_spread(streams, CHAIN_DRAWS).mean() / one_rate),
        "rho": fit.rho,
        "rho_low": fit.low,
        "rho_high": fit.high,
        "ratio_p": fit.ratio_p,
        "fit_p": fit.fit_p,
    }


def spread_table(experiment: Experiment, arm: str = STUDY_ARM) -> TableSpec:
    """Over-dispersion against a beta mixture, and what is left of streaks within requests."""
    columns = (
        text("group"),
        number("requests", "requests"),
        number("tested", "drafts"),
        number("rate", "accepted", 3),
        number("dispersion", "variance / binomial", 1),
        number("alone", "by streaks alone", 1),
        interval(("rho", "rho_low", "rho_high"), "intraclass ρ [95 %]", 3),
        Column("binomial, p", lambda row: _small_p(row["ratio_p"])),
        number("fit_p", "beta mixture, p", 2),
        number("lag", "autocorrelation within requests", 2),
        Column("stream_runs, p", lambda row: str(row["runs_p"])),
    )
    notes = [
        "The drafts that the data rule leaves. Variance / binomial: Σ (accepted − tested · rate)² "
        "/ (tested · rate · (1 − rate)) over requests − 1: 1 where one rate is all. By streaks "
        "alone: its mean over drawn requests of one rate that are two-state chains with the "
        "autocorrelation within requests, the next to last column: at lag 1, each request's own "
        "rate taken out.",
        "ρ: of a beta-binomial by maximum likelihood, likelihood-ratio interval; a request's rate "
        "is drawn from a beta law. Binomial: likelihood ratio, ρ = 0 on its edge. Beta mixture: "
        "Cramér–von Mises distance of the requests' places in the fitted law, parametric bootstrap "
        "with refits; small: it does not fit. `stream_runs` asks, given every request's counts and "
        "so whatever its rate is, whether like follows like: what no mixture explains.",
        "Groups are exploratory.",
    ]
    title = "Over-dispersion against a beta mixture"
    frame = spread_frame(experiment, arm)
    return make_spec(experiment, "overdispersion", title, frame, columns, notes)


def _small_p(value: object) -> str:
    if isinstance(value, float) and value < SMALLEST_P:
        return f"< {SMALLEST_P:.0e}"
    return f"{value:.2g}" if isinstance(value, float) and value == value else rounded(value, 0)


def study_streak_numbers(experiment: Experiment, arm: str = STUDY_ARM) -> dict[str, NamedNumber]:
    """p-values and shares by reference set, and the mixture over all requests."""
    ids = [request.receipt_id for request in study_result(experiment, arm).requests]
    found, numbers = stratified_results(experiment, arm), {}
    for row in found:
        name = f"streaks.{row.strata.replace(' ', '_')}.{row.test}"
        if isinstance(row.result, IidResult):
            formula = f"p, orders of the drafts: {STRATA_WORDS[row.strata]}"
            numbers[f"{name}.p"] = named(row.result.p, 6, "p", formula, ids)
        share = taken_out(found, row)
        if np.isfinite(share):
            formula = "1 − (statistic − mean over its orders) / (the same over all drafts together)"
            numbers[f"{name}.taken_out"] = named(100 * share, 0, "%", formula, ids)
    whole = spread_frame(experiment, arm).iloc[0]
    for key, decimals, unit, formula in (
        ("dispersion", 1, "ratio", "variance of requests' accepted drafts / binomial"),
        ("alone", 1, "ratio", "the same of chains of one rate with the streaks recorded"),
        ("rho", 3, "rho", "intraclass correlation, beta-binomial, maximum likelihood"),
        ("rho_low", 3, "rho", "likelihood-ratio interval, 95 %"),
        ("rho_high", 3, "rho", "likelihood-ratio interval, 95 %"),
        ("fit_p", 2, "p", "of the beta-binomial, parametric bootstrap"),
        ("lag", 2, "correlation", "lag 1 within requests, their rates taken out"),
    ):
        if np.isfinite(whole[key]):
            numbers[f"overdispersion.{key}"] = named(whole[key], decimals, unit, formula, ids)
    return numbers
