"""Is a draft's fate a property of its place in the text? The same drafts in other arms and reps.

Greedy decoding gives one text, so a draft is right or wrong by what the drafter proposes for a
position. Guarantees: counts only drafts that were tested, each place once. Must never know files or
axes.

Source: DESIGN section 14, "position determinism".
"""

from __future__ import annotations

import pandas as pd

from analysis.curves import chain_rounds
from analysis.load import Experiment, rounds_frame
from analysis.table_parts import make_spec
from analysis.table_spec import Column, TableSpec, text

# What the drafter's proposal hangs on: where the draft began and how much it matched there.
CONTEXT = ["cell", "position", "first_draft", "match_len", "source"]
PLACE = ["cell", "position"]
DRAFT_COLUMNS = (*CONTEXT, "arm", "rep", "accepted")
ALL_CELLS = "all cells"


def drafts_with_fates(experiment: Experiment) -> pd.DataFrame:
    """DRAFT_COLUMNS, one row per tested draft of a used job, whatever its arm."""
    rounds = chain_rounds(rounds_frame(experiment))
    rows = [
        (
            row.cell,
            row.first_draft + idx,
            row.first_draft,
            row.match_len,
            row.source,
            row.arm,
            row.rep,
            idx < row.accepted_len,
        )
        for row in rounds.itertuples()
        for idx in range(row.tested_len)
    ]
    return pd.DataFrame(rows, columns=list(DRAFT_COLUMNS))


def agreement_of(drafts: pd.DataFrame, keys: list[str], unit: str) -> tuple[int, int]:
    """(places with one fate, places) among those that at least two of `unit` tested.

    Args:
        drafts: DRAFT_COLUMNS.
        keys: what makes a place.
        unit: "rep" of one arm, or "arm".
    """
    by = [*keys, "arm"] if unit == "rep" else keys
    grouped = drafts.groupby(by)
    often = grouped[unit].nunique() >= 2
    alike = grouped["accepted"].nunique() == 1
    return int((often & alike).sum()), int(often.sum())


def determinism_table(experiment: Experiment) -> TableSpec:
    """Places tested more than once, and how many of them had one fate, by cell."""
    drafts = drafts_with_fates(experiment)
    nulls = set(experiment.plan.null_pairs)  # other names, no other arms
    cells = [cell.name for cell in experiment.plan.cells]
    rows = []
    for cell in [*cells, ALL_CELLS]:
        chosen = drafts if cell == ALL_CELLS else drafts[drafts["cell"] == cell]
        row = {"cell": cell}
        for name, keys, unit in (
            ("reps", CONTEXT, "rep"),
            ("arms", CONTEXT, "arm"),
            ("places", PLACE, "arm"),
        ):
            others = chosen if unit == "rep" else chosen[~chosen["arm"].isin(nulls)]
            row[name] = _words(*agreement_of(others, keys, unit))
        rows.append(row)
    columns = (
        text("cell"),
        Column("same arm, other reps", lambda row: str(row["reps"])),
        Column("other arms, same context", lambda row: str(row["arms"])),
        Column("other arms, same position", lambda row: str(row["places"])),
    )
    notes = [
        "Drafted places that were tested at least twice: how many of them were accepted every time "
        "or refused every time, of how many. Context: position, where the draft began, its source "
        "and how many tokens it had matched. Null arms are no other arms. Greedy decoding gives "
        "every arm of one numeric configuration one text, so only another proposal for a position "
        "can change its fate."
    ]
    frame = pd.DataFrame(rows)
    title = "Is a draft's fate a property of its place?"
    return make_spec(experiment, "determinism", title, frame, columns, notes)


def _words(alike: int, total: int) -> str:
    return f"{alike}/{total}" if total else "–"
