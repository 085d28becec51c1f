"""Named numbers of the acceptance study.

Guarantees: they are those of its tables. Must never know what is said about a number.
"""

from __future__ import annotations

from analysis.curves import acceptance_by_distance, first_rep
from analysis.iid import IidResult
from analysis.load import Experiment, rounds_frame
from analysis.named_number import NamedNumber, named
from analysis.power import STUDY_ARM, STUDY_EXPERIMENT
from analysis.study import study_result
from analysis.study_counts import by_match, by_previous, by_prompt, spread_of

P_FORMULA = "p of analysis.iid on the pooled study; 0.000000: below 5e-7"


def study_numbers(experiment: Experiment) -> dict[str, NamedNumber]:
    """Sizes, rates and p-values of the study; empty for other experiments."""
    if experiment.plan.experiment != STUDY_EXPERIMENT or not experiment.measured():
        return {}
    result = study_result(experiment, STUDY_ARM)
    ids = [request.receipt_id for request in result.requests]

    def count(value: int, unit: str, formula: str) -> NamedNumber:
        return named(value, 0, unit, formula, ids)

    def share(value: float, formula: str) -> NamedNumber:
        return named(value, 3, "share", formula, ids)

    study = result.study
    numbers = {
        "study.requests": count(len(result.requests), "requests", "distinct prompts"),
        "study.bits": count(sum(map(len, study.bits)), "drafts", "first n tested, summed"),
        "study.rounds": count(sum(map(len, study.all_rounds)), "rounds", "with a draft"),
    }
    frames = first_rep(rounds_frame(experiment))
    curve = acceptance_by_distance(frames[frames["arm"] == STUDY_ARM], study.draft_len or 1)
    for row in curve.itertuples():
        numbers[f"study.depth.{row.distance}"] = share(row.rate, "accepted / tested at this depth")
    for name, table in (
        ("match", by_match(result.requests)),
        ("round_before", by_previous(result.requests)),
    ):
        for row in table[table["tested"] > 0].itertuples():
            numbers[f"study.{name}.{row.context}"] = share(row.rate, "accepted / tested")
    spread = spread_of(by_prompt(result.requests))
    numbers["study.prompts.spread"] = share(spread.observed, "standard deviation over prompts")
    numbers["study.prompts.one_alpha"] = share(spread.expected, "the same under one α")
    for test, found in result.results.items():
        if isinstance(found, IidResult):
            numbers[f"study.p.{test}"] = named(found.p, 6, "p", P_FORMULA, ids)
    return numbers
