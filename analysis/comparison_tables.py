"""Tables of the experiments that change one lever: sealing, and fp8 between stages.

Guarantees: each arm stands beside the arm without the lever, with that pair's own null band; fp8
jobs are judged by the ids of their own numeric configuration, and what their ids have in common
with f32's is shown in a table of its own. Must never know files or axes.
"""

from __future__ import annotations

import pandas as pd

from analysis.agreement import compare_ids
from analysis.comparisons import COMPARISONS, compare
from analysis.effects import ALL_CELLS
from analysis.load import Experiment, jobs_frame
from analysis.table_parts import (
    SPEED_NOTE,
    band_note,
    lossless_counts,
    make_spec,
    resolution_note,
    speeds,
    verdict_words,
)
from analysis.table_spec import NOTHING, Column, TableSpec, interval, number, rounded, text

F32_PAIRS = (("ar-fp8", "ar"),)  # fp8 arm, f32 reference
OWN_PAIRS = (("chain-fp8", "ar-fp8"),)  # fp8 arm, fp8 reference


def seal_table(experiment: Experiment) -> TableSpec:
    """Sealed arms against unprotected frames, by cell and over all cells."""
    title = "Sealed frames against unprotected ones"
    note = "Lossless: jobs whose output ids equal the reference job's (`ar`), of the planned."
    return _comparison_table(experiment, "seal", title, "lossless", note)


def fp8_speed_table(experiment: Experiment) -> TableSpec:
    """Arms with fp8 between stages against their f32 twins, by cell and over all cells."""
    title = "Speed with hidden states in fp8"
    note = (
        "Own ids: jobs whose output ids equal those of the reference job of their own numeric "
        "configuration (`ar`, or `ar-fp8` for fp8 arms), of the planned. fp8 gives another text "
        "than f32 where the table of ids says so; twins may then have unlike numbers of tokens, "
        "rounds and accepted drafts."
    )
    return _comparison_table(experiment, "fp8_speed", title, "own ids", note)


def fp8_ids_table(experiment: Experiment) -> TableSpec:
    """Where fp8 ids part from f32 ids, and whether speculation keeps those of `ar-fp8`."""
    tables = [
        compare_ids(experiment, arm, base).assign(arm=arm, base=base)
        for arm, base in (*F32_PAIRS, *OWN_PAIRS)
        if arm in experiment.measured_arms()
    ]
    rows = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["cell"])
    columns = (
        text("cell"),
        text("arm"),
        text("base", "compared with"),
        Column("equal jobs", lambda row: f"{row['equal']}/{row['planned']}"),
        number("output_len", "output tokens"),
        Column("first difference", lambda row: span(row, "first_difference", "last_difference")),
        Column("equal leading tokens", _share),
    )
    notes = [
        "First difference: index of the first output id that differs from the reference job's of "
        "the same block (a range where blocks disagree; — where none does). Equal leading tokens: "
        "that index over the length of the longer output, the smallest over blocks.",
        "`ar-fp8` beside `ar`: two numeric configurations; a difference is what rounding hidden "
        "states does to the text, not a fault. `chain-fp8` beside `ar-fp8`: one configuration; "
        "every id must be equal.",
    ]
    return make_spec(experiment, "fp8_ids", "Output ids with fp8 and f32", rows, columns, notes)


def span(row: dict[str, object], low: str, high: str, decimals: int = 0) -> str:
    """A number, or a range where its two ends print unlike."""
    ends = rounded(row[low], decimals), rounded(row[high], decimals)
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


def _comparison_table(
    experiment: Experiment, name: str, title: str, ids_header: str, ids_note: str
) -> TableSpec:
    found = compare(experiment)
    absent = {pair.base for pair in COMPARISONS[experiment.plan.experiment]}
    absent -= {compared.base for compared in found}
    notes = [resolution_note(experiment), *(band_note(compared.band) for compared in found)]
    notes += [f"No used job of `{base}`: no ratios to it." for base in sorted(absent)]
    rows = pd.DataFrame(columns=["cell"])
    if found:
        cells = [cell.name for cell in experiment.plan.cells]
        parts = [(_base_rows(compared.base, cells), compared.ratios) for compared in found]
        rows = pd.concat([rows for pair in parts for rows in pair], ignore_index=True)
        order = [*cells, ALL_CELLS]
        rows = rows.sort_values("cell", key=lambda cells: cells.map(order.index), kind="stable")
        measured = speeds(jobs_frame(experiment)).reset_index()
        rows = rows.merge(measured, on=["cell", "arm"], how="left")
        rows = rows.merge(_counts_with_total(experiment), on=["cell", "arm"], how="left")
    columns = (
        text("cell"),
        text("arm"),
        interval(("median_tok_per_s", "min_tok_per_s", "max_tok_per_s"), "tok/s [min–max]", 2),
        text("base", "divided by"),
        number("blocks", "blocks"),
        interval(("ratio", "low", "high"), "ratio [95 %]", 3),
        Column("verdict", verdict_words, is_number=False),
        Column(ids_header, lambda row: f"{row['identical']}/{row['planned']}"),
    )
    return make_spec(experiment, name, title, rows, columns, [*notes, f"{SPEED_NOTE} {ids_note}"])


def _base_rows(base: str, cells: list[str]) -> pd.DataFrame:
    """The base arm's own rows: a speed and no ratio."""
    missing = dict.fromkeys(("blocks", "ratio", "low", "high"), float("nan"))
    return pd.DataFrame({"cell": cells}).assign(arm=base, base=NOTHING, verdict=NOTHING, **missing)


def _counts_with_total(experiment: Experiment) -> pd.DataFrame:
    counts = lossless_counts(experiment)
    totals = counts.groupby("arm")[["identical", "planned"]].sum().reset_index()
    return pd.concat([counts, totals.assign(cell=ALL_CELLS)], ignore_index=True)


def _share(row: dict[str, object]) -> str:
    share = rounded(row["equal_frac"], 3)
    return share if share == NOTHING else f"{100 * float(share):.1f} %"
