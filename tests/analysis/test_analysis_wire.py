"""The wire, the ids and the probes of links against numbers worked out by hand."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from analysis.agreement import compare_ids, first_difference
from analysis.checks import check_identities
from analysis.link_probes import links_frame
from analysis.load import Experiment, find_experiment, load_experiment
from analysis.wire import arms_on_wire, bytes_ratio, position_bounds, wire_by_arm, wire_frame
from bench.receipt import parse_document, write_signed
from bench.schema import Counters, FrameRow, LinkRow, Receipt
from engine.errors import ReceiptError
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import (
    FIRST_DIFFERENCE,
    PROMPT_LEN,
    prefill_frame,
    receipt_path,
)
from tests.analysis.wire_builder import BYTES_PER_POSITION, FRAME_BYTES, RING


@pytest.fixture
def fp8(fp8_invented: Invented) -> Experiment:
    return load_experiment(fp8_invented.folder, fp8_invented.key_folders)


@pytest.fixture
def frames(frames_invented: Invented) -> Experiment:
    return load_experiment(frames_invented.folder, frames_invented.key_folders)


def frame_of(positions_len: int, outcome: str) -> FrameRow:
    return msgspec.structs.replace(prefill_frame(), positions_len=positions_len, outcome=outcome)


def with_hops(change: Callable[[Counters], Counters]) -> Callable[[Receipt], Receipt]:
    return lambda receipt: msgspec.structs.replace(receipt, counters=change(receipt.counters))


def test_dropped_frames_bound_the_positions() -> None:
    """Catches a dropped frame taken for an answered one, which nothing overtook."""
    rows = [frame_of(40, "prefill"), frame_of(9, "applied"), frame_of(8, "stale")]
    rows += [frame_of(3, "refuted"), frame_of(5, "closed")]
    assert position_bounds(rows, 5) == (65, 65)
    assert position_bounds(rows, 4) == (65 - 8, 65 - 3)
    assert position_bounds(rows, 3) == (65 - 13, 65 - 8)


def test_bytes_a_position_are_those_of_the_hops_between_stages(fp8: Experiment) -> None:
    """Catches requests or replies among the hidden states, or hops counted once."""
    jobs = wire_frame(fp8)
    job = jobs[(jobs["arm"] == "chain-fp8") & (jobs["cell"] == "chat")].iloc[0]
    receipt = fp8.receipts[job["job_idx"]]
    positions = sum(frame.positions_len for frame in receipt.frames)
    assert positions > PROMPT_LEN
    assert job["least_positions"] == job["most_positions"] == 3 * positions
    per_hop = FRAME_BYTES * len(receipt.frames) + BYTES_PER_POSITION["fp8"] * positions
    assert job["hidden_bytes"] == 3 * per_hop
    assert job["request_bytes"] == sum(frame.sent_bytes for frame in receipt.frames)
    summed = job[["request_bytes", "hidden_bytes", "reply_bytes"]].sum()
    assert summed == receipt.counters.bytes_on_wire
    by_arm = wire_by_arm(jobs)
    assert list(by_arm["jobs"]) == [8] * 6
    least, most = bytes_ratio(by_arm, "chain-fp8", "chain-k8")
    assert least == most
    assert 580 / 2304 < least < 0.27
    assert math.isnan(bytes_ratio(by_arm, "chain-fp8", "nothing")[0])


def test_frames_a_traversal_by_ring(frames: Experiment) -> None:
    rows = arms_on_wire(frames).set_index("arm")
    assert list(rows.index)[:5] == ["ids-s1", "ids-s2", "ids-s3", "ids-s4", "logits-s1"]
    for num_stages in (1, 2, 3, 4):
        row = rows.loc[f"logits-s{num_stages}"]
        assert row["frames"] == (num_stages + 1) * row["traversals"]
        assert row["num_stages"] == num_stages and row["is_exact"]
        assert row["reply_per_traversal"] == FRAME_BYTES + 1000
    assert rows.loc["ids-s1", "hidden_bytes"] == 0
    assert math.isnan(rows.loc["ids-s1", "most_bytes"]), "one stage sends no hidden states"


def test_a_stage_that_skips_a_frame_is_noticed(frames: Experiment) -> None:
    """Catches an exactness that looks at totals, in which two wrongs cancel."""
    receipt = next(r for r in frames.receipts if r.requested.arm == "ids-s2")
    hops = list(receipt.counters.hops)
    hops[1] = msgspec.structs.replace(hops[1], frames=hops[1].frames - 1)
    hops[2] = msgspec.structs.replace(hops[2], frames=hops[2].frames + 1)
    counters = msgspec.structs.replace(receipt.counters, hops=hops)
    receipts = [
        msgspec.structs.replace(r, counters=counters) if r is receipt else r
        for r in frames.receipts
    ]
    rows = wire_by_arm(wire_frame(replace(frames, receipts=tuple(receipts)))).set_index("arm")
    assert not rows.loc["ids-s2", "is_exact"]
    assert rows.loc["ids-s3", "is_exact"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: msgspec.structs.replace(c, bytes_on_wire=1), "hops add up"),
        (lambda c: msgspec.structs.replace(c, frames_on_wire=1), "hops add up"),
        (lambda c: msgspec.structs.replace(c, hops=c.hops[1:]), "its hops wrote"),
        (lambda c: msgspec.structs.replace(c, hops=[
            c.hops[0], msgspec.structs.replace(c.hops[1], frames=0), *c.hops[2:]
        ]), "its hops wrote"),
        (lambda c: msgspec.structs.replace(c, hops=[
            *c.hops[:-1], msgspec.structs.replace(c.hops[-1], frames=10**6)
        ]), "its hops wrote"),
        (lambda c: msgspec.structs.replace(c, hops=[
            msgspec.structs.replace(c.hops[0], frames=c.hops[0].frames - 1), *c.hops[1:]
        ]), "its hops wrote"),
    ],
)  # fmt: skip
def test_contradictory_hops_are_refused_by_name(
    frames_invented: Invented, tmp_path: Path, change: Callable[[Counters], Counters], reason: str
) -> None:
    folder = Path(shutil.copytree(frames_invented.folder, tmp_path / "copy"))
    path = receipt_path(folder, 3)
    receipt = with_hops(change)(parse_document(path.read_bytes(), Receipt))
    write_signed(path, receipt, frames_invented.identity)
    with pytest.raises(ReceiptError, match=rf"0003\.json: .*{reason}"):
        load_experiment(folder, frames_invented.key_folders)


def test_the_coordinator_wrote_every_frame(seal_invented: Invented) -> None:
    """Catches a coordinator's count that only the bound for stages, which may drop, looks at."""
    receipts = load_experiment(seal_invented.folder, seal_invented.key_folders).receipts
    receipt = next(r for r in receipts if any(f.outcome == "stale" for f in r.frames))
    hops = list(receipt.counters.hops)
    hops[0] = msgspec.structs.replace(hops[0], frames=hops[0].frames - 1)
    total = receipt.counters.frames_on_wire - 1
    counters = msgspec.structs.replace(receipt.counters, hops=hops, frames_on_wire=total)
    with pytest.raises(ReceiptError, match="its hops wrote"):
        check_identities(msgspec.structs.replace(receipt, counters=counters))


def test_a_failed_job_owes_no_hops(frames: Experiment) -> None:
    receipt = with_hops(lambda c: msgspec.structs.replace(c, hops=[]))(frames.receipts[0])
    check_identities(msgspec.structs.replace(receipt, status="failed"))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1)],
)
def test_first_difference(ours: list[int], theirs: list[int], expected: int | None) -> None:
    assert first_difference(ours, theirs) == expected


def test_fp8_ids_part_where_they_part(fp8: Experiment) -> None:
    rows = compare_ids(fp8, "ar-fp8", "ar").set_index("cell")
    assert rows.loc["verbatim-copy", "equal"] == 4
    assert math.isnan(rows.loc["verbatim-copy", "first_difference"])
    assert rows.loc["verbatim-copy", "equal_frac"] == 1
    first = FIRST_DIFFERENCE["chat"]
    assert rows.loc["chat", "equal"] == 0 and rows.loc["chat", "compared"] == 4
    assert rows.loc["chat", "first_difference"] == rows.loc["chat", "last_difference"] == first
    assert rows.loc["chat", "equal_frac"] == first / 40
    own = compare_ids(fp8, "chain-fp8", "ar-fp8")
    assert list(own["equal"]) == list(own["planned"]) == [4, 4]


def test_an_unfinished_job_is_never_equal(fp8: Experiment) -> None:
    """Catches a lost job that leaves the count and makes the rest look whole."""
    receipts = [
        msgspec.structs.replace(receipt, finish_reason="none")
        if receipt.requested.arm == "chain-fp8" and receipt.position.rep == 0
        else receipt
        for receipt in fp8.receipts
    ]
    rows = compare_ids(replace(fp8, receipts=tuple(receipts)), "chain-fp8", "ar-fp8")
    assert list(rows["planned"]) == [4, 4]
    assert list(rows["compared"]) == list(rows["equal"]) == [3, 3]


def with_last_links(experiment: Experiment, links: list[LinkRow]) -> Experiment:
    *others, last = experiment.receipts
    return replace(experiment, receipts=(*others, msgspec.structs.replace(last, links=links)))


def test_rings_that_differ_in_their_kernel_are_told_apart(int4_invented: Invented) -> None:
    """Catches the probes of two rings under one name, as two starts of one."""
    rows = links_frame(load_experiment(int4_invented.folder, int4_invented.key_folders))
    assert list(dict.fromkeys(rows["ring"])) == ["4 × plain", "4 × plain, int4-invented"]
    assert set(rows["start"]) == {1} and len(rows) == 2 * 5


def test_probes_of_each_ring_and_start(seal_invented: Invented) -> None:
    seal = load_experiment(seal_invented.folder, seal_invented.key_folders)
    rows = links_frame(seal)
    assert list(dict.fromkeys(rows["ring"])) == [
        "4 × plain", "4 × chacha20-poly1305", "4 × aes-256-gcm",
    ]  # fmt: skip
    assert len(rows) == 3 * 5
    row = rows.iloc[0]
    assert row["link"] == "coordinator->0" and row["probes"] == 5
    assert (row["one_way_ms"], row["rtt_ms"], row["payload_rtt_ms"]) == (55.0, 110.5, 134.5)
    assert (row["min_rtt_ms"], row["max_rtt_ms"]) == (110.3, 110.8)
    assert row["mb_per_s"] == pytest.approx(5.0)
    assert row["idle_penalty_ms"] == pytest.approx(80.0)
    overlapping = [
        msgspec.structs.replace(link, rtt_ns=[*link.rtt_ns[:-1], min(link.payload_rtt_ns)])
        for link in seal.receipts[-1].links
    ]
    rows = links_frame(with_last_links(seal, overlapping))
    unresolved = rows[rows["start"] == 2]
    assert unresolved["mb_per_s"].isna().all(), "the spreads meet: no rate is resolved"
    assert (unresolved["payload_rtt_ms"] > unresolved["rtt_ms"]).all(), "the medians do not"
    quick = [
        msgspec.structs.replace(link, payload_rtt_ns=[1, 2, 3]) for link in seal.receipts[-1].links
    ]
    again = links_frame(with_last_links(seal, quick))
    assert set(again["start"]) == {1, 2} and len(again) == 4 * 5
    assert again[again["start"] == 2]["mb_per_s"].isna().all(), "the payload took no longer"


def test_version_1_has_no_hops_and_no_payload_probes() -> None:
    committed = load_experiment(find_experiment())
    assert {receipt.schema for receipt in committed.receipts} == {"longhaul-receipt/1"}
    assert wire_frame(committed).empty
    assert links_frame(committed).empty


def test_a_job_on_another_arms_ring_is_refused(seal_invented: Invented, tmp_path: Path) -> None:
    """Catches a sealed arm that ran on the ring without protection."""
    folder = Path(shutil.copytree(seal_invented.folder, tmp_path / "copy"))
    plan = load_experiment(folder, seal_invented.key_folders).plan
    job_idx = next(row.job_idx for row in plan.jobs if row.arm == "seal-aes")
    path = receipt_path(folder, job_idx)
    receipt = parse_document(path.read_bytes(), Receipt)
    assert receipt.ring == plan.ring_of("seal-aes") != RING
    stray = msgspec.structs.replace(receipt, ring=RING)
    write_signed(path, stray, seal_invented.identity)
    with pytest.raises(ReceiptError, match=rf"{job_idx:04d}\.json: ring is"):
        load_experiment(folder, seal_invented.key_folders)


def test_a_reference_of_another_configuration_is_refused(
    fp8_invented: Invented, tmp_path: Path
) -> None:
    """Catches an fp8 job called identical to an f32 one, on a cell where both texts are equal."""
    folder = Path(shutil.copytree(fp8_invented.folder, tmp_path / "copy"))
    whole = load_experiment(folder, fp8_invented.key_folders)
    jobs = {(r.position.block_idx, r.requested.arm, r.position.role): r for r in whole.receipts}
    target = jobs[0, "chain-fp8", "measured"]
    wrong = whole.receipt_ids[jobs[0, "ar", "reference"].position.job_idx]
    path = receipt_path(folder, target.position.job_idx)
    lossless = msgspec.structs.replace(target.lossless, reference_id=wrong)
    write_signed(path, msgspec.structs.replace(target, lossless=lossless), fp8_invented.identity)
    with pytest.raises(ReceiptError, match=r"no reference job .* configuration fp8"):
        load_experiment(folder, fp8_invented.key_folders)


def test_a_reference_must_have_the_plans_levers(fp8_invented: Invented, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(fp8_invented.folder, tmp_path / "copy"))
    path = receipt_path(folder, 0)
    receipt = parse_document(path.read_bytes(), Receipt)
    assert receipt.position.role == "reference"
    other = msgspec.structs.replace(receipt.requested, numeric_config="fp8")
    write_signed(path, msgspec.structs.replace(receipt, requested=other), fp8_invented.identity)
    with pytest.raises(ReceiptError, match=r"0000\.json: requested levers"):
        load_experiment(folder, fp8_invented.key_folders)
