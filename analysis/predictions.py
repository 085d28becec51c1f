"""Speeds that the law and the ring model predict, beside those that were measured.

A ring is fitted on the jobs of every other cell of an experiment, in the plan's order, and predicts
all of them; only those of the cells that it was not fitted on are a check. Guarantees: fitted apart
for every ring and numeric configuration; an experiment that cannot be fitted is named with its
reason, never dropped. Must never know files or axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import pandas as pd

from analysis.checks import is_round
from analysis.closed_form import ceiling, chain_rate, lockstep_rate
from analysis.load import NS_PER_S, Experiment, job_measures
from analysis.retime import HeadTimes, fit_head, modelled_decode_s
from bench.overlap import fit_overlap
from bench.ring_fit import fit_ring
from bench.ring_model import RingModel, RingShape
from bench.schema import Receipt
from engine.errors import ReceiptError

SOURCES = ("none", "ngram", "eagle", "tree")  # drafters whose every round has one known shape
NEAR = 2.0  # a ceiling so many times above the fastest point would only flatten a figure
EVEN_SHARE = 1.0  # overlap where no frame had company: stages share the cores evenly
COLUMNS = (
    "experiment",
    "profile",
    "num_stages",
    "arm",
    "cell",
    "is_checked",
    "receipt_id",
    "measured",
    "ring_model",
    "closed_form",
    "alpha",
    "loop_s",
)


@dataclass(frozen=True, slots=True)
class FittedRing:
    """One ring's costs, the coordinator's and the stages'."""

    shape: RingShape
    head: HeadTimes

    def loop_s(self, start: int, positions_len: int, source: str) -> float:
        """Seconds from one frame's sending to the next one's, nothing else in the ring."""
        ring = RingModel(self.shape)
        ring.send(0.0, 0, start, positions_len)
        reply = ring.next_reply()
        assert reply is not None, "a frame was sent"
        return (reply[0] + self.head.before(source, leads_burst=True)) / NS_PER_S


def fitted_ring(receipts: Sequence[Receipt]) -> FittedRing:
    """The ring that these jobs ran on.

    Raises:
        ReceiptError: no frame was alone, or the links were not measured.
    """
    shape = fit_ring(receipts, EVEN_SHARE)
    first_rep = [receipt for receipt in receipts if receipt.position.rep == 0]
    overlap = fit_overlap(first_rep, shape)
    if overlap is not None:
        shape = replace(shape, overlap=overlap.overlap)
    return FittedRing(shape, fit_head(receipts))


def next_alpha(receipt: Receipt) -> float:
    """The chance that the next token is drafted and right; NaN if the job never drafted.

    A round without a draft is a miss like a wrong draft: the law knows no other.
    """
    rounds = [frame for frame in receipt.frames if is_round(frame) and frame.source != "tree"]
    accepted = sum(frame.accepted_len for frame in rounds)
    misses = sum(frame.tested_len > frame.accepted_len or not frame.draft_len for frame in rounds)
    return accepted / (accepted + misses) if accepted + misses else float("nan")


@lru_cache(maxsize=2)  # fits are dear, and an experiment's products ask for the same
def predictions(experiment: Experiment) -> tuple[pd.DataFrame, list[str]]:
    """One row a used measured job (COLUMNS), and why rings could not be fitted, if any."""
    cells = [cell.name for cell in experiment.plan.cells]
    fitted_cells = set(cells[::2])
    groups: dict[tuple[str, str], list[tuple[Receipt, str]]] = defaultdict(list)
    for receipt, identifier in experiment.measured():
        groups[_ring_key(receipt)].append((receipt, identifier))
    rows, reasons = [], []
    for jobs in groups.values():
        own = [receipt for receipt, _ in jobs if receipt.position.cell in fitted_cells]
        try:
            fitted = fitted_ring(own)
        except ReceiptError as error:
            reasons.append(f"{experiment.plan.experiment}: {error}")
            continue
        rows += [_row(experiment, *job, fitted, fitted_cells) for job in jobs]
    return pd.DataFrame(rows, columns=list(COLUMNS)), list(dict.fromkeys(reasons))


def by_arm_and_cell(jobs: pd.DataFrame) -> pd.DataFrame:
    """Medians over reps, and predicted / measured; columns of COLUMNS but the receipt's id."""
    keys = ["experiment", "profile", "num_stages", "arm", "cell", "is_checked"]
    grouped = jobs.groupby(keys, sort=False)
    values = ["measured", "ring_model", "closed_form", "alpha", "loop_s"]
    table = grouped[values].median().reset_index()
    table["ring_ratio"] = table["ring_model"] / table["measured"]
    table["closed_ratio"] = table["closed_form"] / table["measured"]
    return table


def ceilings(experiment: Experiment) -> dict[str, float]:
    """Tokens a second by cell that no chain exceeds, for the base arm's acceptance and loop time.

    A cell where every draft was right has none; nor have cells of a ring that cannot be fitted.
    """
    table = by_arm_and_cell(predictions(experiment)[0])
    base = table[(table["arm"] == experiment.plan.base_arm) & (table["alpha"] < 1.0)]
    return {row.cell: ceiling(row.alpha, row.loop_s) for row in base.itertuples()}


def all_predictions(experiments: Iterable[Experiment]) -> tuple[pd.DataFrame, list[str]]:
    """Those of every timed experiment, one below the other."""
    tables, reasons = [], []
    for experiment in experiments:
        if experiment.is_timed:
            table, unfitted = predictions(experiment)
            reasons += unfitted
            if not table.empty:
                tables.append(table)
    if not tables:
        raise ReceiptError(f"no ring could be fitted: {'; '.join(reasons) or 'nothing is timed'}")
    return pd.concat(tables, ignore_index=True), reasons


def _ring_key(receipt: Receipt) -> tuple[str, str]:
    return (str(receipt.ring), receipt.requested.numeric_config)


def _row(
    experiment: Experiment,
    receipt: Receipt,
    identifier: str,
    fitted: FittedRing,
    fitted_cells: set[str],
) -> tuple[object, ...]:
    num_decoded = len(receipt.output_ids) - 1
    modelled_s = modelled_decode_s(receipt, fitted.shape, fitted.head)
    alpha = next_alpha(receipt)
    closed, loop_s = _closed_form(receipt, fitted, alpha)
    return (
        experiment.plan.experiment,
        receipt.ring.profile,
        receipt.ring.num_stages,
        receipt.requested.arm,
        receipt.position.cell,
        receipt.position.cell not in fitted_cells,
        identifier,
        job_measures(receipt)["decode_tok_per_s"],
        num_decoded / modelled_s if modelled_s else float("nan"),
        closed,
        alpha,
        loop_s,
    )


def _closed_form(receipt: Receipt, fitted: FittedRing, alpha: float) -> tuple[float, float]:
    """Tokens a second and the loop time that they were reckoned with; NaN: no form fits the arm."""
    rounds = [frame for frame in receipt.frames if is_round(frame)]
    asked = receipt.requested
    source = asked.drafter
    if asked.policy != "fixed-k" or source not in SOURCES or not rounds:
        return float("nan"), float("nan")
    start = round(median(frame.start for frame in rounds))
    is_tree = source == "tree"
    size = (
        round(median(frame.positions_len for frame in rounds)) if is_tree else asked.draft_len + 1
    )
    loop_s = fitted.loop_s(start, size, source)
    if source == "none":
        return 1.0 / loop_s, loop_s
    if is_tree:
        return sum(frame.committed_len for frame in rounds) / len(rounds) / loop_s, loop_s
    if source == "eagle" or asked.depth == 1:  # the head drafts from the last reply: one a loop
        return lockstep_rate(alpha, asked.draft_len, loop_s), loop_s
    return chain_rate(alpha, asked.draft_len, asked.depth, loop_s), loop_s
