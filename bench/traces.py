"""Recorded texts and what a ring cost, out of an experiment's receipts, for replays.

Guarantees: signatures are checked; one text a prompt, of a reference job that ended well. The fit
is closed form: equal receipts give equal rings; `bench.overlap` fits what a lone frame cannot show.
Must never know policies.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from bench.receipt import load_signed, receipt_id
from bench.ring_model import RingShape, ServiceTime
from bench.schema import FrameRow, Plan, Receipt
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity

HEADER_BYTES = 120  # of a frame besides its positions: sizes below are slopes, this is the level
ID_BYTES, STATE_BYTES = 3, 2304


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and the target's own continuation, as a receipt recorded them."""

    cell: str
    group: str
    kind: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    max_new_tokens: int
    ended_by_eos: bool
    receipt_id: str

    @property
    def eos_ids(self) -> frozenset[int]:
        """The id that ended output, if one did."""
        return frozenset(self.output_ids[-1:]) if self.ended_by_eos else frozenset()


@dataclass(frozen=True, slots=True)
class Recorded:
    """An experiment's plan and receipts, ids beside them."""

    plan: Plan
    receipts: tuple[tuple[str, Receipt], ...]

    def traces(self, numeric_config: str = "f32") -> list[Trace]:
        """One a prompt, in the plan's order."""
        rows = {cell.name: cell for cell in self.plan.cells}
        found: dict[str, Trace] = {}
        for identifier, receipt in self.receipts:
            is_reference = receipt.position.role == "reference" and receipt.status == "ok"
            cell = rows[receipt.position.cell]
            if not is_reference or receipt.requested.numeric_config != numeric_config:
                continue
            if receipt.finish_reason not in ("eos", "length") or cell.name in found:
                continue
            found[cell.name] = Trace(
                cell=cell.name,
                group=cell.group if isinstance(cell.group, str) else cell.name,
                kind=cell.kind,
                prompt_ids=tuple(receipt.prompt_ids),
                output_ids=tuple(receipt.output_ids),
                max_new_tokens=receipt.requested.max_new_tokens,
                ended_by_eos=receipt.finish_reason == "eos",
                receipt_id=identifier,
            )
        return [found[cell.name] for cell in self.plan.cells if cell.name in found]


def load_recorded(folder: Path, keys: dict[str, PublicIdentity]) -> Recorded:
    """Read an experiment.

    Raises:
        ReceiptError: a file is missing, damaged or signed by nobody known.
    """
    plan, _ = load_signed(folder / "plan.json", Plan, keys)
    receipts = []
    for path in sorted((folder / "receipts").glob("[0-9]*.json")):
        if not path.name.endswith(".sig.json"):
            receipt, body = load_signed(path, Receipt, keys)
            receipts.append((receipt_id(body), receipt))
    if not receipts:
        raise ReceiptError(f"{folder}: holds no receipts")
    return Recorded(plan, tuple(receipts))


def fit_ring(receipts: Sequence[Receipt], overlap: float) -> RingShape:
    """The ring that these jobs ran on, all of one ring configuration, as it was measured.

    Service times come from frames that were alone in the ring, links from the probes.

    Raises:
        ReceiptError: no frame was alone, or the links were not measured.
    """
    alone = [frame for receipt in receipts for frame in applied_frames(receipt.frames, False)]
    if not alone or not receipts[0].links or not receipts[0].links[0].rtt_ns:
        raise ReceiptError("no frame that was alone in the ring, or links without probes")
    one_way_ns = [round(statistics.median(link.rtt_ns) / 2) for link in receipts[0].links]
    rest_ns = [
        _travelled(frame) - sum(span.span_ns for span in frame.spans) - sum(one_way_ns)
        for frame in alone
    ]
    stages = [_service(alone, stage_idx) for stage_idx in range(receipts[0].ring.num_stages)]
    return RingShape(
        stages=tuple(stages),
        hosts=(0,) * len(stages),  # the harness starts every stage on this machine
        one_way_ns=tuple(one_way_ns),
        rate_bytes_per_s=tuple(link.rate_bytes_per_s for link in receipts[0].links),
        hop_ns=max(0.0, statistics.median(rest_ns) / len(one_way_ns)),
        head_ns=_head_ns(receipts),
        id_bytes=ID_BYTES,
        state_bytes=STATE_BYTES,
        overlap=overlap,
    )


def applied_frames(frames: Sequence[FrameRow], with_company: bool) -> list[FrameRow]:
    """Frames of a job that had the ring to themselves all the way, or those that had not.

    A frame that was never answered counts as long on its way as the one it is held against, as in
    `engine.coordinator.flight`.
    """
    return [
        frame
        for frame in frames
        if frame.outcome == "applied"
        and frame.spans
        and any(_met(frame, other) for other in frames if other is not frame) == with_company
    ]


def _met(frame: FrameRow, other: FrameRow) -> bool:
    assert frame.received_ns is not None, "an applied frame was answered"
    left_ns = other.received_ns or other.sent_ns + _travelled(frame)
    return other.sent_ns < frame.received_ns and frame.sent_ns < left_ns


def _travelled(frame: FrameRow) -> int:
    assert frame.received_ns is not None, "an applied frame was answered"
    return frame.received_ns - frame.sent_ns


def _service(frames: Sequence[FrameRow], stage_idx: int) -> ServiceTime:
    """Least squares over frames; a coefficient that comes out negative is left out."""
    spent = np.array([frame.spans[stage_idx].compute_ns for frame in frames], dtype=float)
    lengths = np.array([frame.positions_len for frame in frames], dtype=float)
    ends = np.array([frame.start + frame.positions_len for frame in frames], dtype=float)
    columns = {"frame_ns": np.ones_like(lengths), "position_ns": lengths, "context_ns": ends}
    solved, _ = nnls(np.stack(list(columns.values()), axis=1), spent)
    return ServiceTime(**dict(zip(columns, map(float, solved), strict=True)))


def _head_ns(receipts: Sequence[Receipt]) -> float:
    """What the coordinator takes from a reply to the frame it leads to, one frame in flight."""
    waits = []
    for receipt in receipts:
        if receipt.requested.depth != 1:
            continue
        for before, after in zip(receipt.frames, receipt.frames[1:], strict=False):
            if before.received_ns is not None and after.sent_ns >= before.received_ns:
                waits.append(after.sent_ns - before.received_ns)
    return statistics.median(waits) if waits else 0.0
