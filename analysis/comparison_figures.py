"""The figure of an experiment that changes one lever: ratios, whiskers, null bands.

Guarantees: a panel per comparison of `analysis.comparisons`, the same numbers as in its table.
Must never know files, nor compute a statistic that a table could not print.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.comparisons import Compared, compare
from analysis.effects import ALL_CELLS, NullBand
from analysis.figure_file import Drawing, caption
from analysis.load import Experiment, jobs_frame
from analysis.panels import ROW_INCHES, draw_rows, label_cells, mark_one, stacked
from engine.errors import ReceiptError

PANEL_INCHES = 3.2
LABEL_INCHES = 1.2


def draw_comparisons(experiment: Experiment) -> Drawing:
    """Ratios of decode_tok_per_s by cell and over all cells, beside their null arm and band."""
    found = compare(experiment)
    if not found:
        raise ReceiptError("no used job of any base arm: no ratios to draw")
    cells = [*(cell.name for cell in experiment.plan.cells), ALL_CELLS]
    num_arms = max(len(compared.arms) for compared in found)
    width = LABEL_INCHES + PANEL_INCHES * max(len(found), 1.4)  # one panel alone needs its caption
    figure = Figure(figsize=(width, 1.7 + ROW_INCHES * (num_arms + 1) * len(cells)))
    panels = list(figure.subplots(1, len(found), sharey=True, squeeze=False)[0])
    tables = []
    for axes, compared in zip(panels, found, strict=True):
        points = compared.ratios[compared.ratios["ratio"].notna()]
        points = points.rename(columns={"ratio": "middle", "blocks": "n"})
        mark_one(axes, compared.band.low, compared.band.high)
        draw_rows(axes, points, list(compared.arms), cells)
        axes.set_xlabel(f"decode_tok_per_s, ratio to {compared.base}\n(linear scale)")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        tables.append(points.assign(band_low=compared.band.low, band_high=compared.band.high))
    label_cells(panels, cells, num_arms)
    drawn = [axes.get_legend_handles_labels() for axes in panels]
    handles = [handle for some, _ in drawn for handle in some]
    labels = [label for _, some in drawn for label in some]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    caption(figure, _caption(experiment, found))
    jobs = jobs_frame(experiment)
    used = {arm for compared in found for arm in (compared.base, *compared.arms)}
    return Drawing(figure, stacked(tables), list(jobs[jobs["arm"].isin(used)]["receipt_id"]))


def bands_in_words(bands: Sequence[NullBand]) -> str:
    """Each band with its base and its blocks, as captions print them."""
    shown = [
        f"{band.base} {band.low:.3f}–{band.high:.3f} ({band.num_blocks} blocks)"
        if band.is_established
        else f"{band.base} not established"
        for band in bands
    ]
    return "; ".join(shown)


def _caption(experiment: Experiment, found: Sequence[Compared]) -> str:
    bands = bands_in_words([compared.band for compared in found])
    return (
        f"Interleaved reps: n = {experiment.plan.reps}. Geometric mean of ratios paired within "
        "blocks, 95 % bootstrap over blocks. Grey: null bands (bootstrap bounds of the central "
        f"95 % of null / base): {bands}. Hollow: null arms."
    )
