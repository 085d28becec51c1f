"""Noops by arm: as their senders counted them."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from analysis.load import Experiment
from analysis.noop_table import noop_rows, noop_table
from bench.experiments import EXPERIMENTS
from bench.schema import Receipt
from tests.analysis.altered import changed, load_invented
from tests.analysis.conftest import Invented


@pytest.fixture
def experiment(keepwarm_invented: Invented) -> Experiment:
    return load_invented(keepwarm_invented, *EXPERIMENTS["keepwarm"].hypotheses)


def sending(*noops: int | msgspec.UnsetType) -> object:
    """A change that has each sender count so many, over and over."""

    def change(receipt: Receipt) -> Receipt:
        hops = [
            msgspec.structs.replace(hop, noops=noops[idx % len(noops)])
            for idx, hop in enumerate(receipt.counters.hops)
        ]
        counters = msgspec.structs.replace(receipt.counters, hops=hops)
        asked = msgspec.structs.replace(receipt.requested, keepwarm_ms=100)
        return msgspec.structs.replace(receipt, counters=counters, requested=asked)

    return change


def test_noops_of_all_senders_are_summed_by_job(experiment: Experiment) -> None:
    """Catches one sender's count taken for the job's, or an arm's for another's."""
    num_senders = experiment.plan.ring.num_stages + 1
    warm = changed(experiment, "chain-warm", sending(3, 7))
    rows = noop_rows(warm)
    own = rows[rows["arm"] == "chain-warm"]
    assert set(own["noops"]) == {3 * ((num_senders + 1) // 2) + 7 * (num_senders // 2)}
    assert set(own["busiest"]) == {7} and (own["keepwarm_ms"] > 0).all()
    others = rows[rows["arm"] != "chain-warm"]
    assert len(others) and not others["noops"].any()
    line = next(it for it in noop_table(warm).to_markdown().splitlines() if "chain-warm" in it)
    assert "| 7 |" in line and "100" in line


def test_jobs_that_counted_none_are_left_out(experiment: Experiment) -> None:
    """Catches a receipt from before noops were counted that is shown as one without."""
    older = changed(experiment, "ar-warm", sending(UNSET))
    assert "ar-warm" not in set(noop_rows(older)["arm"])
    assert "ar-warm" in set(noop_rows(experiment)["arm"])
