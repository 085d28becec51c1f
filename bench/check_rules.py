"""What one receipt must satisfy, by itself and against its plan; one generator a group of rules.

Guarantees: a rule yields (rule name, detail) for each contradiction and goes on; it trusts no
count that it can add up itself. Separate from the code that runs jobs and writes receipts, on
purpose. Must never know files, keys or signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from bench.check_trees import check_trees, is_tree, root_of
from bench.check_wire import Found, check_links, check_wire
from bench.schema import FrameRow, Plan, Receipt
from bench.schema_versions import version_defects, version_of

ROUND_OUTCOMES = ("applied", "refuted", "closed")


# -- a receipt against its plan ------------------------------------------------------------------


def check_position(plan: Plan, plan_digest: str, receipt: Receipt, job_idx: int) -> Found:
    """The receipt stands where its file name and the plan say, and ran what was planned."""
    position = receipt.position
    if version_of(receipt) != version_of(plan):
        yield "version", f"is a {receipt.schema} of a {plan.schema}"
    if position.plan_digest != plan_digest:
        yield "plan-digest", f"{position.plan_digest[:16]}; the plan's bytes: {plan_digest[:16]}"
    if position.experiment != plan.experiment:
        yield "experiment", f"{position.experiment!r}; the plan's: {plan.experiment!r}"
    if position.job_idx != job_idx:
        yield "misplaced", f"is job {position.job_idx} under the name of job {job_idx}"
    rows = {row.job_idx: row for row in plan.jobs}
    if position.job_idx not in rows:
        yield "foreign", f"job {position.job_idx} is not planned"
        return
    row = rows[position.job_idx]
    for name in ("rep", "cell", "block_idx", "order_idx", "role"):
        if getattr(position, name) != getattr(row, name):
            yield "position", f"{name} {getattr(position, name)!r}; plan: {getattr(row, name)!r}"
    digests = {cell.name: cell.prompt_digest for cell in plan.cells}
    if receipt.prompt_digest != digests.get(row.cell):
        yield "prompt", f"prompt_digest is not that of the plan's cell {row.cell!r}"
    for name in ("build", "model"):
        if getattr(receipt, name) != getattr(plan, name):
            yield name, f"{name} differs from the plan's"
    ring = plan.ring_of(row.arm)
    if receipt.ring != ring:
        yield "ring", f"{_difference(receipt.ring, ring)} (the plan's for arm {row.arm!r})"
    if row.arm not in plan.arms:
        return
    planned = msgspec.structs.replace(plan.arms[row.arm], max_new_tokens=row.max_new_tokens)
    if receipt.requested != planned:
        yield "config", f"requested {_difference(receipt.requested, planned)} (plan)"
    if receipt.observed is not None and receipt.observed != receipt.requested:
        yield "config", f"observed {_difference(receipt.observed, receipt.requested)} (requested)"
    if receipt.observed is None and receipt.status == "ok":
        yield "config", "a finished job without the config observed"


def _difference(found: msgspec.Struct, expected: msgspec.Struct) -> str:
    return ", ".join(
        f"{name} = {getattr(found, name)!r}, not {getattr(expected, name)!r}"
        for name in found.__struct_fields__
        if getattr(found, name) != getattr(expected, name)
    )


# -- a receipt by itself -------------------------------------------------------------------------


def check_receipt(receipt: Receipt) -> Found:
    """Every identity inside one receipt; a failed job is held to its rows only."""
    for detail in version_defects(receipt):
        yield "version", detail
    for idx, frame in enumerate(receipt.frames):
        for detail in _check_frame(frame, receipt.requested.depth):
            yield "frames", f"frame {idx}: {detail}"
    yield from _check_order(receipt.frames)
    yield from check_trees(receipt.frames, version_of(receipt))
    if receipt.status == "failed":
        if receipt.failure is None:
            yield "status", "failed, yet no failure is recorded"
        return
    if receipt.failure is not None:
        yield "status", f"ok, yet {receipt.failure.code} is recorded"
    yield from _check_sums(receipt)
    yield from check_wire(receipt)
    yield from check_links(receipt)
    yield from _check_frontier(receipt)
    yield from _check_sending(receipt)
    yield from _check_end(receipt)
    yield from _check_stages(receipt)


def _check_frame(frame: FrameRow, depth: int) -> Iterator[str]:
    k, a, tested, committed = (
        frame.draft_len,
        frame.accepted_len,
        frame.tested_len,
        frame.committed_len,
    )
    if not a <= k <= frame.sent_len <= frame.positions_len:
        yield f"not a <= k <= sent <= positions: {a}, {k}, {frame.sent_len}, {frame.positions_len}"
    if tested not in (a, a + 1) or tested > k:
        yield f"tested_len {tested} with a = {a}, k = {k}"
    if not is_tree(frame) and frame.outcome == "applied" and a == tested < k:
        yield f"drafts {a + 1} to {k} were neither tested nor cut off"
    expected = {
        "stale": ((k, a, tested, committed), (0, 0, 0, 0)),
        "prefill": ((k, a, tested, frame.sent_len), (0, 0, 0, 0)),
        "refuted": ((a, tested, committed), (0, 1, 0)),
        "closed": ((k, a, tested, committed), (1, 1, 1, 0)),
        "applied": ((), ()),
    }
    found, needed = expected[frame.outcome]
    if found != needed:
        yield f"{frame.outcome} with counts {found} instead of {needed}"
    if frame.outcome == "applied" and not 1 <= committed <= frame.positions_len:
        yield f"applied, {frame.positions_len} positions, yet it commits {committed}"
    if (frame.outcome == "prefill") != (frame.source == "prefill"):
        yield f"outcome {frame.outcome!r} with source {frame.source!r}"
    if frame.in_flight < 1 or (frame.outcome != "prefill" and frame.in_flight > depth):
        yield f"in_flight {frame.in_flight} at depth {depth}"
    if frame.received_ns is None:
        if frame.outcome in ("prefill", "applied"):
            yield f"{frame.outcome} without a reply"
    elif frame.received_ns < frame.sent_ns:
        yield "answered before it was sent"


def _check_order(frames: Sequence[FrameRow]) -> Found:
    for idx, (before, after) in enumerate(pairwise(frames), start=1):
        if after.epoch < before.epoch:
            yield "frames", f"frame {idx}: epoch {after.epoch} after {before.epoch}"
        if after.sent_ns < before.sent_ns:
            yield "frames", f"frame {idx}: sent before frame {idx - 1}"
        end = before.start + before.positions_len
        if after.epoch == before.epoch and after.start != end:
            yield "frames", f"frame {idx}: starts at {after.start}; the epoch goes on at {end}"
        if after.outcome == "prefill" != before.outcome:
            yield "frames", f"frame {idx}: prefill behind decoding"


def _check_sums(receipt: Receipt) -> Found:
    frames, counters = receipt.frames, receipt.counters
    prefilled = sum(frame.committed_len for frame in frames if frame.outcome == "prefill")
    committed = sum(frame.committed_len for frame in frames if frame.outcome in ROUND_OUTCOMES)
    if prefilled != 1:
        yield "frames", f"the prefill commits {prefilled} tokens instead of 1"
    if committed != len(receipt.output_ids) - 1:
        needed = len(receipt.output_ids) - 1
        yield "frames", f"rounds commit {committed} tokens; the output needs {needed}"
    lost = sum(frame.sent_len for frame in frames if frame.outcome == "stale")
    if counters.discarded_len != lost:
        yield "counters", f"discarded_len {counters.discarded_len}; its frames lost {lost}"


def _check_frontier(receipt: Receipt) -> Found:
    """A reply commits from the frontier on, so an applied frame starts right before it.

    Behind a tree it starts behind the root: the path that was committed goes out once more.
    """
    frontier, start, received_ns = len(receipt.prompt_ids), None, 0
    for idx, frame in enumerate(receipt.frames):
        expected = frontier - 1 if start is None else start
        if frame.outcome == "applied" and frame.start != expected:
            yield "frames", f"frame {idx}: starts at {frame.start}; the frontier is {frontier}"
        if frame.outcome == "applied":
            start = root_of(frame) + 1 if is_tree(frame) else None
        frontier += frame.committed_len
        if frame.outcome in ("prefill", "applied") and frame.received_ns is not None:
            if frame.received_ns < received_ns:
                yield "frames", f"frame {idx}: answered before the frame ahead of it"
            received_ns = frame.received_ns


def _check_sending(receipt: Receipt) -> Found:
    """What was known when a frame was sent: no more than had been read, and never less again."""
    frames = receipt.frames
    if version_of(receipt) < 3 or any(version_defects(receipt)):
        return
    before = len(receipt.prompt_ids)
    for idx, frame in enumerate(frames):
        if frame.outcome == "prefill":
            continue
        read = len(receipt.prompt_ids) + sum(
            other.committed_len
            for other in frames
            if other.received_ns is not None and other.received_ns <= frame.sent_ns
        )
        if not before <= frame.frontier <= read:
            yield "frames", f"frame {idx}: sent at frontier {frame.frontier}, not {before}..{read}"
        before = max(before, frame.frontier)
    drafted_ns = sum(frame.draft_ns for frame in frames)
    if drafted_ns > receipt.timing.draft_ns:
        yield "timing", f"frames were drafted for {drafted_ns} ns of {receipt.timing.draft_ns}"


def _check_end(receipt: Receipt) -> Found:
    timing, num_output = receipt.timing, len(receipt.output_ids)
    stamps = (timing.prefill_sent_ns, timing.first_commit_ns, timing.last_commit_ns, timing.end_ns)
    known = [stamp for stamp in stamps if stamp is not None]
    if len(known) < len(stamps) or known != sorted(known):
        yield "timing", f"prefill, first and last commit, end: {stamps} (missing or not in order)"
    late = [frame.sent_ns for frame in receipt.frames if frame.sent_ns > timing.end_ns]
    if late:
        yield "timing", f"{len(late)} frames sent after the end"
    limit = receipt.requested.max_new_tokens
    if not 1 <= num_output <= limit:
        yield "output", f"{num_output} output ids; allowed: 1..{limit}"
    if receipt.finish_reason == "none" or (
        receipt.finish_reason == "length" and num_output != limit
    ):
        yield "output", f"finish_reason {receipt.finish_reason!r} at {num_output} of {limit} ids"


def _check_stages(receipt: Receipt) -> Found:
    stages, ring = receipt.stages, receipt.ring
    spans = [(stage.layer_start, stage.layer_end) for stage in stages]
    if [stage.stage_idx for stage in stages] != list(range(ring.num_stages)):
        yield "stages", f"{len(stages)} stages observed, in order; planned: {ring.num_stages}"
    if spans != [tuple(span) for span in ring.layer_plan]:
        yield "stages", f"layers {spans} differ from the layer plan"
    ends = [0, *(end for _, end in spans)]
    tiled = [start for start, _ in spans] == ends[:-1] and all(start < end for start, end in spans)
    if not tiled or ends[-1] != receipt.model.num_layers:
        yield "stages", f"layers {spans} do not tile [0, {receipt.model.num_layers})"
    expected = {
        "model_digest": receipt.model.model_digest,
        "source_digest": receipt.build.engine_digest,
        "kernel": ring.kernel,
        "levers_digest": stages[0].levers_digest if stages else "",
        "max_kv_size": ring.max_kv_size,
    }
    for stage in stages:
        for name, value in expected.items():
            if getattr(stage, name) != value:
                yield "stages", f"stage {stage.stage_idx}: {name} differs"
