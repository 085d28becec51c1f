"""Two revisions against each other on fresh rings: `python -m bench compare BASE`.

Guarantees: each repetition runs both, each on a ring that it starts anew, and the order turns round
from repetition to repetition; both run with this interpreter and its packages, on one machine; the
base is checked out into a folder of its own, which goes when the comparison does, whatever happens.
Every run leaves its signed receipts. Must never know what changed between the revisions.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.speeds import block_speeds, job_speed
from bench.traces import Recorded, load_recorded
from engine.cluster.launch import CHECKOUT_DIR
from engine.errors import ConfigError
from engine.trust.identity import PublicIdentity

SIDES = ("base", "head")
NUM_REPS = 5
ARMS = "ar,chain-k8,null"
CELLS = "verbatim,chat"
MAX_NEW_TOKENS = 32
Runner = Callable[[Path, Path], None]  # checkout, folder of the receipts


@dataclass(frozen=True, slots=True)
class Compared:
    """One arm on one cell: medians over repetitions of each repetition's median."""

    cell: str
    arm: str
    tok_per_s: tuple[float, float]  # base, head
    ratio: float  # head / base: median over repetitions of the ratio within one
    low: float  # least of those ratios
    high: float
    frames_per_token: tuple[float, float]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What `compare` takes."""
    command.add_argument("base", help="a revision that git knows; head is the working tree")
    command.add_argument("--arms", default=ARMS, help="comma-separated; both revisions know them")
    command.add_argument("--cells", default=CELLS, help="comma-separated")
    command.add_argument("--profile", default="wan-275", help="link profile, name or file")
    command.add_argument("--max-new-tokens", type=int, default=MAX_NEW_TOKENS)
    command.add_argument("--reps", type=int, default=NUM_REPS)
    command.add_argument("--out", type=Path, default=Path("build/receipts/compare"))


def run_compare(
    asked: argparse.Namespace, keys: dict[str, PublicIdentity], console: Console
) -> int:
    """Run, print.

    Raises:
        ConfigError: git does not know the base, a run failed, or a folder is in the way.
    """
    if asked.reps < 1:
        raise ConfigError(f"--reps is {asked.reps}; allowed: 1 or more")
    out = asked.out.resolve()
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: holds files; name an empty folder with --out, or move them")
    options = [
        *("--arms", asked.arms, "--cells", asked.cells, "--profile", asked.profile),
        *("--max-new-tokens", str(asked.max_new_tokens), "--reps", "1"),
    ]
    with sigterm_unwinds(), checked_out(CHECKOUT_DIR, asked.base) as base:
        interleave(
            (base, CHECKOUT_DIR),
            out,
            asked.reps,
            lambda checkout, folder: run_side(checkout, folder, options),
        )
    Console().print(compared_table(compare(out, asked.reps, keys), asked.base))
    console.print(f"receipts: {out}", highlight=False, soft_wrap=True)
    return 0


@contextlib.contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """SIGTERM ends what is inside as an exception does: no run and no worktree is left behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def checked_out(repository: Path, revision: str) -> Iterator[Path]:
    """A revision in a folder of its own.

    Raises:
        ConfigError: git does not know it.
    """
    with tempfile.TemporaryDirectory(prefix="longhaul-base-") as parent:
        folder = Path(parent) / "base"
        try:
            _git(repository, "worktree", "add", "--quiet", "--detach", str(folder), revision)
            yield folder
        finally:
            if folder.exists():
                _git(repository, "worktree", "remove", "--force", str(folder))
            _git(repository, "worktree", "prune")


def interleave(checkouts: tuple[Path, Path], out: Path, num_reps: int, run: Runner) -> None:
    """Run both sides in every repetition; who begins takes turns."""
    for rep in range(num_reps):
        sides = list(zip(SIDES, checkouts, strict=True))
        for side, checkout in sides if rep % 2 == 0 else reversed(sides):
            folder = run_folder(out, rep, side)
            folder.parent.mkdir(parents=True, exist_ok=True)
            run(checkout, folder)


def run_folder(out: Path, rep: int, side: str) -> Path:
    """Where the receipts of one run lie."""
    return out / f"rep-{rep + 1}" / side


def compare(out: Path, num_reps: int, keys: dict[str, PublicIdentity]) -> list[Compared]:
    """Read the runs' receipts.

    Raises:
        ReceiptError: one cannot be read.
    """
    runs = [
        tuple(load_recorded(run_folder(out, rep, side), keys) for side in SIDES)
        for rep in range(num_reps)
    ]
    plan = runs[0][1].plan
    arms = list(dict.fromkeys(job.arm for job in plan.jobs if job.role == "measured"))
    rows = []
    for cell in plan.cells:
        for arm in arms:
            speeds = [[_median_speed(run, cell.name, arm) for run in pair] for pair in runs]
            ratios = [head / base for base, head in speeds]
            frames = [[_frames_per_token(run, cell.name, arm) for run in pair] for pair in runs]
            rows.append(
                Compared(
                    cell=cell.name,
                    arm=arm,
                    tok_per_s=_medians(speeds),
                    ratio=statistics.median(ratios),
                    low=min(ratios),
                    high=max(ratios),
                    frames_per_token=_medians(frames),
                )
            )
    return rows


def compared_table(rows: Sequence[Compared], base: str) -> Table:
    """For a terminal."""
    table = Table(title=f"working tree against {base}: medians over repetitions")
    for name in ("cell", "arm"):
        table.add_column(name)
    for name in ("base tok/s", "head tok/s", "head / base [min–max]", "frames a token"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.cell,
            row.arm,
            *(f"{speed:.2f}" for speed in row.tok_per_s),
            f"{row.ratio:.3f} [{row.low:.3f}–{row.high:.3f}]",
            " → ".join(f"{frames:.2f}" for frames in row.frames_per_token),
        )
    return table


def run_side(checkout: Path, folder: Path, options: Sequence[str]) -> None:
    """One revision's run, as its own code does it.

    Raises:
        ConfigError: it failed.
    """
    command = [sys.executable, "-m", "bench", "run", *options, "--out", str(folder)]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL) as side:
        try:
            status = side.wait()
        except BaseException:
            side.terminate()  # ends its ring; leaving the block waits for it
            raise
    if status:
        raise ConfigError(
            f"{checkout}: `{' '.join(command[1:])}` ended with {status}; its messages are above"
        )


def _git(repository: Path, *arguments: str) -> None:
    finished = subprocess.run(
        ["git", *arguments], cwd=repository, check=False, capture_output=True, text=True
    )
    if finished.returncode:
        raise ConfigError(f"git {' '.join(arguments[:2])}: {finished.stderr.strip()}")


def _median_speed(run: Recorded, cell: str, arm: str) -> float:
    speeds = block_speeds(run).get((cell, arm), {})
    return statistics.median(speeds.values()) if speeds else float("nan")


def _frames_per_token(run: Recorded, cell: str, arm: str) -> float:
    counts = [
        receipt.counters.frames_on_wire / len(receipt.output_ids)
        for _, receipt in run.receipts
        if job_speed(receipt) is not None
        and (receipt.position.cell, receipt.requested.arm) == (cell, arm)
    ]
    return statistics.median(counts) if counts else float("nan")


def _medians(pairs: Sequence[Sequence[float]]) -> tuple[float, float]:
    base, head = zip(*pairs, strict=True)
    return statistics.median(base), statistics.median(head)
