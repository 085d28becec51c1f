"""Do adaptive draft lengths live on requests that differ, or on streaks within a request?

Of each recorded text, the study's own drafter says by position whether its next token is the
target's. These bits are replayed as they are and in worlds that undo either cause of their clumping
or both (`bench.streak_worlds`): the same texts on the same modelled ring, under fixed draft lengths
and the two policies that draft more after good rounds. Nothing here is a measurement of a ring.
Guarantees: worlds differ in the order and rates of acceptances alone; every draw is seeded by what
it is of; equal receipts give equal rows. Must never know what the rows say.

    python -m bench.studies.streaks [--ring receipts/planner] [--texts DIR …] [--record DIR]
    python -m bench.studies.streaks --texts receipts/planner receipts/acceptance --record DIR

Prints by world each policy's speed over that of the best fixed length, and of the one it starts
from; `--record DIR` signs the rows. The second line takes two cores three minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.replay import replay
from bench.replay_cli import GRID_LENGTHS, fitted_ring
from bench.ring_model import RingShape
from bench.streak_cases import BITS_ARM, Case, cases_of, fitted_settings, texts_of
from bench.streak_drafter import ScriptedDrafter
from bench.streak_worlds import num_runs
from bench.study_record import COMMITTED_KEYS, make_study, write_study
from bench.traces import Recorded, load_recorded
from engine.coordinator.policies import POLICIES, make_policy
from engine.defaults import DEPTH, DRAFT_LEN
from engine.errors import ConfigError, LonghaulError, ReceiptError
from engine.trust.identity import load_public_keys, longhaul_home

STUDY = "streaks"
RING = COMMITTED_KEYS.parent / "planner"
DEPTHS = (1, DEPTH)
NUM_REQUESTS = 72  # of a drawn world, at least: few requests are drawn several times
SEED = 9
FIXED = "fixed-k"
UNDECIDED = ("prefill", "stale")
Row = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy and the draft lengths between which it chooses."""

    policy: str
    draft_len: int
    draft_len_max: int


CONTENDERS = (
    *(Contender(FIXED, length, length) for length in GRID_LENGTHS),
    Contender("two-state", DRAFT_LEN, POLICIES["two-state"].params["high"]),
    Contender("streak", DRAFT_LEN, POLICIES["streak"].params["cap"]),
)


def replay_case(shape: RingShape, case: Case) -> list[Row]:
    """One row a contender and depth."""
    rows: list[Row] = []
    for depth in DEPTHS:
        for contender in CONTENDERS:
            policy = make_policy(contender.policy, contender.draft_len, {}, depth)
            drafter = ScriptedDrafter(case.trace.output_ids, case.bits)
            done = replay(case.trace, shape, policy, drafter, depth)
            rounds = [record for record in done.records if record.outcome not in UNDECIDED]
            rows.append(
                {
                    "texts": case.experiment,
                    "world": case.world,
                    "seed": case.draw,
                    "cell": case.trace.cell,
                    "receipt": case.trace.receipt_id,
                    "ones": sum(case.bits),
                    "runs": num_runs(case.bits),
                    "policy": contender.policy,
                    "draft_len": contender.draft_len,
                    "draft_len_max": contender.draft_len_max,
                    "depth": depth,
                    "decode_ns": round(done.decode_ns),
                    "output_tokens": done.num_output,
                    "rounds": len(rounds),
                }
            )
    return rows


def replay_all(shape: RingShape, cases: Sequence[Case]) -> list[Row]:
    """Rows of all cases, in their order, however many processes shared the work."""
    with ProcessPoolExecutor() as workers:
        done = workers.map(partial(replay_case, shape), cases, chunksize=8)
        console = Console(stderr=True)
        return [
            row for rows in track(done, "replaying", len(cases), console=console) for row in rows
        ]


def speeds(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """By texts, world, depth and policy: speed over the best fixed length's and over its base's."""
    spent: dict[tuple[str, str, int], dict[tuple[str, int], list[float]]] = {}
    for row in rows:
        place = (str(row["texts"]), str(row["world"]), int(row["depth"]))
        contender = (str(row["policy"]), int(row["draft_len"]))
        log_ns = math.log(int(row["decode_ns"]))
        spent.setdefault(place, {}).setdefault(contender, []).append(log_ns)
    lines = []
    for (texts, world, depth), by_contender in spent.items():
        means = {contender: sum(logs) / len(logs) for contender, logs in by_contender.items()}
        best = min(mean for (policy, _), mean in means.items() if policy == FIXED)
        for (policy, draft_len), mean in means.items():
            if policy != FIXED:
                over = (best - mean, means[FIXED, draft_len] - mean)
                ratios = (f"{math.exp(gain):.3f}" for gain in over)
                lines.append((texts, world, str(depth), policy, *ratios))
    return lines


def show(rows: Sequence[Row], console: Console) -> None:
    """Geometric means over requests and draws."""
    table = Table(title="Replayed speed over that of fixed draft lengths")
    for name in ("texts", "world", "depth", "policy", "× best fixed", "× its base"):
        table.add_column(name)
    for line in speeds(rows):
        table.add_row(*line)
    console.print(table)


def read_all(folders: Sequence[Path]) -> dict[Path, Recorded]:
    """Experiments by folder, each read once.

    Raises:
        ReceiptError: one cannot be read, or two are runs of one experiment, whose rows could not be
            told apart.
    """
    keys = load_public_keys(COMMITTED_KEYS, longhaul_home() / "keys")
    read = {folder: load_recorded(folder, keys) for folder in dict.fromkeys(folders)}
    names = [recorded.plan.experiment for recorded in read.values()]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ReceiptError(
            f"{', '.join(map(str, read))}: more than one run of experiment {', '.join(repeated)}; "
            "give one folder of each"
        )
    return read


def run(asked: argparse.Namespace, console: Console) -> None:
    """Replay, print, record.

    Raises:
        ConfigError, ReceiptError: what was asked for is not there.
    """
    if asked.requests < 1 or asked.seed < 0:
        raise ConfigError(
            f"{asked.requests} requests, seed {asked.seed}; allowed: 1 request or more, seed 0 or "
            "more"
        )
    # Resolved: one folder may be named in two ways.
    ring = asked.ring.resolve()
    folders = [folder.resolve() for folder in asked.texts or [ring]]
    read = read_all([ring, *folders])
    plan = read[ring].plan
    receipts = [each for _, each in read[ring].receipts if each.ring == plan.ring]
    shape = fitted_ring(receipts, None, console)
    sources = [texts_of(read[folder]) for folder in dict.fromkeys(folders)]
    cases = [case for texts in sources for case in cases_of(texts, asked.requests, asked.seed)]
    rows = replay_all(shape, cases)
    show(rows, console)
    if asked.record is not None:
        settings: dict[str, str | int] = {
            "ring": plan.experiment,
            "profile": plan.ring.profile,
            "num_stages": plan.ring.num_stages,
            "overlap": str(shape.overlap),
            "texts": ",".join(texts.experiment for texts in sources),
            "bits_arm": BITS_ARM,
            "requests": asked.requests,
            "draw_seed": asked.seed,
        }
        for texts in sources:
            settings |= fitted_settings(texts)
        path = write_study(make_study(STUDY, settings, rows), asked.record)
        console.print(f"recorded: {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.studies.streaks")
    parser.add_argument("--ring", type=Path, default=RING, help="experiment whose ring is modelled")
    parser.add_argument(
        "--texts", type=Path, nargs="+", help="experiments replayed; default: the ring's own"
    )
    parser.add_argument(
        "--requests", type=int, default=NUM_REQUESTS, help="of a drawn world, at least"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the draws")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a signed record there")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Entry point."""
    try:
        run(_parser().parse_args(words), Console(highlight=False, soft_wrap=True))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
