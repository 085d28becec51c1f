"""Tables of the acceptance study: its drafts by group of prompts.

Guarantees: every planned group has a row; fillers are counted apart. Must never know files, and
claims nothing about independence: that is the exact tests' business.
"""

from __future__ import annotations

import pandas as pd

from analysis.curves import chain_rounds
from analysis.load import Experiment, groups_of, rounds_frame
from analysis.table_parts import make_spec
from analysis.table_spec import TableSpec, number, text

FILLER = "filler"
ALL_GROUPS = "all groups"


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


def _row(name: str, rounds: pd.DataFrame, groups: list[str]) -> dict[str, object]:
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
