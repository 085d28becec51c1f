"""Where a traversal goes: parts that add up, a shade a stage, nothing for what was not measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from msgspec import UNSET

from analysis.breakdown import critical_path
from analysis.figure_file import house_style, save
from analysis.load import Experiment
from analysis.split_figure import (
    COLOURS,
    STAGE_COLOURS,
    TOTAL,
    draw_split,
    in_order,
    job_split,
    split_points,
)
from bench.schema import FrameRow, Receipt, StageSpan
from engine.errors import ReceiptError
from tests.analysis.altered import changed, load_invented, only_cells
from tests.analysis.conftest import Invented
from tests.analysis.wire_builder import CODEC_NS, SEAL_NS

ARMS = ("seal-none", "null-seal", "seal-chacha", "seal-aes")
NUM_STAGES = 4
RTT_NS = 100_000_000  # of a probe; less than a fifth of what the frames take
QUEUE_NS, COMPUTE_NS, HANDING_NS = 3_000_000, 1_000_000, 500_000
PARTS = ["links", "stage 0", "stage 1", "stage 2", "stage 3", "queue", "transport", "coordinator"]


def every_arm(experiment: Experiment, change: Callable[[Receipt], Receipt]) -> Experiment:
    for arm in ARMS:
        experiment = changed(experiment, arm, change)
    return experiment


def with_unlike_stages(receipt: Receipt) -> Receipt:
    """Stage i computes i + 1 ms of each frame, behind a queue of 3 ms; links take 250 ms."""

    def spanned(frame: FrameRow) -> FrameRow:
        spans = [
            StageSpan(
                queue_ns=QUEUE_NS,
                compute_ns=(idx + 1) * COMPUTE_NS,
                span_ns=QUEUE_NS + (idx + 1) * COMPUTE_NS + HANDING_NS,
            )
            for idx in range(len(frame.spans))
        ]
        return msgspec.structs.replace(frame, spans=spans)

    links = [msgspec.structs.replace(link, rtt_ns=[RTT_NS]) for link in receipt.links]
    frames = [spanned(frame) for frame in receipt.frames]
    return msgspec.structs.replace(receipt, frames=frames, links=links)


def without_codec(receipt: Receipt) -> Receipt:
    hops = [msgspec.structs.replace(hop, codec_ns=UNSET) for hop in receipt.counters.hops]
    counters = msgspec.structs.replace(receipt.counters, hops=hops)
    return msgspec.structs.replace(receipt, counters=counters)


@pytest.fixture
def experiment(seal_invented: Invented) -> Experiment:
    """Two cells, one of each kind; four arms, four repetitions."""
    return every_arm(load_invented(seal_invented), with_unlike_stages)


def jobs_of(experiment: Experiment, cell: str, arm: str) -> list[Receipt]:
    return [
        receipt
        for receipt, _ in experiment.measured()
        if (receipt.position.cell, receipt.requested.arm) == (cell, arm)
    ]


def decode_ns(receipt: Receipt) -> int:
    return receipt.timing.last_commit_ns - receipt.timing.first_commit_ns


def test_stages_are_told_apart_and_the_parts_add_up(experiment: Experiment) -> None:
    """Catches stages that are mixed, a mean over jobs in place of sums, and a part that is lost."""
    points = split_points(experiment)
    for kind, cell in (("draftable", "verbatim-copy"), ("novel", "chat")):
        for arm in ARMS:
            own = points[(points["kind"] == kind) & (points["arm"] == arm)].set_index("part")
            assert list(own.index) == [*PARTS, TOTAL]
            for stage_idx in range(NUM_STAGES):
                assert own.loc[f"stage {stage_idx}", "ms"] == pytest.approx(stage_idx + 1)
            assert own.loc["links", "ms"] == pytest.approx(5 * RTT_NS / 2 / 1e6)
            assert own.loc["queue", "ms"] == pytest.approx(4 * QUEUE_NS / 1e6)
            jobs = jobs_of(experiment, cell, arm)
            traversals = sum(len(critical_path(receipt)) for receipt in jobs)
            total_ms = sum(map(decode_ns, jobs)) / traversals / 1e6
            assert own.loc[TOTAL, "ms"] == pytest.approx(total_ms)
            assert own["ms"].drop(TOTAL).sum() == pytest.approx(total_ms)
            assert own["percent"].drop(TOTAL).sum() == pytest.approx(100.0)
            tokens = sum(len(receipt.output_ids) - 1 for receipt in jobs) / traversals
            assert list(own["tokens_per_traversal"]) == pytest.approx([tokens] * len(own))
            assert set(own["jobs"]) == {4} and set(own["traversals"]) == {traversals}
            each = [decode_ns(receipt) / len(critical_path(receipt)) / 1e6 for receipt in jobs]
            assert min(each) < own.loc[TOTAL, "low_ms"] < own.loc[TOTAL, "high_ms"] < max(each)


def test_transport_is_what_links_queues_and_layers_leave(experiment: Experiment) -> None:
    """Catches packing, sealing or handing over that is counted twice or not at all."""
    receipt = jobs_of(experiment, "chat", "seal-aes")[0]
    split, path = job_split(receipt), critical_path(receipt)
    assert split is not None
    traversals_ns = sum(
        receipt.frames[idx].received_ns - receipt.frames[idx].sent_ns for _, idx in path
    )
    computed_ns = len(path) * (1 + 2 + 3 + 4) * COMPUTE_NS
    others_ns = computed_ns + len(path) * (NUM_STAGES * QUEUE_NS + 5 * RTT_NS // 2)
    assert split["transport"] == traversals_ns - others_ns
    assert split["transport"] > len(path) * (5 * (CODEC_NS + SEAL_NS) + NUM_STAGES * HANDING_NS)
    assert split["coordinator"] == decode_ns(receipt) - traversals_ns
    assert list(split) == PARTS


def bars_of(axes: Axes, row: int) -> list[tuple[float, float, str]]:
    """Left end, width and colour of each part of one bar, in drawing order."""
    return [
        (bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor()).upper())
        for bar in axes.patches
        if round(bar.get_y() + bar.get_height() / 2) == row
    ]


def test_a_bar_an_arm_and_a_fixed_shade_a_stage(experiment: Experiment) -> None:
    with house_style():
        drawing = draw_split(experiment)
    left, right = drawing.figure.get_axes()
    assert [axes.get_title("left") for axes in (left, right)] == [
        "Text to copy from: 1 cell",
        "New text: 1 cell",
    ]
    assert [label.get_text() for label in left.get_yticklabels()] == list(ARMS)
    wanted = [COLOURS["links"], *STAGE_COLOURS[:NUM_STAGES]]
    wanted += [COLOURS[name] for name in PARTS[-3:]]
    points = drawing.points[(drawing.points["kind"] == "novel") & (drawing.points["part"] != TOTAL)]
    for row, arm in enumerate(ARMS):
        bars = bars_of(right, row)
        assert [colour for _, _, colour in bars] == wanted
        widths = [width for _, width, _ in bars]
        assert widths == pytest.approx(points[points["arm"] == arm]["ms"].tolist())
        assert [x for x, _, _ in bars] == pytest.approx([sum(widths[:idx]) for idx in range(8)])
    assert right.get_xlabel() == "ms a traversal"
    labels = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert labels == ["links' delay", *PARTS[1:]]
    assert len(drawing.receipt_ids) == len(experiment.measured())


def test_more_links_than_time_leave_transport_nothing(experiment: Experiment) -> None:
    """Catches a bar that runs backwards where probes were slower than the frames."""

    def with_slow_probes(receipt: Receipt) -> Receipt:
        links = [msgspec.structs.replace(link, rtt_ns=[3 * RTT_NS]) for link in receipt.links]
        return msgspec.structs.replace(receipt, links=links)

    with house_style():
        drawing = draw_split(every_arm(experiment, with_slow_probes))
    found = drawing.points.set_index(["kind", "arm", "part"])["ms"]
    assert found["novel", "seal-aes", "transport"] < 0, "the table says what was measured"
    for axes in drawing.figure.get_axes():
        assert all(bar.get_width() >= 0 for bar in axes.patches)


def test_what_has_no_parts_has_no_bar(experiment: Experiment) -> None:
    bare = changed(experiment, "seal-aes", without_codec)
    with house_style():
        drawing = draw_split(bare)
    labels = [label.get_text() for label in drawing.figure.get_axes()[0].get_yticklabels()]
    assert labels == [arm for arm in ARMS if arm != "seal-aes"]
    assert len(drawing.receipt_ids) == 3 * len(bare.measured()) // 4
    with house_style():
        drawing = draw_split(only_cells(experiment, "chat"))
    assert [axes.get_title("left") for axes in drawing.figure.get_axes()] == ["New text: 1 cell"]
    with pytest.raises(ReceiptError, match="says where its time went: nothing to draw"):
        draw_split(every_arm(experiment, without_codec))


def test_parts_follow_one_another_however_many_stages_there_are() -> None:
    parts = {"coordinator", "stage 10", "queue", "stage 2", "links", "transport", "stage 0"}
    ordered = ["links", "stage 0", "stage 2", "stage 10", "queue", "transport", "coordinator"]
    assert in_order(parts) == ordered


def test_same_receipts_same_bytes(experiment: Experiment, tmp_path: Path) -> None:
    for name in ("one", "two"):
        with house_style():
            save(draw_split(experiment), "traversal_split", "invented", tmp_path / name)
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert {path.suffix for path in first} == {".csv", ".txt", ".pdf", ".svg"}
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
