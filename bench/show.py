"""Explains one receipt to a person: what ran, against what, what it proves, what failed.

A study record is printed as it is: its settings, then a line a row.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from bench.receipt import load_signed, receipt_id, signed_kind
from bench.schema import Build, Receipt, Study
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity


def explain(path: Path, keys: dict[str, PublicIdentity]) -> str:
    """Describe a receipt or a study record in plain lines.

    Raises:
        ReceiptError: its signature does not hold, it does not fit the schema, or it is neither.
    """
    kind = signed_kind(path)
    if kind is Study:
        study, body = load_signed(path, Study, keys)
        return "\n".join(_study_lines(study, receipt_id(body)))
    if kind is Receipt:
        receipt, body = load_signed(path, Receipt, keys)
        return "\n".join(_lines(receipt, receipt_id(body)))
    raise ReceiptError(f"{path}: is a plan; show explains receipts and study records")


def _study_lines(study: Study, name: str) -> list[str]:
    build = study.build
    settings = ", ".join(f"{key} {value}" for key, value in study.settings.items())
    return [
        f"record {name} of study {study.study}, {study.created}, {len(study.rows)} rows",
        f"build {_build_words(build)}, {study.host.get('cpu_model')}",
        f"settings: {settings or 'none'}",
        *(", ".join(f"{key} {value}" for key, value in row.items()) for row in study.rows),
    ]


def _build_words(build: Build) -> str:
    return (
        f"{(build.commit or 'unknown')[:12]}"
        f"{' with uncommitted changes' if build.dirty else ''}, "
        f"source {build.source_digest[:16]}"
    )


def _lines(receipt: Receipt, name: str) -> list[str]:
    position, config, ring = receipt.position, receipt.requested, receipt.ring
    rounds = [row for row in receipt.frames if row.outcome in ("applied", "refuted", "closed")]
    chains = [row for row in rounds if row.source != "tree"]  # of a tree most nodes must be lost
    trees = f" and {len(rounds) - len(chains)} trees" if len(rounds) > len(chains) else ""
    lines = [
        f"receipt {name}: {receipt.status}, {position.role} job {position.job_idx} of experiment "
        f"{position.experiment}, plan {position.plan_digest[:16]}",
        f"arm {config.arm} on cell {position.cell}, rep {position.rep}: policy {config.policy}, "
        f"k {config.draft_len}, depth {config.depth}, drafter {config.drafter}",
        f"ring of {ring.num_stages} stages, profile {ring.profile}, {ring.threads_per_stage} "
        f"threads a stage, {ring.kernel}, frames {ring.suite}, links by "
        f"{ring.links if isinstance(ring.links, str) else 'relay'}",
        f"build {_build_words(receipt.build)}, model {receipt.model.model_digest[:16]}",
        f"{len(receipt.prompt_ids)} prompt tokens, {len(receipt.output_ids)} output tokens, "
        f"finished by {receipt.finish_reason}",
        f"{len(rounds)} rounds, {sum(row.committed_len for row in rounds)} tokens committed by "
        f"them, {sum(row.accepted_len for row in chains)} of "
        f"{sum(row.draft_len for row in chains)} drafts accepted{trees}, "
        f"{receipt.counters.discarded_len} drafts lost to divergences",
        f"lossless: {receipt.lossless.verdict}"
        + (
            f" to reference {receipt.lossless.reference_id}"
            if receipt.lossless.reference_id is not None
            else ""
        ),
    ]
    hops = receipt.counters.hops
    if hops is not UNSET:
        words = ", ".join(f"{hop.sender} {hop.frames} ({hop.bytes} bytes)" for hop in hops)
        lines.append(f"frames on the wire: {words}")
    timing = receipt.timing
    if timing.first_commit_ns is not None and timing.last_commit_ns is not None:
        decode_ns = timing.last_commit_ns - timing.first_commit_ns
        lines.append(
            f"first token after {timing.first_commit_ns / 1e9:.3f} s, decode "
            f"{decode_ns / 1e9:.3f} s, whole job {timing.end_ns / 1e9:.3f} s"
        )
    if receipt.failure is not None:
        lines.append(f"failed: {receipt.failure.code}: {receipt.failure.detail}")
    return lines
