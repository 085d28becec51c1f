"""Where decode time goes: parts that add up to the nanosecond, and no row where one is unknown."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from analysis.breakdown import PARTS, Breakdown, break_down, critical_path, job_breakdowns
from analysis.breakdown_table import breakdown_table
from analysis.load import load_experiment
from bench.check_rules import check_receipt
from bench.schema import FrameRow, Receipt, StageSpan
from bench.schema_versions import version_defects
from tests.analysis.altered import changed
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import make_receipt, prefill_frame
from tests.analysis.plan_builder import Recipe, make_plan
from tests.analysis.wire_builder import digest_of

NUM_STAGES = 4
PLAN = make_plan(Recipe(cells=("chat",), reps=1))
BASE = make_receipt(PLAN, digest_of("plan"), PLAN.jobs[1], "00", 0.0)
SPANS = [StageSpan(queue_ns=3, compute_ns=20, span_ns=25)] * NUM_STAGES


def row(
    sent_ns: int, received_ns: int | None, committed_len: int = 1, draft_ns: int = 0
) -> FrameRow:
    """A decode frame; spans only where a reply was seen."""
    return msgspec.structs.replace(
        prefill_frame(),
        outcome="applied" if committed_len else "stale",
        source="none",
        sent_ns=sent_ns,
        received_ns=received_ns,
        committed_len=committed_len,
        spans=[] if received_ns is None else SPANS,
        draft_ns=draft_ns,
    )


def receipt_of(rows: list[FrameRow], first_ns: int, last_ns: int) -> Receipt:
    """A job of these frames, behind a prompt pass that was answered at 1000 ns."""
    prompt = msgspec.structs.replace(prefill_frame(), sent_ns=10, received_ns=1000, spans=SPANS)
    timing = msgspec.structs.replace(
        BASE.timing, prefill_sent_ns=5, first_commit_ns=first_ns, last_commit_ns=last_ns
    )
    links = [msgspec.structs.replace(link, rtt_ns=[203, 201, 300]) for link in BASE.links]
    frames = [prompt, *rows]
    hops = [
        msgspec.structs.replace(hop, frames=len(frames), codec_ns=7 * len(frames), seal_ns=11)
        for hop in BASE.counters.hops
    ]
    counters = msgspec.structs.replace(BASE.counters, hops=hops)
    return msgspec.structs.replace(
        BASE, frames=frames, timing=timing, links=links, counters=counters
    )


def test_a_worked_example() -> None:
    """Two frames in a burst, one that was overtaken, one that brings the last token."""
    rows = [
        row(1100, 2000, draft_ns=40),
        row(1150, 2100, draft_ns=30),  # the burst's second: both drafts lie on its way
        row(1160, None, committed_len=0),
        row(2150, 3300, draft_ns=20),
    ]
    receipt = receipt_of(rows, first_ns=1010, last_ns=3305)
    assert critical_path(receipt) == [(0, 2), (2, 4)]
    parts = break_down(receipt)
    assert parts == Breakdown(
        draft=40 + 30 + 20,
        coordinator=(150 - 70) + (50 - 20) + 5 - 10,
        queue=2 * 4 * 3,
        compute=2 * 4 * 20,
        other_span=2 * 4 * 2,
        codec=2 * 5 * 7,
        seal=5 * (11 * 2 // 5),
        links=2 * 5 * 101,
        rest=(2100 - 1150) + (3300 - 2150) - 2 * 4 * 25 - 2 * 5 * 7 - 20 - 2 * 5 * 101,
    )
    assert parts.total == 3305 - 1010


def test_a_reply_that_was_read_while_drafting_leaves_no_negative_wait() -> None:
    """Catches a draft that is counted longer than the wait that it is a part of."""
    receipt = receipt_of(
        [row(1010, 2000), row(1020, 2950), row(3000, 3300, draft_ns=900)], 1000, 3300
    )
    parts = break_down(receipt)
    assert parts is not None and (parts.draft, parts.coordinator) == (50, 20)


@st.composite
def jobs(draw: st.DrawFn) -> Receipt:
    """Frames in order of sending, some unanswered; a few replies at one moment, or at once."""
    sent_ns, rows = 1000, []
    for _ in range(draw(st.integers(0, 12))):
        sent_ns += draw(st.integers(0, 400))
        took_ns = draw(st.none() | st.integers(0, 900))
        received_ns = None if took_ns is None else sent_ns + took_ns
        committed_len = 0 if received_ns is None else draw(st.integers(0, 2))
        rows.append(row(sent_ns, received_ns, committed_len, draw(st.integers(0, 300))))
    sent_ns += draw(st.integers(0, 400))
    last_ns = max([sent_ns, *(frame.received_ns or 0 for frame in rows)]) + draw(st.integers(0, 99))
    rows.append(row(sent_ns, last_ns))
    first_ns = 1000 + draw(st.integers(0, 9))
    return receipt_of(rows, first_ns, last_ns + draw(st.integers(0, 9)))


@settings(max_examples=200, deadline=None)
@given(jobs())
def test_the_parts_add_up_to_the_nanosecond(receipt: Receipt) -> None:
    parts, path, frames = break_down(receipt), critical_path(receipt), receipt.frames
    assert parts is not None
    assert parts.total == receipt.timing.last_commit_ns - receipt.timing.first_commit_ns
    assert parts.draft >= 0 and parts.seal >= 0 and parts.links > 0
    assert path[0][0] == 0 and path[-1][1] == len(frames) - 1
    assert [trigger for trigger, _ in path[1:]] == [idx for _, idx in path[:-1]]
    for trigger, idx in path:
        assert trigger < idx and frames[trigger].received_ns <= frames[idx].sent_ns
        between = (frames[trigger].received_ns + 1, frames[idx].sent_ns)
        earlier = [frame.received_ns for frame in frames[:idx] if frame.received_ns is not None]
        assert not [at for at in earlier if between[0] <= at <= between[1]], "the latest reply"


def test_what_was_not_measured_is_not_guessed() -> None:
    receipt = receipt_of([row(1100, 2000), row(2100, 3000)], 1000, 3000)
    assert break_down(receipt) is not None
    hops = receipt.counters.hops
    silent = [msgspec.structs.replace(hops[0], codec_ns=UNSET, seal_ns=UNSET), *hops[1:]]
    undrafted = [msgspec.structs.replace(frame, draft_ns=UNSET) for frame in receipt.frames]
    bare = [*receipt.frames[:2], msgspec.structs.replace(receipt.frames[2], spans=[])]
    for lacking in (
        {"counters": msgspec.structs.replace(receipt.counters, hops=UNSET)},
        {"counters": msgspec.structs.replace(receipt.counters, hops=silent)},
        {"frames": undrafted},
        {"frames": bare},
        {"frames": receipt.frames[:1]},
        {"frames": receipt.frames[1:]},
        {"links": receipt.links[1:]},
        {"timing": msgspec.structs.replace(receipt.timing, last_commit_ns=None)},
    ):
        assert break_down(msgspec.structs.replace(receipt, **lacking)) is None, list(lacking)


def test_invented_receipts_are_whole(seal_invented: Invented) -> None:
    """Catches tests on receipts that no harness would write."""
    experiment = load_experiment(seal_invented.folder, seal_invented.key_folders)
    assert not list(version_defects(experiment.plan))
    for receipt in experiment.receipts:
        assert not list(check_receipt(receipt))


def test_the_table_shows_every_part_and_what_is_left(seal_invented: Invented) -> None:
    experiment = load_experiment(seal_invented.folder, seal_invented.key_folders)
    jobs_found = job_breakdowns(experiment)
    assert len(jobs_found) == len(experiment.measured())
    decode_ns = {
        receipt.position.job_idx: receipt.timing.last_commit_ns - receipt.timing.first_commit_ns
        for receipt, _ in experiment.measured()
    }
    totals = jobs_found.set_index("job_idx")[list(PARTS)].sum(axis=1)
    assert totals.to_dict() == decode_ns
    spec = breakdown_table(experiment)
    shown = spec.printed()
    assert [cells[4] for cells in shown[:2]] == ["% of decode", "ms/traversal"]
    assert len(shown) == 2 * 2 * 4 and {cells[2] for cells in shown} == {"4"}
    percents = [float(cell) for cell in shown[0][5:]]
    assert len(percents) == len(PARTS) and sum(percents) == pytest.approx(100, abs=2)
    assert shown[1][12] == "276.25", "five links of half 110.5 ms"
    assert "|rest| is at most 2 % of decode in " in spec.notes[1]

    def silent(receipt: Receipt) -> Receipt:
        hops = [
            msgspec.structs.replace(hop, codec_ns=UNSET, seal_ns=UNSET)
            for hop in receipt.counters.hops
        ]
        counters = msgspec.structs.replace(receipt.counters, hops=hops)
        return msgspec.structs.replace(receipt, counters=counters)

    dashes = {
        tuple(cells[5:])
        for cells in breakdown_table(changed(experiment, "seal-aes", silent)).printed()
        if cells[1] == "seal-aes"
    }
    assert dashes == {("—",) * len(PARTS)}
