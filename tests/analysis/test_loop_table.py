"""Loops as asked and as measured: sums over links, several starts, and what else a profile asks."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from msgspec import UNSET

from analysis.load import Experiment
from analysis.loop_table import beside_delay, loop_rows, loop_table
from bench.schema import LinkTest, Receipt
from tests.analysis.altered import load_invented
from tests.analysis.conftest import Invented
from tests.analysis.wire_builder import ONE_WAY_NS, RTT_NS, link_rows

MS = 1_000_000
TEST = LinkTest(
    link="0->1",
    num_messages=200,
    num_busy=4,
    median_excess_ns=150_000,
    p99_excess_ns=3_590_000,
)


@pytest.fixture
def experiment(seal_invented: Invented) -> Experiment:
    """Rings of three suites, five links of 55 ms each, round trips of 110.5 ms."""
    return load_invented(seal_invented)


def test_a_loop_is_the_sum_of_its_links(experiment: Experiment) -> None:
    rows = loop_rows([experiment])
    assert list(rows["ring"]) == ["4 × plain", "4 × chacha20-poly1305", "4 × aes-256-gcm"]
    assert set(rows["asked_ms"]) == {5 * ONE_WAY_NS / MS} == {275.0}
    assert set(rows["loop_ms"]) == {5 * RTT_NS / 2 / MS} == {276.25}
    assert rows["worst_excess_ms"].tolist() == pytest.approx([0.25] * 3)
    assert set(rows["starts"]) == {1} and rows["late_ms"].isna().all()
    assert set(rows["emulated_by"]) == {"relay"} and set(rows["profile"]) == {"wan-275"}


def test_a_ring_that_came_up_again_was_measured_again(experiment: Experiment) -> None:
    """Catches the first start alone, and an early link that hides behind late ones."""

    def restarted(receipt: Receipt) -> Receipt:
        if receipt.position.rep < 2:
            return msgspec.structs.replace(receipt, link_test=TEST)
        first, *others = receipt.links
        # half a round trip of 45 ms on the first link, of 57 ms on the others
        links = [
            msgspec.structs.replace(first, rtt_ns=[90 * MS]),
            *(msgspec.structs.replace(link, rtt_ns=[114 * MS]) for link in others),
        ]
        return msgspec.structs.replace(receipt, links=links, link_test=TEST)

    twice = replace(experiment, receipts=tuple(map(restarted, experiment.receipts)))
    row = loop_rows([twice]).iloc[0]
    loops = (5 * 55.25, 45 + 4 * 57)
    assert row["starts"] == 2 and (row["min_loop_ms"], row["max_loop_ms"]) == tuple(sorted(loops))
    assert row["loop_ms"] == pytest.approx(sum(loops) / 2)
    assert row["worst_excess_ms"] == pytest.approx(-10.0)
    assert (row["late_ms"], row["p99_late_ms"]) == (0.15, 3.59)


def test_the_table_names_every_experiment_and_says_what_was_not_tested(
    experiment: Experiment,
) -> None:
    other = msgspec.structs.replace(experiment.plan, experiment="other")
    bare = tuple(msgspec.structs.replace(each, links=[]) for each in experiment.receipts)
    unlinked = replace(experiment, plan=other, receipts=bare)
    made = loop_table([experiment, unlinked]).to_markdown()
    assert (
        "| seal | wan-275 | relay | 4 × plain | 1 | 275.00 | nothing | 276.25 | 0.25 | — |" in made
    )
    assert "| other |" not in made, "a failed job has no links"
    assert "experiments seal, other" in made and experiment.receipt_set_digest[:16] in made


def test_what_else_a_profile_asks_is_said() -> None:
    link = link_rows(1)[0]
    assert beside_delay(link) == "nothing"
    asked = msgspec.structs.replace(
        link,
        jitter_ns=5 * MS,
        jitter_distribution="uniform",
        rate_bytes_per_s=25_000_000,
        loss_ppm=5_000,
        reorder_ppm=100,
        stall_ns=300 * MS,
        congestion_control="bbr",
    )
    assert beside_delay(asked) == (
        "jitter 5 ms uniform, 200 Mbit/s, loss 0.5 %, reordering 0.01 %, stalls of 300 ms, TCP bbr"
    )
    older = msgspec.structs.replace(
        link,
        jitter_ns=5 * MS,
        **dict.fromkeys(
            ("jitter_distribution", "loss_ppm", "reorder_ppm", "stall_ns", "congestion_control"),
            UNSET,
        ),
    )
    assert beside_delay(older) == "jitter 5 ms"
