"""Numbers of settings, verdicts and shares, against what receipts and tables say."""

from __future__ import annotations

import msgspec
import pytest

from analysis.attest_tables import statement_rows
from analysis.claim_numbers import claim_numbers
from analysis.effects import ALL_CELLS, ratio_table
from analysis.load import Experiment, jobs_frame
from analysis.ratio_numbers import ratio_decimals, ratio_numbers
from tests.analysis.altered import changed, load_invented
from tests.analysis.conftest import Invented


@pytest.fixture
def experiment(planner_invented: Invented) -> Experiment:
    return load_invented(planner_invented)


def test_the_loop_is_the_sum_of_its_links(experiment: Experiment) -> None:
    links = experiment.receipts[0].links
    numbers = claim_numbers(experiment)
    assert numbers["profile.loop_ms"].value == f"{sum(each.one_way_ns for each in links) / 1e6:.0f}"
    assert numbers["plan.cells"].value == str(len(experiment.plan.cells))


def test_only_identical_jobs_count_as_such(experiment: Experiment) -> None:
    """Catches a count of jobs that ended well, whatever they wrote."""
    used = len(experiment.measured())
    assert claim_numbers(experiment)["jobs.identical"].value == str(used)
    other = msgspec.structs.replace(experiment.receipts[0].lossless, verdict="different")
    wrong = changed(
        experiment, "planner", lambda each: msgspec.structs.replace(each, lossless=other)
    )
    planned = sum(each.requested.arm == "planner" for each, _ in experiment.measured())
    assert claim_numbers(wrong)["jobs.identical"].value == str(used - planned)


def test_the_claim_s_ratio_is_over_its_cells_alone(experiment: Experiment) -> None:
    numbers = claim_numbers(experiment)
    name = "draftable.planner.over.two-state.ratio"
    if "verbatim-long" in {cell.name for cell in experiment.plan.cells}:
        assert name in numbers
    else:
        assert name not in numbers  # a mean over the cells that happen to be there is no mean


def test_without_statements_there_is_no_share(experiment: Experiment) -> None:
    assert statement_rows(experiment).empty
    assert "digest.share" not in claim_numbers(experiment)


def test_ratios_are_the_table_s_by_cell_and_over_all(experiment: Experiment) -> None:
    jobs = jobs_frame(experiment)
    table, band = ratio_table(jobs, experiment.plan, "ar", experiment.measured_arms())
    numbers = ratio_numbers(experiment, jobs, "ar")
    for row in table.dropna(subset=["ratio"]).itertuples():
        cell = "all" if row.cell == ALL_CELLS else row.cell
        found = numbers[f"{cell}.{row.arm}.over.ar.ratio"]
        assert float(found.value) == pytest.approx(row.ratio, rel=0.006)
        used = jobs[jobs["arm"].isin(["ar", row.arm])]
        used = used if cell == "all" else used[used["cell"] == row.cell]
        assert found.receipt_ids == sorted(used["receipt_id"])
    assert numbers["null_band.ar.low"].value == f"{band.low:.3f}"


@pytest.mark.parametrize(("ratio", "decimals"), [(0.9, 3), (1.999, 3), (2.0, 2), (51.2, 1)])
def test_large_ratios_claim_no_thousandths(ratio: float, decimals: int) -> None:
    assert ratio_decimals(ratio) == decimals
