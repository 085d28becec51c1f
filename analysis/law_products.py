"""What the law says and what was measured: table, numbers and figures over all experiments.

Guarantees: predicted speeds stand beside measured ones, of cells that the fit had not seen apart
from those that it had; every arm of every timed experiment is in the table. Must never know files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arm_slots import in_reading_order
from analysis.checks import ROUND_OUTCOMES
from analysis.closed_form import crossover
from analysis.curves import first_rep
from analysis.load import Experiment, rounds_frame
from analysis.named_number import NamedNumber, named
from analysis.predictions import all_predictions, by_arm_and_cell
from analysis.table_spec import NOTHING, Column, TableSpec, number, rounded, text
from engine.errors import ReceiptError

COVER_EXPERIMENT = "hybrid"  # has a tree and a chain by the same drafter
PUBLISHED_COVER = 1.26  # of the public system's own figure; ours is measured
CAPS = range(1, 13)
SHAPES = (
    (8, 4),
    (16, 4),
    (16, 8),
)  # (draft length, depth) of the chains that a tree is set against
RATIO = "geometric mean over cells of predicted / measured tok/s (medians over reps)"


@dataclass(frozen=True, slots=True)
class Cover:
    """A tree's first level over a chain's first draft, as acceptance rates."""

    ratio: float
    receipt_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """Predictions of all experiments, a row a job, and why some rings could not be fitted."""

    jobs: pd.DataFrame
    unfitted: tuple[str, ...]
    digests: tuple[str, ...]  # of the receipt sets

    @property
    def cells(self) -> pd.DataFrame:
        """A row per experiment, ring, arm and cell."""
        return by_arm_and_cell(self.jobs)

    @property
    def provenance(self) -> str:
        """What a product says that it was made from."""
        names, digests = self.jobs["experiment"].unique(), (each[:16] for each in self.digests)
        return f"experiments {', '.join(names)}; receipts {', '.join(digests)}"


def study_law(experiments: Sequence[Experiment]) -> Law:
    """Fit every ring and predict every job.

    Raises:
        ReceiptError: no ring could be fitted.
    """
    jobs, unfitted = all_predictions(experiments)
    used = set(jobs["experiment"])
    digests = [each.receipt_set_digest for each in experiments if each.plan.experiment in used]
    return Law(jobs, tuple(unfitted), tuple(digests))


def error_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """A row per experiment, ring and arm: geometric means and extremes of predicted / measured."""
    rows = []
    keys = ["experiment", "profile", "num_stages", "arm"]
    for key, own in cells.groupby(keys, sort=False):
        checked, seen = own[own["is_checked"]], own[~own["is_checked"]]
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "checked": len(checked),
                **_spread("ring", checked["ring_ratio"]),
                **_spread("seen", seen["ring_ratio"]),
                **_spread("closed", own["closed_ratio"].dropna()),
            }
        )
    table = pd.DataFrame(rows)
    order = {arm: idx for idx, arm in enumerate(in_reading_order(table["arm"]))}
    return table.sort_values(
        ["experiment", "num_stages", "arm"],
        key=lambda column: column.map(order) if column.name == "arm" else column,
        kind="stable",
        ignore_index=True,
    )


def _spread(name: str, ratios: pd.Series) -> dict[str, float]:
    if ratios.empty:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), float("nan"))
    middle = float(np.exp(np.log(ratios).mean()))
    return {name: middle, f"{name}_low": float(ratios.min()), f"{name}_high": float(ratios.max())}


def law_table(study: Law) -> TableSpec:
    """Predicted over measured speed by arm."""
    columns = (
        text("experiment"),
        text("profile"),
        number("num_stages", "stages"),
        text("arm"),
        number("checked", "cells checked"),
        _ranged("ring", "ring model, unseen cells [min–max]"),
        _ranged("seen", "ring model, fitted cells [min–max]"),
        _ranged("closed", "closed form, all cells [min–max]"),
    )
    notes = [
        "Predicted / measured decode_tok_per_s: geometric mean over cells of medians over reps, "
        "and the least and greatest cell. The ring model takes from a receipt which frames were "
        "sent and which reply led to which, and from the fitted ring when; the fit has seen "
        "every other cell. The closed form takes the chance that the next token is drafted and "
        "right from the cell itself and holds it for independent, so it is asked of fixed lengths "
        "only.",
        *(f"Not fitted: {reason}." for reason in study.unfitted),
    ]
    return TableSpec(
        name="law",
        title="What the law predicts, over what was measured",
        rows=error_rows(study.cells),
        columns=columns,
        notes=tuple(notes),
        provenance=study.provenance,
    )


def prediction_table(study: Law) -> TableSpec:
    """Predicted beside measured speed, a row a cell and arm."""
    rows = study.cells.assign(
        ring_error=lambda own: 100 * (own["ring_ratio"] - 1),
        closed_error=lambda own: 100 * (own["closed_ratio"] - 1),
    )
    columns = (
        text("experiment"),
        text("profile"),
        number("num_stages", "stages"),
        text("cell"),
        text("arm"),
        Column("fit", lambda row: "unseen" if row["is_checked"] else "fitted", is_number=False),
        number("measured", "measured tok/s", 2),
        number("ring_model", "ring model", 2),
        number("ring_error", "error (%)", 0),
        number("closed_form", "closed form", 2),
        number("closed_error", "error (%)", 0),
        number("alpha", "α", 3),
        number("loop_s", "T (s)", 3),
    )
    notes = (
        "Medians over reps. Fit: whether the ring was fitted on this cell. α: chance that the next "
        "token is drafted and right, in this arm on this cell; T: time of a loop that the closed "
        "form was reckoned with. How both predictions are made: `law`.",
    )
    title = "Predicted beside measured speed"
    return TableSpec("predictions", title, rows, columns, notes, study.provenance)


def _ranged(name: str, header: str) -> Column:
    def cell(row: dict[str, object]) -> str:
        middle, low, high = (rounded(row[key], 2) for key in (name, f"{name}_low", f"{name}_high"))
        return middle if middle == NOTHING else f"{middle} [{low}–{high}]"

    return Column(header, cell)


def law_numbers(study: Law) -> dict[str, NamedNumber]:
    """Errors by arm and over all, and the crossovers."""
    numbers: dict[str, NamedNumber] = {}
    cells = study.cells
    ids = study.jobs.groupby(["experiment", "num_stages", "arm"])["receipt_id"].agg(list)
    for row in error_rows(cells).itertuples():
        place = (row.experiment, row.num_stages, row.arm)
        for form, value in (("ring", row.ring), ("closed", row.closed)):
            if not np.isnan(value):
                name = f"{row.experiment}.s{row.num_stages}.{row.arm}.{form}"
                which = "unseen" if form == "ring" else "all"
                numbers[name] = named(value, 2, "ratio", f"{RATIO}; {which} cells", ids[place])
    checked = cells[cells["is_checked"]]
    used = list(study.jobs[study.jobs["is_checked"]]["receipt_id"])
    for form, ratios in (
        ("ring", checked["ring_ratio"]),
        ("closed", checked["closed_ratio"].dropna()),
    ):
        errors = np.abs(np.log(ratios))
        numbers[f"all.{form}.error.median"] = named(
            float(np.expm1(errors.median())) * 100,
            0,
            "%",
            "median over unseen cells and arms of exp|log(predicted / measured)| − 1",
            used,
        )
        numbers[f"all.{form}.error.p90"] = named(
            float(np.expm1(errors.quantile(0.9))) * 100, 0, "%", "the same, 90th percentile", used
        )
        numbers[f"all.{form}.cells"] = named(len(ratios), 0, "cells", "unseen cells × arms", used)
    return numbers


def crossover_numbers(cover: Cover) -> dict[str, NamedNumber]:
    """Acceptance above which a chain of 8 drafts, 4 deep, is faster than a tree, by its levels."""
    ids = list(cover.receipt_ids)
    formula = "first level of tree / first draft of chain-eagle, accepted / tested"
    numbers = {"cover": named(cover.ratio, 2, "ratio", formula, ids)}
    for name, ratio, own in (("published", PUBLISHED_COVER, []), ("measured", cover.ratio, ids)):
        for cap in CAPS:
            found = crossover(8, 4, ratio, cap)
            if found is not None:
                formula = f"closed form, K = 8, D = 4, a level covers {ratio:.2f} × alpha"
                numbers[f"crossover.{name}.cap{cap}"] = named(found, 2, "alpha", formula, own)
    return numbers


def tree_cover(experiment: Experiment) -> Cover:
    """How much likelier the first level of a tree holds the right token than a chain's first draft.

    Raises:
        ReceiptError: the experiment has no used job of both arms.
    """
    rounds = first_rep(rounds_frame(experiment))
    rates, ids = [], []
    for arm, source in (("tree", "tree"), ("chain-eagle", "eagle")):
        own = (
            rounds[(rounds["arm"] == arm) & (rounds["source"] == source)] if len(rounds) else rounds
        )
        own = own[own["outcome"].isin(ROUND_OUTCOMES)] if len(own) else own
        tested = int((own["tested_len"] >= 1).sum()) if len(own) else 0
        accepted = int((own["accepted_len"] >= 1).sum()) if len(own) else 0
        if not accepted:
            raise ReceiptError(f"no accepted draft of {arm}: a tree's cover cannot be measured")
        rates.append(accepted / tested)
        ids += list(own["receipt_id"].unique())
    return Cover(rates[0] / rates[1], tuple(ids))
