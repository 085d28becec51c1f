"""`python -m bench replay FOLDER`: any policy on recorded texts, on the ring measured there.

    python -m bench replay receipts/decode --arms ar,two-state,planner,clairvoyant --grid

prints decoding speeds by cell; with `--grid` also the best fixed length and depth and what the
planner reaches of it, with `--record DIR` it signs the rows as a study. Nothing here is a
measurement of a ring: the model's error is printed beside (`predicted / measured`, arms that ran).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from bench.arms import Arm, get_arm
from bench.bounds import knowing
from bench.overlap import fit_overlap
from bench.plan import arm_levers
from bench.replay import Replayed, replay
from bench.ring_fit import fit_ring
from bench.ring_model import RingShape
from bench.schema import Receipt
from bench.study_record import make_study, write_study
from bench.traces import Recorded, Trace, load_recorded
from engine.coordinator.job import DraftMeans, JobRequest
from engine.coordinator.policy import FixedK
from engine.coordinator.ring_cost import RingCost
from engine.draft.registry import make_drafter
from engine.errors import ConfigError, unknown_name
from engine.trust.identity import PublicIdentity

GRID_LENGTHS = (4, 8, 16, 32, 64)
GRID_DEPTHS = (2, 4, 8)
OVERLAP = 1.0  # where nothing was recorded to fit it on: stages share the cores evenly
DEFAULT_ARMS = ("ar", "chain-k8", "two-state", "streak", "planner", "clairvoyant", "oracle")


@dataclass(slots=True)
class WarmReplays:
    """Replays on one modelled ring, kept warm: every job learns what it costs, as in a session."""

    shape: RingShape
    cost: RingCost = field(default_factory=RingCost)

    def run(self, trace: Trace, arm: Arm) -> Replayed:
        """One job of an arm.

        Raises:
            ConfigError: its drafter needs what no receipt holds.
        """
        levers = arm_levers(arm.name, trace.max_new_tokens)
        if levers.tap_layers:
            raise ConfigError(f"arm {arm.name!r} drafts from taps, which receipts do not hold")
        request = JobRequest(trace.prompt_ids, levers, trace.eos_ids, "00")
        request = knowing(request, trace.output_ids)
        policy = request.make_policy(levers, self.cost)
        drafter = request.make_drafter(levers, DraftMeans(self.cost))
        return replay(trace, self.shape, policy, drafter, levers.depth, cost=self.cost)

    def run_fixed(self, trace: Trace, draft_len: int, depth: int) -> Replayed:
        """One job of a fixed length and depth that no arm has."""
        levers = arm_levers("chain-k8", trace.max_new_tokens)
        drafter = make_drafter(levers.drafter, levers.min_match_len, levers.drafter_params)
        return replay(trace, self.shape, FixedK(draft_len), drafter, depth)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What `replay` takes."""
    command.add_argument("folder", type=Path, help="an experiment, such as receipts/decode")
    command.add_argument("--arms", default=",".join(DEFAULT_ARMS), help="comma-separated")
    command.add_argument("--cells", help="comma-separated; default: all that were recorded")
    command.add_argument("--grid", action="store_true", help="every fixed length and depth too")
    command.add_argument(
        "--overlap", type=float, help="see bench.ring_model; default: fitted on the receipts"
    )
    command.add_argument("--record", type=Path, help="sign the rows into this folder")


def run_replay(asked: argparse.Namespace, keys: dict[str, PublicIdentity], console: Console) -> int:
    """Replay, print, record.

    Raises:
        ConfigError, ReceiptError: what was asked for is not there.
    """
    recorded = load_recorded(asked.folder, keys)
    arms = [get_arm(name.strip()) for name in asked.arms.split(",") if name.strip()]
    traces = _chosen(recorded.traces(), asked.cells)
    ring = recorded.plan.ring
    receipts = [receipt for _, receipt in recorded.receipts if receipt.ring == ring]
    shape = fitted_ring(receipts, asked.overlap, console)
    replays = WarmReplays(shape)
    rows = list(_rows(replays, traces, arms, asked.grid))
    _print(rows, [arm.name for arm in arms], recorded, console)
    if asked.record is not None:
        settings = {
            "experiment": recorded.plan.experiment,
            "profile": ring.profile,
            "num_stages": ring.num_stages,
            "overlap": str(shape.overlap),
        }
        path = write_study(make_study("replay", settings, rows), asked.record)
        console.print(f"recorded: {path}", highlight=False, soft_wrap=True)
    return 0


def fitted_ring(receipts: Sequence[Receipt], overlap: float | None, console: Console) -> RingShape:
    """The ring that these jobs ran on; says what its stages take of each other's speed."""
    shape = fit_ring(receipts, OVERLAP if overlap is None else overlap)
    fit = fit_overlap(receipts, shape) if overlap is None else None
    if fit is None:
        console.print(f"overlap of stages: {shape.overlap:g}, not fitted", highlight=False)
        return shape
    console.print(
        f"overlap of stages: {fit.overlap:g}, fitted on {fit.num_frames} frames with company "
        f"(modelled / measured time under way: median {fit.ratio:.2f}, error of its logarithm "
        f"{fit.error:.2f})",
        highlight=False,
        soft_wrap=True,
    )
    return replace(shape, overlap=fit.overlap)


def _chosen(traces: Sequence[Trace], names: str | None) -> list[Trace]:
    if names is None:
        return list(traces)
    by_name = {trace.cell: trace for trace in traces}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in by_name:
            raise unknown_name("recorded cell", name, by_name)
    if not wanted:
        raise ConfigError("--cells names nothing")
    return [by_name[name] for name in wanted]


def _rows(
    replays: WarmReplays, traces: Sequence[Trace], arms: Sequence[Arm], with_grid: bool
) -> Iterator[dict[str, str | int]]:
    for trace in traces:
        for arm in arms:
            yield _row(trace, arm.name, replays.run(trace, arm))
        for draft_len in GRID_LENGTHS if with_grid else ():
            for depth in GRID_DEPTHS:
                done = replays.run_fixed(trace, draft_len, depth)
                yield _row(trace, f"fixed-k{draft_len}-d{depth}", done)


def _row(trace: Trace, arm: str, done: Replayed) -> dict[str, str | int]:
    rounds = [record for record in done.records if record.outcome in ("applied", "refuted")]
    return {
        "cell": trace.cell,
        "arm": arm,
        "receipt": trace.receipt_id,
        "output_tokens": done.num_output,
        "decode_ns": round(done.decode_ns),
        "rounds": len(rounds),
        "stale_dropped": done.num_dropped,
        "stale_computed": done.num_stale_computed,
    }


def _speed(row: dict[str, str | int]) -> float:
    return (int(row["output_tokens"]) - 1) / int(row["decode_ns"]) * 1e9


def _print(
    rows: Sequence[dict[str, str | int]], arms: Sequence[str], recorded: Recorded, console: Console
) -> None:
    by_cell: dict[str, dict[str, float]] = {}
    for row in rows:
        by_cell.setdefault(str(row["cell"]), {})[str(row["arm"])] = _speed(row)
    has_grid = any(name.startswith("fixed-k") for speeds in by_cell.values() for name in speeds)
    extra = ["best fixed", "planner / best"] if has_grid and "planner" in arms else []
    extra += ["planner / clairvoyant"] if {"planner", "clairvoyant"} <= set(arms) else []
    table = Table(title="replayed decode tok/s")
    for name in ("cell", *arms, *extra):
        justify: Literal["left", "right"] = "left" if name == "cell" else "right"
        table.add_column(name, justify=justify, no_wrap=name == "cell")
    for cell, speeds in by_cell.items():
        shown = [f"{speeds[name]:.2f}" for name in arms]
        if "best fixed" in extra:
            best = max((name for name in speeds if name.startswith("fixed-k")), key=speeds.get)
            shown += [f"{best[6:]} {speeds[best]:.2f}", f"{speeds['planner'] / speeds[best]:.3f}"]
        if "planner / clairvoyant" in extra:
            shown.append(f"{speeds['planner'] / speeds['clairvoyant']:.3f}")
        table.add_row(cell, *shown)
    console.print(table)
    _print_error(by_cell, recorded, console)


def _print_error(
    by_cell: dict[str, dict[str, float]], recorded: Recorded, console: Console
) -> None:
    """How far the model is from what was measured, over arms whose levers did not change since."""
    measured: dict[tuple[str, str], list[float]] = {}
    for _, receipt in recorded.receipts:
        timing, arm = receipt.timing, receipt.requested.arm
        is_same = arm in by_cell.get(receipt.position.cell, {}) and (
            receipt.requested.min_match_len == get_arm(arm).min_match_len
        )
        if not is_same or receipt.status != "ok" or timing.last_commit_ns is None:
            continue
        decode_ns = timing.last_commit_ns - (timing.first_commit_ns or 0)
        speed = (len(receipt.output_ids) - 1) / decode_ns * 1e9
        measured.setdefault((receipt.position.cell, arm), []).append(speed)
    ratios = [
        by_cell[cell][arm] / statistics.median(speeds) for (cell, arm), speeds in measured.items()
    ]
    if ratios:
        console.print(
            f"predicted / measured over {len(ratios)} (cell, arm): median "
            f"{statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}",
            highlight=False,
        )
