"""Tables of the acceptance study: drafts by group, the tests, and what predicts acceptance.

Guarantees: every planned group has a row; fillers are counted apart; a verdict stands beside the
test's power. Must never know files, nor test anything itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pandas as pd

from analysis.curves import chain_rounds
from analysis.iid import TESTS, IidResult
from analysis.iid_power import EFFECTS
from analysis.load import Experiment, groups_of, rounds_frame
from analysis.power import STUDY_ARM
from analysis.study import StudyResult, group_results, study_result
from analysis.study_counts import by_match, by_previous, by_prompt, spread_of
from analysis.study_rules import detectable_words, evidence_words, p_words, verdict_in_words
from analysis.table_parts import make_spec
from analysis.table_spec import NOTHING, Column, Formatter, TableSpec, interval, number, text

FILLER = "filler"
ALL_GROUPS = "all groups"
FAMILY_HEADS = {
    "within rounds": "finds slope",
    "between rounds": "finds regimes",
    "between prompts": "finds prompts",
}


def study_table(experiment: Experiment) -> TableSpec:
    """Rounds and drafts by group, those that the drafter made up counted apart."""
    groups = list(dict.fromkeys(groups_of(experiment.plan).values()))
    frames = rounds_frame(experiment)
    rounds = chain_rounds(frames)
    if not rounds.empty:
        rounds = rounds.assign(group=rounds["cell"].map(groups_of(experiment.plan)))
    rows = [_row(group, rounds, [group]) for group in groups]
    rows.append(_row(ALL_GROUPS, rounds, groups))
    columns = (
        text("group"),
        number("prompts", "prompts"),
        number("rounds", "rounds"),
        number("fillers", "of them fillers"),
        number("sum_draft", "Σk"),
        number("sum_accepted", "Σa"),
        number("alpha_hat", "alpha_hat", 3),
        number("alpha_matched", "without fillers", 3),
    )
    notes = [
        "One job a prompt. Fillers: rounds in which the drafter matched nothing and repeated the "
        "last token. alpha_hat = Σa / Σtested. What these numbers say of independence is a matter "
        "for tests, not for this table."
    ]
    frame = pd.DataFrame(rows)
    return make_spec(experiment, "acceptance", "Acceptance of drafts", frame, columns, notes)


def tests_table(experiment: Experiment, arm: str = STUDY_ARM) -> TableSpec:
    """The tests of the pooled study: statistic, p, level, power and verdict."""
    result = study_result(experiment, arm)
    rows = pd.DataFrame([_tested(result, test) for test in TESTS])
    columns = (
        text("test"),
        Column("statistic", lambda row: str(row["statistic"])),
        Column("p", lambda row: str(row["p"])),
        Column("level", lambda row: str(row["level"])),
        *(text(family, head) for family, head in FAMILY_HEADS.items()),
        text("verdict"),
        text("method"),
    )
    title = "Is acceptance i.i.d.? Tests of the pooled study"
    return make_spec(experiment, "iid", title, rows, columns, _test_notes(experiment, result, arm))


def group_tests_table(experiment: Experiment, arm: str = STUDY_ARM) -> TableSpec:
    """p-values of every test by group of prompts: exploratory."""
    rows = [
        {"group": group, **{test: p_words(found[test]) for test in TESTS}}
        for group, found in group_results(experiment, arm).items()
    ]
    frame = pd.DataFrame(rows, columns=["group", *TESTS])
    columns = (text("group"), *(Column(test, _getter(test)) for test in TESTS))
    notes = [
        "p-values, exploratory: not corrected for their number, and no verdict rests on them. The "
        "same data rule; requests of one group only."
    ]
    title = "The tests by group of prompts"
    return make_spec(experiment, "iid_by_group", title, frame, columns, notes)


def match_table(experiment: Experiment, arm: str = STUDY_ARM) -> TableSpec:
    """What match length says about acceptance."""
    result = study_result(experiment, arm)
    notes = [
        "Contexts of match_e: how many tokens the drafter's suffix matched; 0: none, which with "
        "`ngram-filled` is a filler, the last token repeated. Rate: accepted / tested [95 % "
        "Clopper–Pearson, exact only for independent drafts]. Full: rounds that accepted all their "
        "drafts.",
        "match_e, one rate against one a context: " + _match_words(result) + ".",
    ]
    rows, columns = by_match(result.requests), _count_columns("match length")
    title = "Acceptance by match length"
    return make_spec(experiment, "match_length", title, rows, columns, notes)


def previous_table(experiment: Experiment, arm: str = STUDY_ARM) -> TableSpec:
    """What the round before says about a round: what a streak policy lives on."""
    result = study_result(experiment, arm)
    spread = spread_of(by_prompt(result.requests))
    notes = [
        "What became of the request's round before. A policy that drafts more after a full round "
        "lives on the difference between the last row and the others; part of it is that prompts "
        f"differ: the standard deviation of accepted / tested over prompts is {spread.observed:.3f}"
        f", one α would give {spread.expected:.3f}. Within a prompt, `serial_product` asks whether "
        f"long rounds follow long ones: {verdict_in_words(result, 'serial_product')} "
        f"(p {p_words(result.results['serial_product'])})."
    ]
    rows, columns = by_previous(result.requests), _count_columns("round before")
    title = "Acceptance by the round before"
    return make_spec(experiment, "round_before", title, rows, columns, notes)


def _count_columns(head: str) -> tuple[Column, ...]:
    return (
        text("context", head),
        number("rounds", "rounds"),
        number("tested", "tested"),
        number("accepted", "accepted"),
        interval(("rate", "low", "high"), "rate [95 %]", 3),
        number("full", "full", 3),
    )


def _match_words(result: StudyResult) -> str:
    return ", ".join(
        f"E {evidence_words(float(found.statistic))}, p {p_words(found)} {name}"
        if isinstance(found, IidResult)
        else f"not applicable {name}: {found.reason}"
        for name, found in result.match.items()
    )


def _tested(result: StudyResult, test: str) -> dict[str, object]:
    found = result.results[test]
    families = {family: detectable_words(result.power, test, family) for family in EFFECTS}
    row: dict[str, object] = {"test": test, **families}
    row["verdict"] = verdict_in_words(result, test)
    if not isinstance(found, IidResult):
        return (
            row
            | dict.fromkeys(EFFECTS, NOTHING)
            | {"statistic": NOTHING, "p": NOTHING, "level": NOTHING, "method": NOTHING}
        )
    statistic = found.statistic
    return row | {
        "statistic": _statistic_words(statistic, test),
        "p": p_words(found),
        "level": f"{result.holm[test].level:.2g}",
        "method": found.method,
    }


def _statistic_words(statistic: int | float | Fraction, test: str) -> str:
    if test == "context_e":
        return evidence_words(float(statistic))
    is_whole = Fraction(statistic).denominator == 1
    return str(int(statistic)) if is_whole else f"{float(statistic):.1f}"


def _test_notes(experiment: Experiment, result: StudyResult, arm: str) -> list[str]:
    study = result.study
    bits = sum(map(len, study.bits))
    sizes = (
        f"Arm `{arm}`: {len(result.requests)} requests, {bits} tested bits by the data rule, "
        f"{sum(map(len, study.rounds))} complete rounds; `context_e` looks at "
        f"{sum(map(len, study.all_rounds))} rounds."
    )
    notes = [
        sizes,
        f"Pre-registered: Holm over the applicable tests at {result.level:g}; level: Holm's for "
        "that place in the order of p-values. Null: every draft is accepted independently until "
        "the first refusal, with one probability a request; `serial_product`: a request's rounds "
        "come in any order; `between_requests` and `context_e`: one probability for all. With "
        "greedy decoding and a deterministic drafter this is a model of the text.",
    ]
    evidence = result.results["context_e"]
    if isinstance(evidence, IidResult) and evidence.parts is not None:
        parts = ", ".join(
            f"{name} {evidence_words(value)}" for name, value in evidence.parts.items()
        )
        notes.append(f"`context_e` is the mean of three e-values: {parts}.")
    if result.power is None:
        return [*notes, "Power was not simulated for these requests: see the table of power."]
    studies = int(result.power["studies"].min())
    return [
        *notes,
        "Finds: the smallest pre-registered effect from which on all are found with power 0.8 at "
        f"Holm's entry level, {result.level / len(result.holm):.2g}, in {studies} simulated "
        "studies an effect with these requests and their mean acceptance (table of power): slope "
        "of the logit per draft of a round; two regimes of ± that many logits, which switch with "
        "chance 0.2 a round; intraclass correlation ρ of prompts.",
    ]


def _getter(key: str) -> Formatter:
    return lambda row: str(row[key])


def _row(name: str, rounds: pd.DataFrame, groups: Sequence[str]) -> dict[str, object]:
    if rounds.empty:
        chosen = matched = rounds
    else:
        chosen = rounds[rounds["group"].isin(groups)]
        matched = chosen[chosen["source"] != FILLER]
    return {
        "group": name,
        "prompts": 0 if chosen.empty else chosen["cell"].nunique(),
        "rounds": len(chosen),
        "fillers": len(chosen) - len(matched),
        "sum_draft": _sum(chosen, "draft_len"),
        "sum_accepted": _sum(chosen, "accepted_len"),
        "alpha_hat": _alpha(chosen),
        "alpha_matched": _alpha(matched),
    }


def _sum(rounds: pd.DataFrame, column: str) -> int:
    return 0 if rounds.empty else int(rounds[column].sum())


def _alpha(rounds: pd.DataFrame) -> float:
    tested = _sum(rounds, "tested_len")
    return _sum(rounds, "accepted_len") / tested if tested else float("nan")
