"""Products are made once, in any number of processes, and a refusal ends it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from analysis import figures, folders, load, numbers, product_kind, products, tables
from analysis.load import Experiment, find_experiments
from analysis.product_kind import Kind, make_products
from engine.errors import ReceiptError
from tests.analysis.conftest import Invented
from tests.analysis.test_check_paper import told


def written(paper: Path, name: str, text: str) -> list[Path]:
    paper.mkdir(parents=True, exist_ok=True)
    (paper / name).write_text(text)
    return [paper / name]


def one(experiment: Experiment, name: str, paper: Path) -> list[Path]:
    return written(paper, f"{name}.one", f"{experiment.plan.experiment} {os.getpid()}")


def two(experiment: Experiment, name: str, paper: Path) -> list[Path]:
    return written(paper, f"{name}.two", f"{id(experiment)}")


def again(experiment: Experiment, name: str, paper: Path) -> list[Path]:
    return written(paper, f"{name}.again", f"{id(experiment)}")


def joined(experiments: Sequence[Experiment], paper: Path) -> list[Path]:
    return written(paper, "joined", " ".join(each.plan.experiment for each in experiments))


def recorded(paper: Path) -> list[Path]:
    return written(paper, "records", "")


def bound(paper: Path) -> list[Path]:
    """Lists what is there when it runs."""
    return written(paper, "bound", " ".join(sorted(path.name for path in paper.iterdir())))


def refusing(experiment: Experiment, name: str, paper: Path) -> list[Path]:
    raise ReceiptError(f"{name}: cannot be used")


FULL = Kind(places=(), of_experiment=one, of_records=recorded, of_all=joined, of_products=bound)
ALL_NAMES = ["bound", "decode.one", "frames.one", "joined", "records"]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_maker_runs_and_the_last_sees_all(two_committed: Path, num_processes: int) -> None:
    paths = list(make_products([FULL], two_committed / "paper", num_processes))
    assert sorted(path.name for path in paths) == ALL_NAMES and paths[-1].name == "bound"
    assert paths[-1].read_text().split() == ALL_NAMES[1:]
    assert (two_committed / "paper" / "joined").read_text() == "invented frames"
    made_by = {path.read_text().split()[1] for path in paths if path.suffix == ".one"}
    assert (str(os.getpid()) in made_by) == (num_processes == 1)


def test_an_experiment_is_loaded_once_for_all_kinds(two_committed: Path) -> None:
    paper = two_committed / "paper"
    kinds = [Kind(places=(), of_experiment=two), Kind(places=(), of_experiment=again)]
    list(make_products(kinds, paper, 1))
    assert (paper / "decode.two").read_text() == (paper / "decode.again").read_text()


def test_what_needs_no_experiment_loads_none(
    two_committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a report that waits for receipts which it does not read."""

    def loaded(folder: Path) -> Experiment:
        raise AssertionError(folder)

    monkeypatch.setattr(product_kind, "load_experiment", loaded)
    kind = Kind(places=(), of_records=recorded, of_products=bound)
    paths = list(make_products([kind], two_committed / "paper", 1))
    assert [path.name for path in paths] == ["records", "bound"]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_the_first_refusal_is_raised(two_committed: Path, num_processes: int) -> None:
    kinds = [Kind(places=(), of_experiment=refusing, of_products=bound)]
    with pytest.raises(ReceiptError, match="decode: cannot be used"):
        list(make_products(kinds, two_committed / "paper", num_processes))
    assert not (two_committed / "paper" / "bound").exists()


def test_a_refusal_leaves_no_process_at_work(
    two_committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches minutes of drawing after an error that was known at once."""
    asked = []

    class Watched(ProcessPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            asked.append((wait, cancel_futures))
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(product_kind, "ProcessPoolExecutor", Watched)
    with pytest.raises(ReceiptError):
        list(make_products([Kind(places=(), of_experiment=refusing)], two_committed / "paper", 2))
    assert asked == [(True, True)]


def test_the_largest_experiment_is_begun_first(
    invented: Invented, frames_invented: Invented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches one process that works alone at the end, on what takes longest."""
    shutil.copytree(frames_invented.folder, tmp_path / "decode")
    shutil.copytree(invented.folder, tmp_path / "other")
    for module in (folders, load):
        monkeypatch.setattr(module, "COMMITTED", tmp_path)
    assert [path.name for path in find_experiments()] == ["decode", "other"]
    tasks = product_kind._tasks([FULL], tmp_path / "paper")
    begun = [task.args[1].name for task in tasks[:2]]  # type: ignore[attr-defined]
    assert begun == ["other", "decode"] and len(tasks) == 4


def test_bytes_do_not_hang_on_the_number_of_processes(
    two_committed: Path, separate_kinds: dict[str, Kind], tmp_path: Path
) -> None:
    kinds = separate_kinds.values()
    made = []
    for num_processes in (1, 3):
        top = tmp_path / f"{num_processes}"
        paths = list(make_products(kinds, top, num_processes))
        assert all(path.is_file() for path in paths)
        found = [path for path in top.rglob("*") if path.is_file()]
        made.append({path.relative_to(top): path.read_bytes() for path in found})
        assert len(paths) == len(found), "every file is told of once"
    assert made[0] == made[1] and len(made[0]) > 40


@pytest.mark.usefixtures("separate_kinds")
def test_some_kinds_are_made_elsewhere(
    two_committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert products.main(["numbers", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("numbers")) == [
        "numbers",
        "numbers.json",
    ]
    assert told(capsys) == [
        f"wrote {tmp_path / 'numbers.json'}",
        f"wrote {tmp_path / 'numbers' / 'frames.json'}",
        f"wrote {tmp_path / 'numbers' / 'studies.json'}",
    ]
    assert not (tmp_path / "tables").exists() and not (two_committed / "paper").exists()


@pytest.mark.usefixtures("separate_kinds")
def test_what_is_made_apart_comes_along(two_committed: Path, tmp_path: Path) -> None:
    theirs = {"tables/public/audit.md": "table", "numbers/public.json": "{}"}
    for name, text in theirs.items():
        path = two_committed / "paper" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert products.main(["numbers", "--out", str(tmp_path / "out")]) == 0
    assert {name: (tmp_path / "out" / name).read_text() for name in theirs} == theirs
    written_ns = [(two_committed / "paper" / name).stat().st_mtime_ns for name in theirs]
    assert products.main(["numbers"]) == 0
    left_ns = [(two_committed / "paper" / name).stat().st_mtime_ns for name in theirs]
    assert left_ns == written_ns, "the committed ones are not written over themselves"


def test_a_misspelt_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert products.main(["tabels"]) == 2
    assert "unknown kind of product 'tabels'; valid: figures" in capsys.readouterr().err


@pytest.mark.parametrize("main", [figures.main, tables.main, numbers.main])
def test_a_folder_for_one_experiment_needs_the_experiment(
    main: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches the products of all experiments, which share names, in one folder."""
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out")])  # type: ignore[operator]
    assert "add --receipts" in capsys.readouterr().err


def test_printing_alone_needs_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tables.main(["--no-write"])
    assert "add --receipts" in capsys.readouterr().err
