"""The only source of receipts in the analysis and paper rooms.

Guarantees: every number downstream comes from a document that `analysis.documents` checked: signed
by a known key over its exact bytes, and of one plan; a planned job that is not used stands in the
exclusion table with its reason. Must never know how anything is drawn, tested or printed, nor any
room of the engine but its errors and identities.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.arm_slots import in_reading_order
from analysis.checks import exclusion_reason, is_chain_round, is_round
from analysis.documents import Documents, load_documents
from analysis.folders import (
    COMMITTED,
    DEFAULT_EXPERIMENT,
    RECEIPTS_FOLDER,
    committed_experiments,
    default_key_folders,
)
from bench.receipt import RECEIPT_ID_LEN
from bench.schema import FrameRow, Plan, Receipt
from engine.errors import ConfigError, ReceiptError, unknown_name
from engine.trust.identity import load_public_keys

NS_PER_S = 1_000_000_000
# A table's cells are numbers and words: no lists.
FRAME_COLUMNS = tuple(
    name for name in FrameRow.__struct_fields__ if name not in ("spans", "parents", "node_ids")
)
POSITION_COLUMNS = ("job_idx", "rep", "cell", "kind", "block", "arm")
ROUND_COLUMNS = (
    *(*POSITION_COLUMNS, "receipt_id", "frame_idx"),
    *(*FRAME_COLUMNS, "first_draft", "frontier_at_send"),
)
EXCLUSION_COLUMNS = ("job_idx", "rep", "cell", "block_idx", "arm", "role", "reason")
NUM_FRAMES_KEPT = 2  # experiments whose frames are at hand: the one in work, and one beside it


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """One verified experiment; `receipts` and `receipt_ids` run parallel, by job_idx."""

    plan: Plan
    plan_digest: str
    receipts: tuple[Receipt, ...]
    receipt_ids: tuple[str, ...]
    receipt_set_digest: str  # SHA-256 over the digests of the plan and of every receipt
    exclusions: pd.DataFrame  # EXCLUSION_COLUMNS
    is_committed: bool = False  # whether it lies among the repository's own receipts

    def measured(self) -> list[tuple[Receipt, str]]:
        """The measured jobs that are used, with their receipt ids; no reference, no warm-up."""
        excluded = set(self.exclusions["job_idx"])
        return [
            (receipt, identifier)
            for receipt, identifier in zip(self.receipts, self.receipt_ids, strict=True)
            if receipt.position.role == "measured" and receipt.position.job_idx not in excluded
        ]

    def measured_arms(self) -> list[str]:
        """Arms with measured jobs, in reading order."""
        return in_reading_order(row.arm for row in self.plan.jobs if row.role == "measured")

    @property
    def is_timed(self) -> bool:
        """Whether speeds may be compared: a plan without a base arm has no null to judge them."""
        return bool(self.plan.base_arm)


def find_experiment(receipts_dir: str | Path = "", experiment: str = DEFAULT_EXPERIMENT) -> Path:
    """Resolve what a user named to a folder, whatever the current folder is.

    Args:
        receipts_dir: an experiment's folder; empty: the committed experiment.
        experiment: name of a committed experiment.

    Raises:
        ConfigError: there is no such folder.
    """
    if str(receipts_dir):
        folder = Path(receipts_dir)
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; name one that holds a plan.json")
        return folder
    folder = COMMITTED / experiment
    if not (folder / "plan.json").is_file():
        raise unknown_name("committed experiment", experiment, committed_experiments())
    return folder


def find_experiments(receipts_dir: str = "") -> list[Path]:
    """The folder that a user named, or those of every committed experiment, the default one first.

    Raises:
        ConfigError: there is no such folder.
    """
    if receipts_dir:
        return [find_experiment(receipts_dir)]
    return [find_experiment("", name) for name in committed_experiments()]


def load_experiment(folder: Path, key_folders: Sequence[Path] | None = None) -> Experiment:
    """Read, verify and cross-check one experiment.

    Args:
        folder: holds `plan.json`, `receipts/NNNN.json` and their signatures.
        key_folders: where trusted `*.pub` files are; None: `default_key_folders()`.

    Raises:
        ReceiptError: named by file: foreign, unsigned, altered, misplaced, duplicate or
            contradictory.
    """
    keys = load_public_keys(*(default_key_folders() if key_folders is None else key_folders))
    documents = load_documents(folder, keys)
    receipts = tuple(receipt for receipt, _ in documents.receipts.values())
    digests = tuple(digest for _, digest in documents.receipts.values())
    listing = "\n".join([documents.plan_digest, *digests])
    return Experiment(
        plan=documents.plan,
        plan_digest=documents.plan_digest,
        receipts=receipts,
        receipt_ids=tuple(digest[:RECEIPT_ID_LEN] for digest in digests),
        receipt_set_digest=hashlib.sha256(listing.encode()).hexdigest(),
        exclusions=_exclusion_table(folder, documents),
        is_committed=folder.resolve().parent == COMMITTED,
    )


def jobs_frame(experiment: Experiment) -> pd.DataFrame:
    """One row per measured job that is used; metrics as in DESIGN section 2."""
    # What a caller writes into its copy stays there: pandas copies on write.
    return _jobs(experiment).copy(deep=False)


def rounds_frame(experiment: Experiment) -> pd.DataFrame:
    """One row per decode frame of the used measured jobs, stale ones too (see `outcome`).

    `frontier_at_send` is the number of committed tokens, prompt included, when the frame left;
    `first_draft` the position of its first draft.
    """
    return _rounds(experiment).copy(deep=False)


@lru_cache(maxsize=NUM_FRAMES_KEPT)  # every table and figure of an experiment asks for it
def _jobs(experiment: Experiment) -> pd.DataFrame:
    kinds = {cell.name: cell.kind for cell in experiment.plan.cells}
    rows = [
        {
            **_position_columns(receipt, kinds),
            "receipt_id": identifier,
            "order": receipt.position.order_idx,
            **job_measures(receipt),
        }
        for receipt, identifier in experiment.measured()
    ]
    return pd.DataFrame(rows)


@lru_cache(maxsize=NUM_FRAMES_KEPT)
def _rounds(experiment: Experiment) -> pd.DataFrame:
    kinds = {cell.name: cell.kind for cell in experiment.plan.cells}
    values_of = attrgetter(*FRAME_COLUMNS)
    rows: list[tuple[object, ...]] = []  # of tuples, which take half the time of mappings
    for receipt, identifier in experiment.measured():
        place = (*_position_columns(receipt, kinds).values(), identifier)
        frontiers = frontiers_at_send(receipt)
        for idx, frame in enumerate(receipt.frames):
            if frame.outcome != "prefill":
                first_draft = frame.start + frame.positions_len - frame.sent_len
                rows.append((*place, idx, *values_of(frame), first_draft, frontiers[idx]))
    return pd.DataFrame(rows, columns=list(ROUND_COLUMNS)) if rows else pd.DataFrame()


def groups_of(plan: Plan) -> dict[str, str]:
    """What each cell is counted with: its group, or itself in plans that have none."""
    return {
        cell.name: cell.group if isinstance(cell.group, str) else cell.name for cell in plan.cells
    }


def job_measures(receipt: Receipt) -> dict[str, float]:
    """Every metric of one finished job.

    A rate whose denominator is 0 (no drafts in `ar`) is NaN, never 0.
    """
    timing = receipt.timing
    stamps = (timing.prefill_sent_ns, timing.first_commit_ns, timing.last_commit_ns)
    prefill_sent_ns, first_ns, last_ns = (np.nan if stamp is None else stamp for stamp in stamps)
    rounds = [frame for frame in receipt.frames if is_round(frame)]
    drafted = [frame for frame in rounds if is_chain_round(frame)]
    decode_s = (last_ns - first_ns) / NS_PER_S
    num_draft = sum(frame.draft_len for frame in drafted)
    num_accepted = sum(frame.accepted_len for frame in drafted)
    num_tested = sum(frame.tested_len for frame in drafted)
    return {
        "num_output": len(receipt.output_ids),
        "prefill_s": (first_ns - prefill_sent_ns) / NS_PER_S,
        "decode_s": decode_s,
        "decode_tok_per_s": _ratio(len(receipt.output_ids) - 1, decode_s),
        "rounds": len(rounds),
        "tokens_per_round": _ratio(sum(frame.committed_len for frame in rounds), len(rounds)),
        "sum_draft": num_draft,
        "sum_accepted": num_accepted,
        "sum_tested": num_tested,
        "acceptance_rate": _ratio(num_accepted, num_draft),
        "alpha_hat": _ratio(num_accepted, num_tested),
        "num_frames": sum(frame.outcome != "prefill" for frame in receipt.frames),
        "num_stale": sum(frame.outcome == "stale" for frame in receipt.frames),
        "discarded_len": receipt.counters.discarded_len,
        "frames_on_wire": receipt.counters.frames_on_wire,
    }


def frontiers_at_send(receipt: Receipt) -> list[int]:
    """Committed tokens, prompt included, known when each frame was sent.

    Recorded since version 3. Before, derived: the prompt, the prefill's token, and what every round
    answered no later than the send committed; a reply read while the frame was being drafted counts
    as known.
    """
    recorded = [frame.frontier for frame in receipt.frames if isinstance(frame.frontier, int)]
    if len(recorded) == len(receipt.frames):
        return recorded
    answered = sorted(
        (frame.received_ns, frame.committed_len)
        for frame in receipt.frames
        if is_round(frame) and frame.committed_len and frame.received_ns is not None
    )
    times = np.array([moment for moment, _ in answered])
    totals = np.concatenate([[0], np.cumsum([count for _, count in answered], dtype=int)])
    known = np.searchsorted(times, [frame.sent_ns for frame in receipt.frames], side="right")
    return [len(receipt.prompt_ids) + 1 + int(totals[idx]) for idx in known]


def _exclusion_table(folder: Path, documents: Documents) -> pd.DataFrame:
    references: dict[int, dict[str, Receipt]] = {}
    for receipt, digest in documents.receipts.values():
        if receipt.position.role == "reference" and receipt.text_stands:
            block = references.setdefault(receipt.position.block_idx, {})
            block[digest[:RECEIPT_ID_LEN]] = receipt
    rows = []
    for row in documents.plan.jobs:
        found = documents.receipts.get(row.job_idx, (None, ""))[0]
        try:
            reason = exclusion_reason(row, found, references.get(row.block_idx, {}))
        except ReceiptError as error:
            path = folder / RECEIPTS_FOLDER / f"{row.job_idx:04d}.json"
            raise ReceiptError(f"{path}: {error}") from error
        if reason is not None:
            rows.append((*(getattr(row, name) for name in EXCLUSION_COLUMNS[:-1]), reason))
    return pd.DataFrame(rows, columns=list(EXCLUSION_COLUMNS))


def _position_columns(receipt: Receipt, kinds: Mapping[str, str]) -> dict[str, object]:
    at = receipt.position
    place = (at.job_idx, at.rep, at.cell, kinds[at.cell], at.block_idx, receipt.requested.arm)
    return dict(zip(POSITION_COLUMNS, place, strict=True))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
