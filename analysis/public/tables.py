"""The audit's tables: speeds, law, split, cost of signing, sources.

Guarantees: a table prints rows that other modules computed and names the files that they came from.
Must never know how a row is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.public.attestation import RING, WEIGHTINGS, cost_rows, ring_rows
from analysis.public.claim import Claim
from analysis.public.claims import claims_table
from analysis.public.decode import (
    ALL_CELLS,
    ON,
    decode_rows,
    jobs_frame,
    split_rows,
    stage_rows,
    weighted_rows,
)
from analysis.public.files import (
    ID_LEN,
    MATRIX,
    PAPER_OFF,
    PAPER_ON,
    REAL_RING,
    TREE_TRIAL,
    PublicReceipts,
)
from analysis.public.law import DEPTH, DRAFT_LEN, law_rows
from analysis.public.quotes import QUOTES
from analysis.table_spec import Column, TableSpec, interval, number, text

HOLDS: dict[str, str] = {
    PAPER_ON: "jobs of the paper's bench, stages signing",
    PAPER_OFF: "jobs of the same bench, nobody signing",
    REAL_RING: "signed stage receipts of one job of a later ring",
    TREE_TRIAL: "summary of trees against chains, no jobs",
    MATRIX: "summary of a later engine by workload and context",
}


def decode_table(public: PublicReceipts) -> TableSpec:
    """The paper's decode table, from its own records."""
    rows = decode_rows(public)
    totals = weighted_rows(public)
    totals = totals[totals["phase"] == ON].assign(cell=ALL_CELLS, receipts=ON)
    table = pd.concat([rows, totals[["cell", "receipts", "arm", "n", "tok_s"]]], ignore_index=True)
    columns = (
        text("cell"),
        number("prompt_tokens", "prompt tokens"),
        text("receipts"),
        text("arm"),
        number("n", "jobs"),
        interval(("tok_s", "low", "high"), "tok/s [min–max]", 2),
        number("g", "g", 2),
        number("accept", "accepted/round", 2),
        number("rounds", "rounds"),
        number("wasted", "wasted"),
    )
    jobs = jobs_frame(public)
    most = 100.0 / jobs["new_tokens"].min()
    varying = int((rows["varies"] > 0).sum())
    notes = (
        "tok/s as published: new tokens over decode time, median over repetitions. The token of "
        f"the prompt pass is counted, so speeds are up to {most:.1f} % above those of this "
        f"report's definition. `{ALL_CELLS}`: Σ tokens / Σ decode time. g: committed tokens a "
        "round; wasted: replies that were discarded. Counts differ between repetitions in "
        f"{varying} of {len(rows)} rows. Cells that the file with receipts lacks are from the one "
        "without.",
    )
    return TableSpec(
        "decode", "The published decode table", table, columns, notes, public.provenance
    )


def law_table(public: PublicReceipts) -> TableSpec:
    """Implied acceptance and what the law makes of it."""
    columns = (
        text("cell"),
        text("receipts"),
        number("accept", "accepted/round", 2),
        number("alpha", "implied α", 3),
        number("loop_ms", "T (ms)", 0),
        number("measured", "measured tok/s", 2),
        number("lockstep", "law, one chunk a loop", 2),
        number("over", "law / measured", 3),
        number("pipelined", f"law, {DEPTH} chunks", 2),
        number("ceiling", "ceiling", 2),
    )
    notes = (
        f"Chain. α: solved from accepted drafts a round, E[a] = α + … + α^K, K = "
        f"{DRAFT_LEN}; the law's tokens a loop are then the measured ones, so law / measured tests "
        "the loop time alone: what is above 1 is time spent outside traversals. T: traversal over "
        f"rounds of a job. Medians over repetitions. {DEPTH} chunks: what the law says of a depth "
        "that these jobs did not have. Ceiling: 1 / ((1 − α) T).",
    )
    title = "The published law on the published cells"
    return TableSpec("law", title, law_rows(public), columns, notes, public.provenance)


def split_table(public: PublicReceipts) -> TableSpec:
    """Where a round's time went, by phase and arm; stages' compute beside it."""
    rows = split_rows(public)
    stages = stage_rows(public)
    compute = stages.pivot_table(index=["phase", "arm"], columns="stage", values="compute")
    names = list(compute.columns)
    rows = rows.merge(compute.add_prefix("stage_").reset_index(), on=["phase", "arm"])
    jobs = jobs_frame(public)
    most = 100.0 * (jobs["new_tokens"] / (jobs["g"] * jobs["rounds"]) - 1.0).max()
    columns = (
        text("phase", "receipts"),
        text("arm"),
        number("n", "jobs"),
        number("traversal", "traversal (ms)"),
        number("stage", "stages (ms)"),
        number("transport", "transport (ms)"),
        number("share", "transport (%)"),
        number("g", "tokens/round", 2),
        *(number(f"stage_{name}", f"stage {name} (ms)", 1) for name in names),
    )
    notes = (
        "A round: Σ over jobs / Σ rounds; the paper's figure divides by Σ (new tokens / g), which "
        f"counts up to {most:.1f} % more rounds. Traversals of frames in flight together overlap, "
        "so a hybrid round's transport holds waiting too. Stage columns: computing of a frame, "
        "mean over frames.",
    )
    title = "Where a traversal's time went"
    return TableSpec("split", title, rows, columns, notes, public.provenance)


def attestation_table(public: PublicReceipts) -> TableSpec:
    """What signing cost, by arm and stage."""
    columns = (
        text("arm"),
        text("stage"),
        number("gap_off", "span − compute, off (ms)", 3),
        number("gap_on", "on (ms)", 3),
        number("cost", "cost (ms)", 3),
        number("compute", "compute (ms)", 2),
        number("share", "cost (% of compute)", 2),
        number("shift", "change of span (%)", 2),
    )
    rings = ring_rows(public)
    ranges = ", ".join(
        f"{arm} {_ends(own['share'])} %" for arm, own in rings.groupby("arm", sort=False)
    )
    notes = (
        "A frame: means over the cells of both files, each counting once. Cost: span − compute "
        "with receipts less the same without; hashing stands there, and drift of computing "
        f"cancels. `{RING}`: sum over stages. Over {len(WEIGHTINGS)} weightings "
        f"({', '.join(WEIGHTINGS)}) the ring's cost is {ranges} of compute; published: "
        f"{QUOTES['receipt_cost']} %. Change of span: the same difference without taking compute "
        "off, which drift moves.",
    )
    title = "What signing cost the published stages"
    return TableSpec("attestation", title, cost_rows(public), columns, notes, public.provenance)


def sources_table(public: PublicReceipts) -> TableSpec:
    """The files, their digests and what they hold."""
    matrix, trial = public.matrix, public.tree_trial
    sizes = {
        PAPER_ON: f"{len(public.on)} jobs",
        PAPER_OFF: f"{len(public.off)} jobs",
        REAL_RING: f"{len(public.real_ring.receipts)} receipts",
        TREE_TRIAL: f"{len(trial.cells)} cells",
        MATRIX: f"{len(matrix.matrix)} rows",
    }
    rows = pd.DataFrame(
        [
            {"file": name, "holds": HOLDS[name], "size": sizes[name], "sha256": digest}
            for name, digest in public.digests.items()
        ]
    )
    columns = (
        text("file"),
        text("holds"),
        text("size"),
        Column("SHA-256", _shortened, is_number=False),
    )
    notes = (
        "From `docs/receipts` of the public repository `leyten/shard`. A file with another digest "
        "is refused. The jobs' records are not signed; the stage receipts are.",
    )
    return TableSpec("sources", "The public files", rows, columns, notes, public.provenance)


def _ends(values: pd.Series) -> str:
    """The least and the greatest, or the one value that both are when rounded."""
    return "–".join(dict.fromkeys(f"{value:.2f}" for value in (values.min(), values.max())))


def _shortened(row: dict[str, object]) -> str:
    """A digest as ids have it; the whole one is in the CSV."""
    return f"{str(row['sha256'])[:ID_LEN]}…"


def all_tables(public: PublicReceipts, claims: Sequence[Claim]) -> list[TableSpec]:
    """Every table of the audit, in reading order; `claims` as `all_claims` judged them."""
    return [
        sources_table(public),
        decode_table(public),
        law_table(public),
        split_table(public),
        attestation_table(public),
        claims_table(public, claims),
    ]
