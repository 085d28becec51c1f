"""A kind of product, and how every product of some kinds is made, on every core.

Guarantees: an experiment is loaded once for all that is made of it; what is written does not hang
on the number of processes; the first refusal stops the rest and is raised.
Must never know what a product shows.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from analysis.folders import RECEIPTS_FOLDER
from analysis.load import Experiment, find_experiments, load_experiment

Task = Callable[[], list[Path]]


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes the products of a kind; None: it has none of that sort.

    Makers are given a folder that is laid out as `paper/` and return the paths that they wrote.
    They are functions of a module, since another process must find them.

    Attributes:
        places: files and folders in `paper/` where all of the kind lies.
        of_experiment: makes those of one committed experiment, given with its folder's name.
        of_records: makes those of the committed study records.
        of_all: makes those that join experiments, given all committed ones, the default one first.
        of_products: makes what is made of other products; it runs when these are there.
    """

    places: tuple[str, ...]
    of_experiment: Callable[[Experiment, str, Path], list[Path]] | None = None
    of_records: Callable[[Path], list[Path]] | None = None
    of_all: Callable[[Sequence[Experiment], Path], list[Path]] | None = None
    of_products: Callable[[Path], list[Path]] | None = None


def make_products(
    kinds: Iterable[Kind], paper: Path, num_processes: int | None = None
) -> Iterator[Path]:
    """Make every product of these kinds, from all that is committed; yields the paths written.

    Args:
        paper: a folder to lay out as `paper/`.
        num_processes: None: as many as there are cores.

    Raises:
        LonghaulError: receipts that cannot be used, or nothing to draw.
    """
    kinds = tuple(kinds)
    yield from _run(_tasks(kinds, paper), num_processes or os.cpu_count() or 1)
    for kind in kinds:
        yield from kind.of_products(paper) if kind.of_products else []


def _tasks(kinds: Sequence[Kind], paper: Path) -> list[Task]:
    tasks: list[Task] = []
    if any(kind.of_experiment for kind in kinds):
        tasks += [partial(_of_experiment, kinds, folder, paper) for folder in _largest_first()]
    # What joins experiments comes behind each of them: by then their receipts have been checked.
    if any(kind.of_all for kind in kinds):
        tasks.append(partial(_of_all, kinds, paper))
    if any(kind.of_records for kind in kinds):
        tasks.append(partial(_of_records, kinds, paper))
    return tasks


def _run(tasks: Sequence[Task], num_processes: int) -> Iterator[Path]:
    num_processes = min(num_processes, len(tasks))
    if num_processes <= 1:
        for task in tasks:
            yield from task()
        return
    # A forked process has imported already what takes a new one longer than many a product.
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(num_processes, context)
    try:
        for future in [pool.submit(task) for task in tasks]:
            yield from future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _largest_first() -> list[Path]:
    """Experiments in the order in which to begin them, so that no process works alone at the end.

    The sort is stable: of equal ones the default one stays first.
    """

    def num_files(folder: Path) -> int:
        receipts = folder / RECEIPTS_FOLDER
        return len(list(receipts.iterdir())) if receipts.is_dir() else 0

    return sorted(find_experiments(), key=num_files, reverse=True)


def _of_experiment(kinds: Sequence[Kind], folder: Path, paper: Path) -> list[Path]:
    experiment = load_experiment(folder)
    makers = [kind.of_experiment for kind in kinds if kind.of_experiment]
    return [path for make in makers for path in make(experiment, folder.name, paper)]


def _of_all(kinds: Sequence[Kind], paper: Path) -> list[Path]:
    experiments = [load_experiment(folder) for folder in find_experiments()]
    makers = [kind.of_all for kind in kinds if kind.of_all]
    return [path for make in makers for path in make(experiments, paper)]


def _of_records(kinds: Sequence[Kind], paper: Path) -> list[Path]:
    makers = [kind.of_records for kind in kinds if kind.of_records]
    return [path for make in makers for path in make(paper)]
