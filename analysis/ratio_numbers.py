"""Named numbers of arms against a base: ratios by cell and over all, null bands.

Guarantees: those that the tables print; a ratio and the ends of its interval have as many decimals
as the ratio deserves. Must never know what is said about a number.
"""

from __future__ import annotations

import pandas as pd

from analysis.effects import ALL_CELLS, NullBand, ratio_table
from analysis.load import Experiment
from analysis.named_number import NamedNumber, named

NULL_BAND_FORMULA = "outer bootstrap bounds of the central 95 % of null / base, 1 included"
ALL_FORMULA = "geometric mean over cells of paired ratios; 95 % bootstrap over blocks"
CELL_FORMULA = "geometric mean of paired ratios; 95 % bootstrap over blocks"
ALL = "all"  # how names call what tables call `ALL_CELLS`
DECIMALS = ((2.0, 3), (20.0, 2))  # below so much, so many decimals; else FEWEST
FEWEST = 1


def ratio_numbers(experiment: Experiment, jobs: pd.DataFrame, base: str) -> dict[str, NamedNumber]:
    """Every arm over `base`; names such as `all.planner.over.ar.ratio`, `chat.tree.over.ar.low`."""
    table, band = ratio_table(jobs, experiment.plan, base, experiment.measured_arms())
    numbers = _band_numbers(jobs, band)
    for row in table.itertuples():
        is_all = row.cell == ALL_CELLS
        used = jobs[jobs["arm"].isin([row.arm, base])]
        used = used if is_all else used[used["cell"] == row.cell]
        for column in ("ratio", "low", "high"):
            value = getattr(row, column)
            if not pd.isna(value):
                name = f"{ALL if is_all else row.cell}.{row.arm}.over.{base}.{column}"
                formula = ALL_FORMULA if is_all else CELL_FORMULA
                ids = list(used["receipt_id"])
                numbers[name] = named(value, ratio_decimals(row.ratio), "ratio", formula, ids)
    return numbers


def ratio_decimals(ratio: float) -> int:
    """Decimals of a ratio: about three digits that mean something."""
    return next((decimals for limit, decimals in DECIMALS if ratio < limit), FEWEST)


def _band_numbers(jobs: pd.DataFrame, band: NullBand) -> dict[str, NamedNumber]:
    if not band.is_established:
        return {}
    used = list(jobs[jobs["arm"].isin([band.base, band.null_arm])]["receipt_id"])
    return {
        f"null_band.{band.base}.{end}": named(
            getattr(band, end), 3, "ratio", NULL_BAND_FORMULA, used
        )
        for end in ("low", "high")
    }
