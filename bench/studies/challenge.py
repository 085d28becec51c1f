"""How far apart honest computations of a stage are, and cheating ones: `engine.trust.challenge`.

The packaged model over four stages in this process, a real prompt in chunks and then frames of
drafts. Each case changes how one stage computes; a replica of the engine's own layers checks what
it sent, by sketches under a fresh seed. Guarantees: honest and cheating cases go through the same
check; what is recorded is what the check saw. Must never know sockets.

    python -m bench.studies.challenge [--cell chat] [--record DIR]

Prints each case's largest relative error of a position, and whether the threshold of its class lets
it pass; fails if an honest one does not pass or a cheating one does.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bench.cells import load_cell
from bench.peers.transformers_speed import build_peer
from bench.peers.transformers_stage import PeerStage
from bench.studies.spot_job import GREEDY, Forward, SpotFrame, SpotJob, run_job
from bench.study_record import make_study, write_study
from engine.errors import LonghaulError
from engine.model.decoder import Decoder
from engine.model.row_invariance import on_threads
from engine.model.tokenizer import Tokenizer
from engine.model.weights import ModelFiles, prepare_model
from engine.stage.executor import DecoderExecutor
from engine.transport.hidden_wire import pack_states, unpack_states
from engine.trust.challenge import THRESHOLDS, Terms, spot_check
from engine.trust.sketch import NUM_SIGNS, SEED_LEN, false_alarm_bound, miss_bound

STUDY = "challenge"
SPANS = ((0, 8), (8, 15), (15, 23), (23, 30))
PREFILL_CHUNK, FRAME_LEN = 64, 9
MAX_POSITIONS = 64  # of the prompt; the other library keeps no cache here
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
PARTS_PER = 10**12  # errors are recorded as integers, in parts per so many
MARGIN = 4  # of a threshold over honest errors, and of an error over the threshold
FLOOR = 1e-300  # no bound is said to be smaller
Row = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to compute a stage.

    Attributes:
        group: whose threshold holds, a key of `THRESHOLDS`.
        wire: of the job.
    """

    name: str
    group: str
    is_honest: bool
    wire: str
    forward: Callable[[Bench, int], Forward]


class Bench:
    """The model as the engine and as the transformers library compute it."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self.replicas = self.executors("f32")
        self.stages = self.executors("f32")
        self.coarse = self.executors("int4")
        self._peer: Any = build_peer(files)

    def executors(self, weights: str) -> list[DecoderExecutor]:
        return [
            DecoderExecutor(Decoder.load(self.files, *span, weights), "0" * 64) for span in SPANS
        ]

    def peer(self, idx: int, dtype: torch.dtype) -> Forward:
        return PeerStage(self._peer, SPANS[idx], dtype).forward

    def skipping(self, idx: int, dtype: torch.dtype) -> Forward:
        """All of the stage's layers but its middle one."""
        middle = sum(SPANS[idx]) // 2
        order = [layer_idx for layer_idx in range(*SPANS[idx]) if layer_idx != middle]
        return PeerStage(self._peer, SPANS[idx], dtype, order).forward

    def swapping(self, idx: int, dtype: torch.dtype) -> Forward:
        """The middle layer and the one before it in each other's place."""
        order, at = list(range(*SPANS[idx])), (SPANS[idx][1] - SPANS[idx][0]) // 2
        order[at - 1], order[at] = order[at], order[at - 1]
        return PeerStage(self._peer, SPANS[idx], dtype, order).forward


def one_by_one(forward: Forward) -> Forward:
    """Every position in a call of its own."""
    return lambda hidden, start: torch.cat(
        [forward(row[None], start + idx) for idx, row in enumerate(hidden)]
    )


def through(forward: Forward, wire: str) -> Forward:
    """States that went through a coarser wire than the job's."""

    def coarse(hidden: torch.Tensor, start: int) -> torch.Tensor:
        packed = pack_states({"hidden": forward(hidden, start)}, wire)
        return unpack_states(packed, wire)["hidden"]

    return coarse


def rounded(forward: Forward) -> Forward:
    return lambda hidden, start: forward(hidden, start).to(BF16).float()


def other_threads(forward: Forward) -> Forward:
    def run(hidden: torch.Tensor, start: int) -> torch.Tensor:
        with on_threads(torch.get_num_threads() + 1):
            return forward(hidden, start)

    return run


def altered(forward: Forward) -> Forward:
    """One coordinate of the first position, by a thousandth of its length."""

    def run(hidden: torch.Tensor, start: int) -> torch.Tensor:
        sent = forward(hidden, start).clone()
        sent[0, 0] += 1e-3 * sent[0].norm()
        return sent

    return run


CASES = (
    Case("same engine", "f32", True, "f32", lambda b, i: b.stages[i].forward),
    Case("positions one by one", "f32", True, "f32", lambda b, i: one_by_one(b.stages[i].forward)),
    Case("another thread", "f32", True, "f32", lambda b, i: other_threads(b.stages[i].forward)),
    Case("transformers, float32", "f32", True, "f32", lambda b, i: b.peer(i, F32)),
    Case("transformers, float64", "f32", True, "f32", lambda b, i: b.peer(i, F64)),
    Case("one coordinate altered", "f32", False, "f32", lambda b, i: altered(b.stages[i].forward)),
    Case("bfloat16 states", "f32", False, "f32", lambda b, i: rounded(b.stages[i].forward)),
    Case("bfloat16 computing", "f32", False, "f32", lambda b, i: b.peer(i, BF16)),
    Case("fp8 states", "f32", False, "f32", lambda b, i: through(b.stages[i].forward, "fp8")),
    Case("4-bit weights", "f32", False, "f32", lambda b, i: b.coarse[i].forward),
    Case("a layer skipped", "f32", False, "f32", lambda b, i: b.skipping(i, F32)),
    Case("layers swapped", "f32", False, "f32", lambda b, i: b.swapping(i, F32)),
    Case("transformers, bfloat16", "bf16", True, "f32", lambda b, i: b.peer(i, BF16)),
    Case("fp8 instead of bf16", "bf16", False, "f32", lambda b, i: through(b.peer(i, BF16), "fp8")),
    Case("a layer skipped", "bf16", False, "f32", lambda b, i: b.skipping(i, BF16)),
    Case("layers swapped", "bf16", False, "f32", lambda b, i: b.swapping(i, BF16)),
    Case("same engine", "fp8", True, "fp8", lambda b, i: b.stages[i].forward),
    Case("transformers, float64", "fp8", True, "fp8", lambda b, i: b.peer(i, F64)),
    Case("4-bit weights", "fp8", False, "fp8", lambda b, i: b.coarse[i].forward),
    Case("a layer skipped", "fp8", False, "fp8", lambda b, i: b.skipping(i, F32)),
    Case("layers swapped", "fp8", False, "fp8", lambda b, i: b.swapping(i, F32)),
)  # fmt: skip


def measure(bench: Bench, ids: Sequence[int]) -> list[Row]:
    """One row a case and stage; the last stage sends no states."""
    frames = frames_of(ids)
    rows: list[Row] = []
    for case in CASES:
        for idx in range(len(SPANS) - 1):
            seed = secrets.token_bytes(SEED_LEN)
            forwards = {idx: case.forward(bench, idx)}
            job = run_job(bench.stages[: idx + 2], frames, seed, case.wire, forwards=forwards)
            errors = _errors(bench, job, idx, case.wire)
            rows.append(
                {
                    "group": case.group,
                    "case": case.name,
                    "honest": int(case.is_honest),
                    "stage": idx,
                    "threshold": round(THRESHOLDS[case.group] * PARTS_PER),
                    "positions": errors.size,
                    "largest": round(float(errors.max()) * PARTS_PER),
                    "median": round(float(np.median(errors)) * PARTS_PER),
                }
            )
    return rows


def frames_of(ids: Sequence[int]) -> list[SpotFrame]:
    """The first half of the ids in chunks, the rest in frames of drafts."""
    cuts = [*range(0, len(ids) // 2, PREFILL_CHUNK), *range(len(ids) // 2, len(ids), FRAME_LEN)]
    return [
        SpotFrame(0, start, tuple(ids[start:end]), start)
        for start, end in zip(cuts, [*cuts[1:], len(ids)], strict=True)
    ]


def _errors(bench: Bench, job: SpotJob, idx: int, wire: str) -> np.ndarray[Any, Any]:
    """What the check sees if it lets everything pass."""
    terms = Terms(wire, GREEDY, math.inf, math.inf, num_frames=len(job.frames))
    compared = spot_check(job.statements, job.evidence, idx, bench.replicas[idx], job.seed, terms)
    return np.concatenate([item.errors for item in compared])


def wrong(rows: Sequence[Row]) -> list[str]:
    """Honest cases that do not pass, and cheating ones that do."""
    found = []
    for row in rows:
        passes = int(row["largest"]) / PARTS_PER <= THRESHOLDS[str(row["group"])]
        if passes != bool(row["honest"]):
            found.append(f"{row['group']}, {row['case']}, stage {row['stage']}")
    return found


def show(rows: Sequence[Row], console: Console) -> None:
    """One line a case: over all stages."""
    table = Table(title="Relative error of a position: largest, over stages; smallest stage's")
    for column in ("class", "threshold", "case", "", "largest", "smallest stage's", "median"):
        table.add_column(column)
    for case in CASES:
        own = [row for row in rows if (row["group"], row["case"]) == (case.group, case.name)]
        largest = [int(row["largest"]) / PARTS_PER for row in own]
        median = max(int(row["median"]) / PARTS_PER for row in own)
        table.add_row(
            case.group,
            f"{THRESHOLDS[case.group]:.0e}",
            case.name,
            "honest" if case.is_honest else "cheats",
            f"{max(largest):.1e}",
            f"{min(largest):.1e}",
            f"{median:.1e}",
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.studies.challenge")
    parser.add_argument("--cell", default="mixed", help="whose prompt is computed")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a signed record there")
    args = parser.parse_args()
    try:
        files = prepare_model()
        ids = load_cell(args.cell).prompt_ids(Tokenizer.load(files))[:MAX_POSITIONS]
        rows = measure(Bench(files), ids)
        show(rows, Console())
        if args.record:
            settings = {
                "cell": args.cell,
                "prompt_positions": len(ids),
                "parts_per": PARTS_PER,
                "signs": NUM_SIGNS,
                "false_alarm_bound": f"{max(false_alarm_bound(MARGIN), FLOOR):.0e}",
                "miss_bound": f"{miss_bound(MARGIN):.0e}",
                "margin": MARGIN,
            }
            print(write_study(make_study(STUDY, settings, rows), args.record))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = wrong(rows)
    for name in found:
        print(f"on the wrong side of its threshold: {name}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
