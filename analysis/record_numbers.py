"""Named numbers of signed study records, which belong to no experiment.

Guarantees: they are those of the records' tables; a study without a record has none. Must never
know what is said about a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from analysis import attack_table, challenge_table, head_products, keepwarm, peers_products
from analysis.named_number import NamedNumber, named
from analysis.study_records import StudyRecord, study_records

Numbers = dict[str, NamedNumber]
SEAL_STUDY, FUZZ_STUDY = "seal-cost", "transport-fuzz"
NS_PER_US = 1000.0
HONEST = "nothing"  # the attack of a ring that does not cheat


def record_numbers(records: Path | None = None) -> Numbers:
    """The numbers of the newest record of every study, and of all of the fuzzer's.

    Args:
        records: a folder of studies; None: the committed ones.
    """
    numbers: Numbers = {}
    for study, maker in MAKERS.items():
        found = study_records(study, records)
        if found:
            numbers |= maker(found[0])
    fuzzed = study_records(FUZZ_STUDY, records)
    if fuzzed:
        inputs = sum(int(row["inputs"]) for each in fuzzed for row in each.record.rows)
        ids = [each.record_id for each in fuzzed]
        formula = (
            "inputs to every target, both engines; a target that raises what it must not fails"
        )
        numbers["fuzz.inputs"] = named(inputs, 0, "inputs", formula, ids)
    return numbers


def _head(found: StudyRecord) -> Numbers:
    ids = [found.record_id]
    settings = found.record.settings
    numbers = {
        "head.distinct_tokens": named(
            int(settings["distinct_tokens"]), 0, "tokens", "answer tokens it learned from", ids
        )
    }
    for row in head_products.trials(found).itertuples():
        name = f"head.{row.group}.{row.shape}"
        numbers[f"{name}.first"] = named(row.first, 3, "share", "rounds with a right first", ids)
        for end, value in (("low", row.first_low), ("high", row.first_high)):
            formula = "95 % Clopper–Pearson of independent rounds"
            numbers[f"{name}.first.{end}"] = named(value, 3, "share", formula, ids)
        formula = "1 + accepted / rounds"
        numbers[f"{name}.tokens"] = named(row.tokens, 2, "tokens/traversal", formula, ids)
    return numbers


def _attacks(found: StudyRecord) -> Numbers:
    ids, rows = [found.record_id], pd.DataFrame(found.record.rows)
    tried = rows[rows["attack"] != HONEST]
    caught = tried[tried["found_by"] != "nothing"]
    named_right = caught[caught["named"] == caught["cheater"]]
    return {
        "attacks.tried": named(len(tried), 0, "attacks", "rings with one cheating stage", ids),
        "attacks.caught": named(len(caught), 0, "attacks", "statement or challenge fails", ids),
        "attacks.by_statement": named(
            int((caught["found_by"] == "statement").sum()), 0, "attacks", "statements fail", ids
        ),
        "attacks.named": named(len(named_right), 0, "attacks", "the cheater itself is named", ids),
    }


def _seal(found: StudyRecord) -> Numbers:
    ids, rows = [found.record_id], pd.DataFrame(found.record.rows)
    size = int(found.record.settings["payload_bytes"])
    numbers = {"seal_cost.payload": named(size / 1000, 0, "KB", "payload of a frame", ids)}
    for suite, own in rows.groupby("suite", sort=False):
        for key, name in (("seal_and_open_ns", "seal_and_open"), ("exchange_ns", "exchange")):
            numbers[f"seal_cost.{suite}.{name}"] = named(
                own[key].median() / NS_PER_US, 0, "µs", "median over exchanges of a frame", ids
            )
    return numbers


def _challenge(found: StudyRecord) -> Numbers:
    ids, cases = [found.record_id], challenge_table.cases(found)
    numbers: Numbers = {}
    for is_honest, name in ((1, "honest"), (0, "cheating")):
        own = cases[cases["honest"] == is_honest]
        for half in ("set_on", "held_out"):
            for column, unit in ((half, "stages"), (f"{half}_caught", "caught")):
                value = int(own[column].sum())
                formula = f"stages of {name} cases, cells {half}"
                numbers[f"challenge.{name}.{half}.{unit}"] = named(value, 0, unit, formula, ids)
    return numbers


def _peers(found: StudyRecord) -> Numbers:
    ids = [found.record_id]
    numbers: Numbers = {}
    for row in peers_products.speeds(found).itertuples():
        name = f"peers.{row.cell}.{row.side}"
        numbers[f"{name}.tok_per_s"] = named(
            row.tok_per_s, 1, "tokens/s", "median over rounds, tokens after the first ones", ids
        )
        formula = "geometric mean over rounds of ratios to the plain pipeline"
        numbers[f"{name}.over.ar"] = named(row.ratio, 2, "ratio", formula, ids)
    return numbers


def _keepwarm(found: StudyRecord) -> Numbers:
    ids = [found.record_id]
    numbers: Numbers = {}
    for row in keepwarm.pauses(found).itertuples():
        name = f"keepwarm.{row.control}.{row.size}.{row.idle_ms}"
        for side, value in (("cold", row.cold), ("warm", row.warm)):
            formula = "median from sending a frame to its answer"
            numbers[f"{name}.{side}"] = named(value, 1, "ms", formula, ids)
    return numbers


MAKERS: Mapping[str, Callable[[StudyRecord], Numbers]] = {
    head_products.EVALUATION: _head,
    attack_table.STUDY: _attacks,
    SEAL_STUDY: _seal,
    challenge_table.STUDY: _challenge,
    peers_products.STUDY: _peers,
    keepwarm.STUDY: _keepwarm,
}
