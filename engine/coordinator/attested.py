"""The coordinator's side of an attested job: what it sent and received, held against statements.

Guarantees: an attested job whose statements do not hold is a failed job, and the stage is named.
Must never know links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.coordinator.records import FrameRecord
from engine.errors import JobError
from engine.trust.attestation import FrameKey
from engine.trust.frame_digests import FrameDigests, MissingFrameError, Roots
from engine.trust.identity import PublicIdentity
from engine.trust.verify import AttestationError, Expected, SentTree, verify_job


@dataclass(frozen=True, slots=True)
class Pinned:
    """Whom and what a session believes, whatever statements say.

    Attributes:
        signers: the stages' public keys, in ring order.
        num_layers: from the model's own config.
    """

    signers: tuple[PublicIdentity, ...]
    num_layers: int
    model_digest: str


@dataclass(frozen=True, slots=True)
class Account:
    """What the coordinator knows of an attested job by itself."""

    frames: tuple[tuple[int, int, int], ...]  # epoch, start, positions; as their replies came
    roots: Roots  # first frames as sent, last replies as received
    trees: Mapping[FrameKey, SentTree] = field(default_factory=dict)  # of the frames with nodes


def applied_records(records: Sequence[FrameRecord]) -> Iterator[FrameRecord]:
    """Of the frames whose replies were applied, prefill included, in the order of their replies."""
    for record in records:
        if record.outcome in ("prefill", "applied") and record.received_ns is not None:
            yield record


def applied_frames(records: Sequence[FrameRecord]) -> tuple[tuple[int, int, int], ...]:
    """Epoch, start and positions of each; a tree's nodes are positions too."""
    return tuple(
        (record.epoch, record.start, record.positions_len) for record in applied_records(records)
    )


def account_of(records: Sequence[FrameRecord], digests: FrameDigests) -> Account:
    """The coordinator's own account.

    Raises:
        JobError: a frame of its own was not seen: a defect here, no stage's fault.
    """
    frames = applied_frames(records)
    try:
        # The coordinator sends first and receives last: its two sides are the ring's two ends.
        roots = digests.roots([(epoch, start) for epoch, start, _ in frames])
    except MissingFrameError as error:
        raise JobError("attestation", f"coordinator: {error}") from error
    trees = {
        (record.epoch, record.start): SentTree(record.parents, record.node_ids)
        for record in applied_records(records)
        if record.parents
    }
    return Account(frames, roots, trees)


def check_statements(
    signed: Sequence[str],
    account: Account,
    pinned: Pinned,
    nonce: str,
    prompt_len: int,
    output_ids: Sequence[int],
) -> None:
    """Hold the stages' statements against it.

    Raises:
        JobError: the first fault, and the stage whose it is.
    """
    expected = Expected(
        signers=pinned.signers,
        num_layers=pinned.num_layers,
        model_digest=pinned.model_digest,
        job_nonce=nonce,
        frames=account.frames,
        first_root=account.roots.out_root,
        last_root=account.roots.in_root,
        prompt_len=prompt_len,
        output_ids=output_ids,
        trees=account.trees,
    )
    try:
        verify_job(signed, expected)
    except AttestationError as error:
        raise JobError("attestation", f"{error.code}: {error.detail}", error.stage_idx) from error
