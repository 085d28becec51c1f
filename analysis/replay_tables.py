"""Replays of an experiment's texts on its modelled ring, from signed records (`bench replay`).

Guarantees: a record counts for an experiment only if every receipt that it replayed is one of its
own and its signature holds; where none was made there are no tables. A replay is a model, never a
measurement: the table of its error stands beside. Must never know files of receipts or axes.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pandas as pd

from analysis.load import Experiment, jobs_frame
from analysis.study_records import StudyRecord, study_records
from analysis.table_parts import make_spec
from analysis.table_spec import TableSpec, number, text
from bench.schema import Study

STUDY = "replay"
FIXED = re.compile(r"fixed-k(\d+)-d(\d+)")
NS_PER_S = 1_000_000_000
BOUND = "clairvoyant"
PLANNER = "planner"


def find_replay(experiment: Experiment, folder: Path | None = None) -> StudyRecord | None:
    """The newest signed replay of this experiment's receipts; None: none was recorded.

    Raises:
        ReceiptError: a record is damaged or signed by nobody known.
    """
    own = set(experiment.receipt_ids)
    for found in study_records(STUDY, folder):
        rows = found.record.rows
        if rows and {row["receipt"] for row in rows} <= own:
            return found
    return None


def replay_frame(record: Study) -> pd.DataFrame:
    """Replayed speed by cell and arm; columns cell, arm, tok_per_s, rounds."""
    rows = [
        {
            "cell": row["cell"],
            "arm": row["arm"],
            "tok_per_s": (int(row["output_tokens"]) - 1) / int(row["decode_ns"]) * NS_PER_S,
            "rounds": row["rounds"],
        }
        for row in record.rows
    ]
    return pd.DataFrame(rows, columns=["cell", "arm", "tok_per_s", "rounds"])


def replay_tables(experiment: Experiment) -> list[TableSpec]:
    """The grid, and how far the model is from the ring; none if nothing was recorded."""
    replay = find_replay(experiment)
    return [grid_table(experiment, replay), error_table(experiment, replay)] if replay else []


def grid_table(experiment: Experiment, replay: StudyRecord) -> TableSpec:
    """The planner beside the best fixed length and depth of the grid, and beside its bound."""
    replayed = replay_frame(replay.record)
    speeds = replayed.set_index(["cell", "arm"])["tok_per_s"]
    rows = []
    for cell in replayed["cell"].unique():
        of_cell = speeds.loc[cell]
        grid = of_cell[[arm for arm in of_cell.index if FIXED.fullmatch(arm)]]
        best = str(grid.idxmax()) if len(grid) else ""
        match = FIXED.fullmatch(best)
        rows.append(
            {
                "cell": cell,
                "best": f"k {match[1]}, depth {match[2]}" if match else "",
                "best_tok_per_s": grid.max() if len(grid) else float("nan"),
                "planner": of_cell.get(PLANNER, float("nan")),
                "clairvoyant": of_cell.get(BOUND, float("nan")),
            }
        )
    frame = pd.DataFrame(rows)
    frame["of_best"] = frame["planner"] / frame["best_tok_per_s"]
    frame["of_bound"] = frame["planner"] / frame["clairvoyant"]
    columns = (
        text("cell"),
        text("best", "best fixed"),
        number("best_tok_per_s", "its tok/s", 2),
        number("planner", "planner tok/s", 2),
        number("of_best", "planner / best fixed", 3),
        number("clairvoyant", "clairvoyant tok/s", 2),
        number("of_bound", "planner / clairvoyant", 3),
    )
    notes = [
        "Replayed, not measured: recorded texts, the real round machine, drafter and policy, a "
        "modelled ring fitted to this experiment's receipts. The best fixed setting is chosen cell "
        "by cell, afterwards; the planner chooses while it decodes.",
        _settings_note(replay),
    ]
    title = "Replay: the planner and every fixed setting"
    return make_spec(experiment, "replay_grid", title, frame, columns, notes)


def error_table(experiment: Experiment, replay: StudyRecord) -> TableSpec:
    """Replayed against measured speed of every arm that ran, by cell."""
    replayed = replay_frame(replay.record)
    jobs = jobs_frame(experiment)
    measured = jobs.groupby(["cell", "arm"])["decode_tok_per_s"].median().rename("measured")
    frame = replayed.merge(measured.reset_index(), on=["cell", "arm"], how="inner")
    frame["ratio"] = frame["tok_per_s"] / frame["measured"]
    columns = (
        text("cell"),
        text("arm"),
        number("measured", "measured tok/s", 2),
        number("tok_per_s", "replayed tok/s", 2),
        number("ratio", "replayed / measured", 3),
    )
    notes = ["Measured: median over reps.", *_error_notes(frame), _settings_note(replay)]
    title = "Replay: how far the model is from the ring"
    return make_spec(experiment, "replay_error", title, frame, columns, notes)


def _error_notes(frame: pd.DataFrame) -> list[str]:
    if frame.empty:
        return ["No replayed arm was measured."]
    by_arm = frame.groupby("arm", sort=False)["ratio"]
    return [
        "By arm, median (least to greatest): "
        + "; ".join(
            f"{arm} {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            for arm, ratios in by_arm
        )
        + "."
    ]


def _settings_note(replay: StudyRecord) -> str:
    settings = replay.record.settings
    return (
        f"Ring: {settings['profile']}, {settings['num_stages']} stages, overlap "
        f"{settings['overlap']} (n stages that compute at once run at 1 / (1 + overlap · (n − 1)) "
        f"of their speed alone). Record {replay.record_id}."
    )
