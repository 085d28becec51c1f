"""The audit's named numbers, each with the public files that it rests on.

Guarantees: a number is rounded once; its ids are names of files with the beginnings of their
digests, since the records have no ids of their own. Must never know what is said about a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from analysis.named_number import NamedNumber, named
from analysis.public.attestation import RING, cost_rows
from analysis.public.claim import Claim
from analysis.public.claims import claim_numbers
from analysis.public.decode import ON, decode_rows, split_rows, weighted_rows
from analysis.public.files import PAPER_OFF, PAPER_ON, PublicReceipts, set_digest
from analysis.public.law import DEPTH, DRAFT_LEN, law_rows
from analysis.public.quotes import quoted_numbers

Numbers = dict[str, NamedNumber]
EXPERIMENT, GENERATOR = "public", "analysis.public.audit"
PHASE_FILES = {ON: PAPER_ON, "off": PAPER_OFF}


def audit_numbers(public: PublicReceipts, claims: Sequence[Claim]) -> Numbers:
    """Every number that prose may use about the public receipts, by name."""
    ids = {phase: public.ids(name) for phase, name in PHASE_FILES.items()}
    jobs = {"on": len(public.on), "off": len(public.off)}
    return {
        **{
            f"jobs.{phase}": named(num, 0, "jobs", f"records, receipts {phase}", ids[phase])
            for phase, num in jobs.items()
        },
        **_decode_numbers(public, ids),
        **_split_numbers(public, ids),
        **_law_numbers(public, ids),
        **_attestation_numbers(public),
        **claim_numbers(public, claims),
        **quoted_numbers(),
    }


def _decode_numbers(public: PublicReceipts, ids: dict[str, list[str]]) -> Numbers:
    numbers: Numbers = {}
    for row in decode_rows(public).itertuples():
        name, own = f"{row.cell}.{row.arm}", ids[row.receipts]
        for end, value in (("median", row.tok_s), ("low", row.low), ("high", row.high)):
            formula = "new tokens / decode time, as published; over repetitions"
            numbers[f"{name}.tok_s.{end}"] = named(value, 2, "tokens/s", formula, own)
        formula = "median over repetitions"
        numbers[f"{name}.g"] = named(row.g, 2, "tokens/round", f"committed; {formula}", own)
        numbers[f"{name}.accepted"] = named(
            row.accept, 2, "tokens/round", f"drafts; {formula}", own
        )
        numbers[f"{name}.rounds"] = named(row.rounds, 0, "rounds", formula, own)
        numbers[f"{name}.wasted"] = named(row.wasted, 0, "replies", f"discarded; {formula}", own)
    for row in weighted_rows(public).itertuples():
        formula = f"Σ new tokens / Σ decode time, receipts {row.phase}"
        name = f"all.{row.arm}.tok_s.{row.phase}"
        numbers[name] = named(row.tok_s, 2, "tokens/s", formula, ids[row.phase])
    return numbers


def _split_numbers(public: PublicReceipts, ids: dict[str, list[str]]) -> Numbers:
    numbers: Numbers = {}
    for row in split_rows(public).itertuples():
        name, own = f"split.{row.phase}.{row.arm}", ids[row.phase]
        parts = (
            ("traversal", row.traversal), ("stage", row.stage), ("transport", row.transport)
        )  # fmt: skip
        for part, value in parts:
            numbers[f"{name}.{part}"] = named(value, 0, "ms", f"Σ {part} / Σ rounds", own)
        formula = "Σ transport / Σ traversal"
        numbers[f"{name}.transport_share"] = named(row.share, 0, "%", formula, own)
    return numbers


def _law_numbers(public: PublicReceipts, ids: dict[str, list[str]]) -> Numbers:
    numbers: Numbers = {}
    rows = law_rows(public)
    solved = f"α + … + α^{DRAFT_LEN} = accepted drafts a round, solved for α"
    for row in rows.itertuples():
        name, own = f"{row.cell}.chain", ids[row.receipts]
        numbers[f"{name}.alpha"] = named(row.alpha, 3, "alpha", solved, own)
        formula = "traversal / rounds of a job, median over repetitions"
        numbers[f"{name}.loop_ms"] = named(row.loop_ms, 0, "ms", formula, own)
        for form, value, words in (
            ("lockstep", row.lockstep, "closed form, one chunk a loop, the cell's α and T"),
            ("pipelined", row.pipelined, f"closed form, {DEPTH} chunks, the cell's α and T"),
            ("ceiling", row.ceiling, "1 / ((1 − α) T)"),
        ):
            numbers[f"{name}.law.{form}"] = named(value, 2, "tokens/s", words, own)
    every = [each for phase in ids.values() for each in phase]
    for end, value in (("low", rows["over"].min()), ("high", rows["over"].max())):
        formula = "closed form, one chunk a loop / measured median; over cells"
        numbers[f"law.lockstep.over.measured.{end}"] = named(value, 3, "ratio", formula, every)
    for end, value in (("low", rows["alpha"].min()), ("high", rows["alpha"].max())):
        numbers[f"law.alpha.{end}"] = named(value, 2, "alpha", f"{solved}; over cells", every)
    return numbers


def _attestation_numbers(public: PublicReceipts) -> Numbers:
    numbers: Numbers = {}
    ids = public.ids(PAPER_ON, PAPER_OFF)
    formula = "(span − compute), receipts on less off; means over cells of both files"
    for row in cost_rows(public).itertuples():
        place = row.stage if row.stage == RING else f"stage-{row.stage}"
        name = f"attestation.{row.arm}.{place}"
        numbers[f"{name}.ms"] = named(row.cost, 2, "ms", formula, ids)
        numbers[f"{name}.share"] = named(row.share, 2, "%", f"{formula}; over compute", ids)
    return numbers


def write_numbers(public: PublicReceipts, claims: Sequence[Claim], path: Path) -> None:
    """Write the numbers as `analysis.numbers` writes an experiment's."""
    document = {
        "generator": GENERATOR,
        "experiment": EXPERIMENT,
        "receipt_set_digest": set_digest(public.digests),
        "numbers": audit_numbers(public, claims),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    body = msgspec.json.encode(document, order="sorted")
    path.write_bytes(msgspec.json.format(body, indent=1) + b"\n")
