"""Runs of one experiment put together, or why they must not be: `python -m bench pool A B …`.

Guarantees: runs are pooled only if everything that could move a speed is equal: host, kernel,
packages, sources, model, rings, arms, cells and their budgets; each difference is named with both
values, nothing is left out to make runs fit. Blocks stay blocks of their own run. Holds no test.
Must never know how a figure is drawn.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.table import Table

from bench.schema import Plan
from bench.speeds import block_speeds, log_ratios
from bench.traces import Recorded, load_recorded
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity

VOLATILE_HOST = ("load_average",)  # of the minute; it is no property of the host
# What may differ between runs of one experiment: when, in which order, how often.
FREE = ("created", "seed", "reps", "jobs", "schema")
MAX_SHOWN_LEN = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that two runs do not share."""

    name: str
    first: str
    other: str

    def __str__(self) -> str:
        return f"{self.name}: {_cut(self.first)} and {_cut(self.other)}"


@dataclass(frozen=True, slots=True)
class PooledRow:
    """One arm on one cell, over all runs."""

    cell: str
    arm: str
    num_jobs: int
    tok_per_s: float  # median
    ratio: float  # to the base arm: geometric mean over blocks; NaN: no block has both
    by_run: tuple[float, ...]  # the same, run by run


def pool(folders: Sequence[Path], keys: dict[str, PublicIdentity]) -> list[PooledRow]:
    """Read runs and put them together.

    Raises:
        ReceiptError: a run cannot be read, one is named twice, or they differ in something that
            matters; every difference is listed.
    """
    runs = [load_recorded(folder, keys) for folder in folders]
    if len(runs) < 2:
        raise ReceiptError("pooling takes two runs or more")
    plans = [msgspec.json.encode(run.plan) for run in runs]
    if len(set(plans)) < len(plans):
        raise ReceiptError("a run is named twice: its jobs would count twice")
    for folder, run in zip(folders[1:], runs[1:], strict=True):
        found = differences(runs[0], run)
        if found:
            listed = "".join(f"\n  {difference}" for difference in found)
            raise ReceiptError(
                f"{folders[0]} and {folder} cannot be pooled; they differ in{listed}"
            )
    return _rows(runs)


def differences(first: Recorded, other: Recorded) -> list[Difference]:
    """Everything that could move a speed and is not the same in both."""
    facts = _facts(first), _facts(other)
    names = dict.fromkeys([*facts[0], *facts[1]])
    values = [(name, facts[0].get(name, "absent"), facts[1].get(name, "absent")) for name in names]
    return [Difference(*row) for row in values if row[1] != row[2]]


def _facts(run: Recorded) -> dict[str, str]:
    plan = msgspec.to_builtins(run.plan)
    facts = dict(_flat({name: plan[name] for name in plan if name not in FREE}, ""))
    hosts = [receipt.host for _, receipt in run.receipts]
    for name in dict.fromkeys(name for host in hosts for name in host):
        if name not in VOLATILE_HOST:
            values = sorted({str(host.get(name)) for host in hosts})
            facts[f"host.{name}"] = " or ".join(values)
    return facts


def _flat(tree: object, prefix: str) -> Iterator[tuple[str, str]]:
    """Leaves by dotted name; a list of cells is told apart by their names."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(tree, list) and tree and isinstance(tree[0], Mapping) and "name" in tree[0]:
        for entry in tree:
            yield from _flat(
                {name: value for name, value in entry.items() if name != "name"},
                f"{prefix}.{entry['name']}",
            )
    else:
        yield prefix, msgspec.json.encode(tree).decode()


def _rows(runs: Sequence[Recorded]) -> list[PooledRow]:
    plan = runs[0].plan
    by_run = [block_speeds(run) for run in runs]
    rows = []
    for cell in plan.cells:
        for arm in _measured_arms(plan):
            jobs = [speeds.get((cell.name, arm), {}) for speeds in by_run]
            bases = [speeds.get((cell.name, plan.base_arm), {}) for speeds in by_run]
            logs = [list(log_ratios(*sides).values()) for sides in zip(jobs, bases, strict=True)]
            values = [speed for speeds in jobs for speed in speeds.values()]
            if values:
                rows.append(
                    PooledRow(
                        cell=cell.name,
                        arm=arm,
                        num_jobs=len(values),
                        tok_per_s=statistics.median(values),
                        ratio=_mean([log for of_run in logs for log in of_run]),
                        by_run=tuple(_mean(of_run) for of_run in logs),
                    )
                )
    return rows


def _measured_arms(plan: Plan) -> list[str]:
    return list(dict.fromkeys(job.arm for job in plan.jobs if job.role == "measured"))


def _mean(logs: Sequence[float]) -> float:
    return math.exp(statistics.fmean(logs)) if logs else float("nan")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_LEN else f"{text[: MAX_SHOWN_LEN - 1]}…"


def pooled_table(rows: Sequence[PooledRow]) -> Table:
    """For a terminal; each run's own ratio stands beside, so that a drift shows."""
    table = Table(title="pooled runs")
    for name in ("cell", "arm"):
        table.add_column(name)
    for name in ("jobs", "median tok/s", "ratio to the base arm", "by run"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.cell,
            row.arm,
            str(row.num_jobs),
            f"{row.tok_per_s:.2f}",
            f"{row.ratio:.3f}",
            ", ".join(f"{ratio:.3f}" for ratio in row.by_run),
        )
    return table
