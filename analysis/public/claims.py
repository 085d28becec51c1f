"""The audit's claims in reading order, and the table of them.

Guarantees: every claim is made anew from the files, its key once; a claim is one function and one
entry here. Must never know how one is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from analysis.named_number import NamedNumber, named
from analysis.public import method_claims as method
from analysis.public import run_claims as runs
from analysis.public import speed_claims as speed
from analysis.public.claim import VERDICTS, Claim, ClaimMaker
from analysis.public.files import PublicReceipts
from analysis.table_spec import NOTHING, TableSpec, text

CLAIMS: tuple[ClaimMaker, ...] = (
    speed.plain_speed,
    speed.interactive_speed,
    speed.novel_ceiling,
    speed.same_tokens,
    speed.tool_call,
    speed.draftable_speed,
    speed.context_8k,
    speed.context_30k,
    speed.prefill_30k,
    speed.transport_share,
    speed.stage_spread,
    method.depth_tried,
    method.one_loop_time,
    method.calibrated_ends,
    method.interleaved,
    method.rotated,
    method.receipt_cost,
    method.end_to_end_cost,
    method.verified_jobs,
    runs.stage_receipts,
    runs.ring_countries,
    *runs.UNTESTED,
    runs.tree_by_cell,
    runs.tree_over_all,
    runs.matrix_headline,
    runs.matrix_speedup,
    runs.matrix_lossless,
    runs.matrix_ring,
)
TITLE = "Published claims and what the public receipts say of them"


def all_claims(public: PublicReceipts) -> list[Claim]:
    """Every claim, judged."""
    return [maker(public) for maker in CLAIMS]


def claims_table(public: PublicReceipts, claims: Sequence[Claim]) -> TableSpec:
    """One row a claim."""
    rows = pd.DataFrame(
        [
            {
                "claim": claim.claim,
                "receipts": claim.finding,
                "verdict": claim.verdict,
                "files": " ".join(claim.files) or NOTHING,
            }
            for claim in claims
        ]
    )
    columns = (
        text("claim"),
        text("receipts", "what the receipts say"),
        text("verdict"),
    )
    notes = (
        "Claims of the paper, its figures and the files' own summaries, in our words. Supported: "
        "the files show it; not supported: the files show otherwise; not testable: nothing in the "
        "files decides it. The rule of each verdict stands with its function in the source.",
    )
    return TableSpec("claims", TITLE, rows, columns, notes, public.provenance)


def claim_numbers(public: PublicReceipts, claims: Sequence[Claim]) -> dict[str, NamedNumber]:
    """The numbers in the findings, and how many claims have which verdict."""
    verdicts = Counter(claim.verdict for claim in claims)
    ids = public.ids(*public.digests)
    numbers = {"claims.all": named(len(claims), 0, "claims", "rows of the table of claims", ids)}
    for verdict in VERDICTS:
        name = f"claims.{verdict.replace(' ', '_')}"
        numbers[name] = named(verdicts[verdict], 0, "claims", f"verdict: {verdict}", ids)
    for claim in claims:
        numbers |= claim.numbers
    return numbers
