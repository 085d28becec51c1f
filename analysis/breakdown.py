"""Where one job's decode time goes, along the critical path.

Guarantees: the parts of a job add up to last commit − first commit, to the nanosecond, as `rest` is
what the others leave of the traversals; nothing is guessed: a receipt that lacks a measurement, as
those of versions 1 and 2 do, has no breakdown. Must never know files or axes.

The path is walked backwards. A frame was sent because of the latest reply that had been read by
then; that reply's frame was sent because of the one before; so on down to the prompt pass's reply.
Between a reply and the frame that it led to the coordinator works; between the frame's sending and
its own reply the ring does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from statistics import median

import pandas as pd
from msgspec import UNSET

from analysis.load import Experiment
from bench.schema import FrameRow, Receipt

NS_PER_MS = 1_000_000
PERCENT = "% of decode"
PER_TRAVERSAL = "ms/traversal"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Parts of one job's decode time in ns; all but `rest` and `coordinator` are measured.

    Attributes:
        draft: drafting and planning of the frames that left since the reply, at most the wait.
        coordinator: the rest of the waits; from the last reply to its commit; less what lies
            between the prompt pass's reply and the first commit.
        queue: from read off the socket to the start of compute, over stages.
        compute: embedding, layers, head, over stages.
        other_span: what the stages' spans hold beside queue and compute.
        codec: packing and unpacking, the job's mean per frame and process, over processes.
        seal: sealing and opening, likewise.
        links: half the median round trip of each link's empty probes, over links.
        rest: what is left of the traversals; negative where the other parts overlap.
    """

    draft: int
    coordinator: int
    queue: int
    compute: int
    other_span: int
    codec: int
    seal: int
    links: int
    rest: int

    @property
    def total(self) -> int:
        """ns from the first commit to the last."""
        return sum(astuple(self))


PARTS = tuple(field.name for field in fields(Breakdown))
JOB_COLUMNS = ("job_idx", "rep", "cell", "arm", "receipt_id", "traversals", *PARTS)
BREAKDOWN_COLUMNS = ("cell", "arm", "jobs", "traversals", "unit", *PARTS)


def critical_path(receipt: Receipt) -> list[tuple[int, int]]:
    """The frames whose traversals led to the last token, each with the one that it answered to.

    Indices (trigger, frame) in order of time: the first trigger is the prompt pass's frame that
    brought the first token, the last frame the one that brought the last token. Empty if the rows
    do not lead from one to the other.
    """
    frames = receipt.frames
    replies = sorted(
        (frame.received_ns, idx)
        for idx, frame in enumerate(frames)
        if frame.received_ns is not None
    )
    commits = [idx for _, idx in replies if frames[idx].committed_len]
    if not commits:
        return []
    idx, path = commits[-1], []
    while frames[idx].outcome != "prefill":
        at = bisect_right(replies, (frames[idx].sent_ns, len(frames))) - 1
        while (
            at >= 0 and replies[at][1] >= idx
        ):  # its own reply, which took no time: none led to it
            at -= 1
        if at < 0:
            return []
        path.append((replies[at][1], idx))
        idx = replies[at][1]
    return path[::-1] if frames[idx].committed_len else []


def break_down(receipt: Receipt) -> Breakdown | None:
    """The parts of one finished job; None if its receipt lacks any of them."""
    path = critical_path(receipt)
    if not path or not _is_whole(receipt, path):
        return None
    frames, timing, hops = receipt.frames, receipt.timing, receipt.counters.hops
    on_path, num = [frames[idx] for _, idx in path], len(path)
    draft = sum(_drafting_ns(frames, *pair) for pair in path)
    waits_ns = sum(frames[idx].sent_ns - frames[trigger].received_ns for trigger, idx in path)
    before_ns = timing.first_commit_ns - frames[path[0][0]].received_ns
    after_ns = timing.last_commit_ns - on_path[-1].received_ns
    spans = [span for frame in on_path for span in frame.spans]
    queue, compute = sum(span.queue_ns for span in spans), sum(span.compute_ns for span in spans)
    span_ns = sum(span.span_ns for span in spans)
    codec = sum(hop.codec_ns * num // hop.frames for hop in hops)
    seal = sum(hop.seal_ns * num // hop.frames for hop in hops)
    links = num * sum(int(median(link.rtt_ns)) // 2 for link in receipt.links)
    traversals_ns = sum(frame.received_ns - frame.sent_ns for frame in on_path)
    return Breakdown(
        draft=draft,
        coordinator=waits_ns - draft + after_ns - before_ns,
        queue=queue,
        compute=compute,
        other_span=span_ns - queue - compute,
        codec=codec,
        seal=seal,
        links=links,
        rest=traversals_ns - span_ns - codec - seal - links,
    )


def job_breakdowns(experiment: Experiment) -> pd.DataFrame:
    """One row per used measured job whose receipt has every part, in ns; JOB_COLUMNS."""
    rows = []
    for receipt, identifier in experiment.measured():
        parts = break_down(receipt)
        if parts is None:
            continue
        position, num = receipt.position, len(critical_path(receipt))
        place = (position.job_idx, position.rep, position.cell, receipt.requested.arm, identifier)
        rows.append((*place, num, *astuple(parts)))
    return pd.DataFrame(rows, columns=list(JOB_COLUMNS))


def breakdown_rows(jobs: pd.DataFrame) -> pd.DataFrame:
    """Medians over reps by cell and arm, a row per unit; BREAKDOWN_COLUMNS.

    Args:
        jobs: of `job_breakdowns`.
    """
    if jobs.empty:
        return pd.DataFrame(columns=list(BREAKDOWN_COLUMNS))
    parts = list(PARTS)
    tables = []
    for unit, scale in (
        (PERCENT, jobs[parts].sum(axis=1) / 100),
        (PER_TRAVERSAL, jobs["traversals"] * NS_PER_MS),
    ):
        scaled = jobs[["cell", "arm", "traversals"]].join(jobs[parts].div(scale, axis=0))
        grouped = scaled.groupby(["cell", "arm"], sort=False)
        medians = grouped[["traversals", *parts]].median().assign(jobs=grouped.size(), unit=unit)
        tables.append(medians.reset_index())
    return pd.concat(tables, ignore_index=True)[list(BREAKDOWN_COLUMNS)]


def _is_whole(receipt: Receipt, path: Sequence[tuple[int, int]]) -> bool:
    """Whether everything that a breakdown adds up was measured."""
    num_stages, timing, hops = receipt.ring.num_stages, receipt.timing, receipt.counters.hops
    return (
        timing.first_commit_ns is not None
        and timing.last_commit_ns is not None
        and hops is not UNSET
        and all(hop.codec_ns is not UNSET and hop.seal_ns is not UNSET for hop in hops)
        and all(hop.frames for hop in hops)
        and len(receipt.links) == num_stages + 1
        and all(link.rtt_ns for link in receipt.links)
        and all(len(receipt.frames[idx].spans) == num_stages for _, idx in path)
        and all(frame.draft_ns is not UNSET for frame in receipt.frames)
    )


def _drafting_ns(frames: Sequence[FrameRow], trigger: int, idx: int) -> int:
    """ns of drafting between a reply and a frame: a burst is drafted frame after frame.

    A reply can be read while a draft is being made; what of it lies before is not in this wait.
    """
    began_ns, last = frames[trigger].received_ns, frames[idx]
    burst = [frame for frame in frames[trigger + 1 : idx + 1] if frame.sent_ns >= began_ns]
    return min(sum(frame.draft_ns for frame in burst), last.sent_ns - began_ns)
