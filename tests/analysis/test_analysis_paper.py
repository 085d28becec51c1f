"""What lies in paper/ is what the committed receipts give, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import check_paper
from analysis.figures import STUDY_PAINTERS, figures_of
from analysis.folders import REPOSITORY, committed_experiments, product_folder
from analysis.load import Experiment, find_experiments, load_experiment
from analysis.product_kind import make_products
from analysis.products import KINDS, bring_apart
from analysis.report_products import REPORT, joint_digest, report_figures
from analysis.study_records import PRODUCTS, study_records

PAPER = REPOSITORY / "paper"


@pytest.fixture(scope="module")
def committed() -> dict[str, Experiment]:
    """Every committed experiment by the name of its folder."""
    return {folder.name: load_experiment(folder) for folder in find_experiments()}


def test_the_paper_is_what_the_receipts_give(tmp_path: Path) -> None:
    """Catches a table made by older code or receipts, typed by hand, or that nothing makes now.

    Figures take as long as all other tests of this room; `make check-paper` draws them.
    """
    kinds = [KINDS["tables"], KINDS["numbers"]]
    bring_apart(tmp_path)
    made = list(make_products(kinds, tmp_path))
    assert list(check_paper.differences(kinds, tmp_path, PAPER)) == [], "run: make tables"
    assert len(made) >= 2 * len(committed_experiments())


def test_every_committed_figure_names_the_committed_receipts(
    committed: dict[str, Experiment],
) -> None:
    """Catches a figure that was drawn from other receipts, or by no painter of today."""
    names = {}
    for name, experiment in committed.items():
        out = product_folder("figures", "", name)
        for figure in figures_of(experiment):
            for ending in ("svg", "pdf", "csv"):
                names[out / f"{figure}.{ending}"] = experiment.receipt_set_digest
            if (out / f"{figure}.ids.txt").is_file():
                ids = (out / f"{figure}.ids.txt").read_text().split()
                assert ids and set(ids) <= set(experiment.receipt_ids)
    for figure, (study, _) in STUDY_PAINTERS.items():
        for made_of in study_records(study)[:1]:
            for ending in ("svg", "pdf", "csv"):
                path = product_folder("figures", "", PRODUCTS) / f"{figure}.{ending}"
                names[path] = made_of.record_id
    experiments = list(committed.values())
    for figure in report_figures(experiments):
        for ending in ("svg", "pdf", "csv"):
            names[PAPER / "figures" / REPORT / f"{figure}.{ending}"] = joint_digest(experiments)
    found = {path for path in (PAPER / "figures").rglob("*") if path.is_file()}
    assert {path for path in found if not path.name.endswith(".ids.txt")} == set(names)
    for path, digest in names.items():
        assert digest.encode() in path.read_bytes(), path
