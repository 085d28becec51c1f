"""What a signed document must satisfy before its numbers are used.

Guarantees: a receipt that passes belongs to the plan, stands at its own row, ran the arm that the
plan registered, and keeps the identities that every metric of `analysis.load` rests on; a job that
is not used gets a reason in words. Must never know about files, folders or signatures.
"""

from __future__ import annotations

import msgspec

from bench.schema import FrameRow, Plan, PlannedJobRow, Receipt
from engine.errors import ReceiptError

# A decode frame of these outcomes is a round (DESIGN section 5); prefill and stale frames are not.
ROUND_OUTCOMES = ("applied", "refuted", "closed")
# Nothing overtook a frame of these outcomes, so no stage dropped it.
ANSWERED_OUTCOMES = ("prefill", "applied")


def check_membership(receipt: Receipt, job_idx: int, plan: Plan, plan_digest: str) -> None:
    """Insist that a receipt belongs to this plan, at the row that its file name says.

    Raises:
        ReceiptError: another plan, another row, or levers, ring, model or source other than the
            plan's.
    """
    position = receipt.position
    if position.plan_digest != plan_digest:
        raise ReceiptError(
            f"belongs to another plan: experiment {position.experiment!r}, plan digest "
            f"{position.plan_digest[:16]}; this plan is {plan.experiment!r}, {plan_digest[:16]}"
        )
    if position.job_idx != job_idx:
        raise ReceiptError(f"is job {position.job_idx} under the name of job {job_idx}")
    rows = {row.job_idx: row for row in plan.jobs}
    if job_idx not in rows:
        raise ReceiptError(f"job {job_idx} is not in the plan")
    row = rows[job_idx]
    pairs = {
        "experiment": (position.experiment, plan.experiment),
        "rep": (position.rep, row.rep),
        "cell": (position.cell, row.cell),
        "block_idx": (position.block_idx, row.block_idx),
        "order_idx": (position.order_idx, row.order_idx),
        "role": (position.role, row.role),
        "arm": (receipt.requested.arm, row.arm),
        "max_new_tokens": (receipt.requested.max_new_tokens, row.max_new_tokens),
        "prompt_digest": (receipt.prompt_digest, _prompt_digest(plan, row)),
        "ring": (receipt.ring, plan.ring_of(row.arm)),
        "model": (receipt.model, plan.model),
        "source_digest": (receipt.build.source_digest, plan.build.source_digest),
        "environment_digest": (receipt.build.environment_digest, plan.build.environment_digest),
    }
    if row.arm in plan.arms:
        registered = msgspec.structs.replace(
            plan.arms[row.arm], max_new_tokens=receipt.requested.max_new_tokens
        )
        pairs["requested levers"] = (receipt.requested, registered)
    for name, (found, planned) in pairs.items():
        if found != planned:
            raise ReceiptError(f"{name} is {found!r}; the plan says {planned!r}")


def check_identities(receipt: Receipt) -> None:
    """Insist on the identities of frames, and of a finished job (DESIGN sections 5 and 13).

    Raises:
        ReceiptError: the counts or times contradict each other.
    """
    for idx, frame in enumerate(receipt.frames):
        _check_frame(idx, frame)
    if receipt.status != "ok":
        return
    timing = receipt.timing
    stamps = (timing.prefill_sent_ns, timing.first_commit_ns, timing.last_commit_ns, timing.end_ns)
    known = [stamp for stamp in stamps if stamp is not None]
    if len(known) < len(stamps) or known != sorted(known):
        raise ReceiptError(f"a finished job with times {stamps} (missing or not in order)")
    if not receipt.output_ids:
        raise ReceiptError("a finished job without output")
    committed = sum(frame.committed_len for frame in receipt.frames if is_round(frame))
    if committed != len(receipt.output_ids) - 1:
        raise ReceiptError(
            f"its rounds commit {committed} tokens; {len(receipt.output_ids)} output ids need "
            f"{len(receipt.output_ids) - 1}"
        )
    _check_hops(receipt)


def is_answered(frame: FrameRow) -> bool:
    """Whether a frame went all the way round; one that was overtaken may have been dropped."""
    return frame.outcome in ANSWERED_OUTCOMES


def is_round(frame: FrameRow) -> bool:
    """Whether a frame enters rates: applied, refuted or closed."""
    return frame.outcome in ROUND_OUTCOMES


def is_chain_round(frame: FrameRow) -> bool:
    """Whether a frame enters acceptance rates: trees have no draft order to test."""
    return is_round(frame) and frame.source != "tree"


def exclusion_reason(
    row: PlannedJobRow, receipt: Receipt | None, references: dict[str, Receipt]
) -> str | None:
    """Say why a planned job is not used; None if it is.

    Args:
        row: the job as planned.
        receipt: its receipt, None if there is none.
        references: the block's finished reference jobs by receipt id.

    Raises:
        ReceiptError: the receipt claims a comparison that its reference does not bear out.
    """
    if receipt is None:
        return "missing: no receipt"
    if receipt.status == "failed":
        failure = receipt.failure
        return "failed" if failure is None else f"failed: {failure.code}: {failure.detail}"
    if row.role != "measured":
        return None
    # An output is judged within its own numeric configuration, never across.
    config = receipt.requested.numeric_config
    references = {
        identifier: reference
        for identifier, reference in references.items()
        if reference.requested.numeric_config == config
    }
    if not references:
        return "its block has no finished reference job"
    lossless = receipt.lossless
    if lossless.verdict == "not_compared":
        return "not compared with a reference job"
    if lossless.reference_id not in references:
        raise ReceiptError(
            f"was compared with receipt {lossless.reference_id}, which is no reference job of its "
            f"block and numeric configuration {config}; there: {', '.join(sorted(references))}"
        )
    same = receipt.output_ids == references[lossless.reference_id].output_ids
    if same != (lossless.verdict == "identical"):
        raise ReceiptError(
            f"says {lossless.verdict!r}, but its output ids and those of its reference "
            f"{lossless.reference_id} say otherwise"
        )
    if not same:
        return f"not lossless: differs from its reference at output {lossless.first_difference}"
    if len(receipt.output_ids) < 2:
        return "one output token: no decoding to time"
    return None


def _check_frame(idx: int, frame: FrameRow) -> None:
    counts = (frame.draft_len, frame.accepted_len, frame.tested_len)
    if not frame.accepted_len <= frame.draft_len <= frame.sent_len:
        raise ReceiptError(f"frame {idx}: (k, a) = {counts[:2]}, sent {frame.sent_len}")
    if frame.tested_len not in (frame.accepted_len, frame.accepted_len + 1):
        raise ReceiptError(f"frame {idx}: (k, a, tested) = {counts}")
    if frame.tested_len > frame.draft_len or _lacks_a_refusal(frame):
        raise ReceiptError(f"frame {idx}: (k, a, tested) = {counts}")
    if frame.outcome == "stale" and (any(counts) or frame.committed_len):
        raise ReceiptError(f"frame {idx} is stale, yet counts {counts} or commits")
    if frame.received_ns is not None and frame.received_ns < frame.sent_ns:
        raise ReceiptError(f"frame {idx} was answered before it was sent")


def _lacks_a_refusal(frame: FrameRow) -> bool:
    """Whether drafts behind the last accepted one were neither refused nor cut off.

    A chain that a reply decided stops at a refusal or at its own last draft that counts; a tree
    may stop at any leaf.
    """
    if frame.source == "tree":
        return False
    return frame.outcome == "applied" and frame.accepted_len == frame.tested_len < frame.draft_len


def _check_hops(receipt: Receipt) -> None:
    hops, frames = receipt.counters.hops, receipt.frames
    if hops is msgspec.UNSET:
        return  # version 1 has totals only
    least = sum(is_answered(frame) for frame in frames)
    written = [hop.frames for hop in hops]
    is_whole = len(hops) == receipt.ring.num_stages + 1 and written[0] == len(frames)
    if not is_whole or any(not least <= count <= len(frames) for count in written):
        raise ReceiptError(
            f"its hops wrote {written} frames; {receipt.ring.num_stages} stages and {len(frames)} "
            f"traversals, {least} of them answered, make others"
        )
    totals = (receipt.counters.frames_on_wire, receipt.counters.bytes_on_wire)
    added = (sum(written), sum(hop.bytes for hop in hops))
    if added != totals:
        raise ReceiptError(f"(frames, bytes) on the wire {totals}; its hops add up to {added}")


def _prompt_digest(plan: Plan, row: PlannedJobRow) -> str:
    for cell in plan.cells:
        if cell.name == row.cell:
            return cell.prompt_digest
    raise ReceiptError(f"cell {row.cell!r} of job {row.job_idx} is not among the plan's cells")
