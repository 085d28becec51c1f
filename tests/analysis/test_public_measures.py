"""The audit's formulas against values worked out by hand on a few invented jobs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.public.attestation import RING, cost_rows, ring_rows
from analysis.public.decode import decode_rows, one, split_rows, stage_rows, weighted_rows
from analysis.public.files import PublicReceipts, read_public
from analysis.public.law import implied_alpha, law_rows
from engine.errors import ReceiptError
from tests.analysis.public_builder import Entry, honest, job


def read(folder: Path, on: list[Entry], off: list[Entry]) -> PublicReceipts:
    """The honest set with other jobs."""
    files = honest()
    files.on, files.off = on, off
    return read_public(folder, files.write(folder))


def speed_jobs() -> tuple[list[Entry], list[Entry]]:
    """Two cells with receipts, the second one of chain alone, and a third without."""
    on = [
        job("ar", "b", 1),
        job("ar", "a", 1, tok_s=4.0, new_tokens=40, decode_s=10.0),
        job("chain", "a", 1, tok_s=9.0, new_tokens=90, decode_s=10.0, accept=1.0, g=2.0, wasted=0),
        job("chain", "a", 2, tok_s=7.0, new_tokens=70, decode_s=10.0, accept=1.0, g=2.0, wasted=0),
        job("chain", "a", 3, tok_s=6.0, new_tokens=120, decode_s=20.0, accept=1.2, g=2.0, wasted=0),
        job("chain", "b", 1, tok_s=5.0, prompt_tokens=900, wasted=4),
        job("hybrid", "a", 1, tok_s=8.0, new_tokens=80, decode_s=10.0),
    ]
    off = [
        job("hybrid", "c", 1, tok_s=16.0, receipts_ok=None),
        job("chain", "c", 1, tok_s=12.0, receipts_ok=None),
        job("chain", "a", 1, tok_s=99.0, receipts_ok=None),
    ]
    return on, off


def test_the_decode_table_has_medians_and_ends_of_the_papers_own_phase(tmp_path: Path) -> None:
    """Catches a mean for a median, a cell of both files taken from the wrong one, a lost cell,
    and the order of an arm that runs few cells."""
    rows = decode_rows(read(tmp_path, *speed_jobs()))
    keys = list(zip(rows["cell"], rows["receipts"], rows["arm"], strict=True))
    assert keys == [
        ("a", "on", "ar"),
        ("a", "on", "chain"),
        ("a", "on", "hybrid"),
        ("b", "on", "ar"),
        ("b", "on", "chain"),
        ("c", "off", "chain"),
        ("c", "off", "hybrid"),
    ]
    chain = one(rows, cell="a", arm="chain")
    assert (chain["tok_s"], chain["low"], chain["high"], chain["n"]) == (7.0, 6.0, 9.0, 3)
    assert (chain["g"], chain["accept"], chain["rounds"], chain["wasted"]) == (2.0, 1.0, 10, 0)
    assert chain["varies"] == 1 and one(rows, cell="a", arm="ar")["varies"] == 0
    assert one(rows, cell="b", arm="chain")["prompt_tokens"] == 900


def test_totals_are_tokens_over_time_and_no_mean_of_speeds(tmp_path: Path) -> None:
    on, off = speed_jobs()
    totals = weighted_rows(read(tmp_path, on[:5] + on[6:], off))
    chain = one(totals, phase="on", arm="chain")
    assert chain["tok_s"] == pytest.approx((90 + 70 + 120) / 40) and chain["n"] == 3


def test_a_round_is_split_by_sums(tmp_path: Path) -> None:
    """Catches a mean of ratios: one job has ten times the rounds of the other."""
    small = {"traversal_s": 1.0, "transport_s": 0.9, "stage_s": 0.1, "rounds": 1, "wasted": 1}
    large = {"traversal_s": 4.0, "transport_s": 1.0, "stage_s": 3.0, "rounds": 9, "wasted": 4}
    on = [
        job("ar", "a"),
        job("chain", "a", 1, g=1.0, **small),
        job("chain", "a", 2, g=3.0, **large),
        job("hybrid", "a"),
    ]
    rows = split_rows(read(tmp_path, on, [job("chain", "a"), job("hybrid", "a")]))
    chain = one(rows, phase="on", arm="chain")
    assert chain["traversal"] == pytest.approx(500.0)
    assert (chain["stage"], chain["transport"]) == pytest.approx((310.0, 190.0))
    assert chain["share"] == pytest.approx(38.0)
    assert chain["frame"] == pytest.approx(5000.0 / 15)
    assert (chain["g"], chain["n"]) == (pytest.approx(2.8), 2)


@pytest.mark.parametrize(
    ("accepted", "alpha"),
    [
        (0.0, 0.0),
        (1.0 - 0.5**8, 0.5),  # 1/2 + 1/4 + … + 1/256
        (sum(0.9**power for power in range(1, 9)), 0.9),
        (8.0, 1.0),
    ],
)
def test_alpha_is_solved_from_accepted_drafts(accepted: float, alpha: float) -> None:
    """Catches the acceptance rate (accepted over drafted) taken for alpha, and E[a] + 1."""
    assert implied_alpha(accepted, 8) == pytest.approx(alpha, abs=1e-9)


def test_the_law_of_one_chunk_and_of_four(tmp_path: Path) -> None:
    """alpha = 1/2 and T = 1/4 s: 511/256 tokens a loop; p = 1/256 for four chunks."""
    own = {"accept": 1.0 - 0.5**8, "tok_s": 7.0, "rounds": 16, "traversal_s": 4.0}
    on = [job("ar", "a"), job("chain", "a", **own), job("hybrid", "a")]
    off = [job("chain", "a"), job("hybrid", "a"), job("chain", "b", **own)]
    rows = law_rows(read(tmp_path, on, off))
    assert list(zip(rows["cell"], rows["receipts"], strict=True)) == [("a", "on"), ("b", "off")]
    row = rows.iloc[0]
    assert row["alpha"] == pytest.approx(0.5)
    assert row["loop_ms"] == pytest.approx(250.0)
    assert row["lockstep"] == pytest.approx(511 / 256 * 4)
    assert row["over"] == pytest.approx(511 / 256 * 4 / 7)
    full = 1 / 256
    chain = 4 * (1 - full) / (0.5 * 0.25 * (full + 4 * (1 - full)))
    assert row["pipelined"] == pytest.approx(chain)
    assert row["ceiling"] == pytest.approx(8.0)


def gaps(cell: str, rounds: int, gap: float, arm: str = "chain", compute: float = 10.0) -> Entry:
    """A job of one stage whose frames wait this long between compute and send."""
    times = {"0": [compute + gap, compute]}
    return job(arm, cell, rounds=rounds, wasted=0, per_stage_ms=times)


def costs(folder: Path, on: list[Entry], off: list[Entry]) -> PublicReceipts:
    others = [gaps("a", 1, 1.0, arm="ar"), gaps("a", 1, 1.5, arm="hybrid")]
    return read(folder, [*others, *on], [gaps("a", 1, 1.0, arm="hybrid"), *off])


@pytest.fixture
def uneven(tmp_path: Path) -> PublicReceipts:
    """Cells a and b in both files, c in one; what computing does is no cost of signing."""
    on = [gaps("a", 10, 0.5, compute=40.0), gaps("b", 30, 0.9, compute=60.0)]
    off = [gaps("a", 10, 0.3), gaps("b", 30, 0.5, compute=30.0), gaps("c", 10, 9.0)]
    return costs(tmp_path, on, off)


def test_the_cost_of_signing_is_free_of_what_computing_did(uneven: PublicReceipts) -> None:
    """Catches a difference of spans, and a cell of one file alone: cells a 0.2 and b 0.4 ms."""
    row = one(cost_rows(uneven), arm="chain", stage="0")
    assert (row["gap_off"], row["gap_on"]) == pytest.approx((0.4, 0.7))
    assert row["cost"] == pytest.approx(0.3)
    assert row["share"] == pytest.approx(0.3 / 20.0 * 100)
    assert row["shift"] == pytest.approx(100 * (50.7 / 20.4 - 1))


def test_every_weighting_is_what_it_says(uneven: PublicReceipts) -> None:
    rings = ring_rows(uneven).query("arm == 'chain'").set_index("weighting")["cost"]
    assert rings["cells"] == pytest.approx(0.3)
    assert rings["frames"] == pytest.approx((10 * 0.5 + 30 * 0.9) / 40 - (3 + 15 + 90) / 50)
    assert rings["jobs"] == pytest.approx((0.5 + 0.9) / 2 - (0.3 + 0.5 + 9.0) / 3)


def test_the_rings_cost_is_the_sum_of_its_stages(tmp_path: Path) -> None:
    rows = cost_rows(read_public(tmp_path, honest().write(tmp_path)))
    assert list(rows["stage"]) == ["0", "1", "2", "3", RING] * 2
    chain = rows[rows["arm"] == "chain"].set_index("stage")
    assert chain["cost"].to_dict() == pytest.approx(
        {"0": 0.08, "1": 0.16, "2": 0.04, "3": 0.12, RING: 0.4}
    )
    assert list(chain["share"]) == pytest.approx([0.4] * 5)


def test_no_cell_in_common_is_an_error(tmp_path: Path) -> None:
    """Catches a difference between cells that have nothing to do with each other."""
    public = costs(tmp_path, [gaps("a", 1, 1.0)], [gaps("b", 1, 1.0)])
    with pytest.raises(ReceiptError, match="no cell in common of arm chain: "):
        cost_rows(public)


def test_stages_are_means_over_frames(tmp_path: Path) -> None:
    """Catches a mean over jobs: 10 frames of 10 ms and 30 of 50 ms."""
    on = [gaps("a", 10, 1.0, compute=10.0), gaps("b", 30, 1.0, compute=50.0)]
    rows: pd.DataFrame = stage_rows(costs(tmp_path, on, [gaps("a", 1, 1.0)]))
    assert one(rows, phase="on", arm="chain")["compute"] == pytest.approx(40.0)
    assert one(rows, phase="on", arm="chain")["span"] == pytest.approx(41.0)


def test_a_row_that_is_not_alone_is_no_answer(tmp_path: Path) -> None:
    """Catches the first of several rows taken for the one that was asked for."""
    rows = decode_rows(read_public(tmp_path, honest().write(tmp_path)))
    with pytest.raises(KeyError, match=r"10 rows with"):
        one(rows, arm="chain")
