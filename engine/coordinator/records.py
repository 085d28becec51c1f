"""What the round machine says (actions) and what it leaves behind (frame records).

Guarantees: immutable values only, but for a frame on its way. Imports nothing of the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.draft.drafter import DraftFate

Outcome = Literal["prefill", "applied", "refuted", "closed", "stale"]
FinishReason = Literal["eos", "length", "stop", "none"]


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What bounds one job."""

    max_new_tokens: int
    eos_ids: frozenset[int]
    depth: int
    prefill_chunk: int
    prefill_depth: int
    reply_timeout_ns: int
    prefill_timeout_ns: int
    wants_taps: bool = False  # the drafter is fed what the target's layers say


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send these consecutive positions."""

    epoch: int
    start: int
    ids: tuple[int, ...]
    answer_from: int
    parents: tuple[int, ...] = ()  # of a tree's nodes, the last ids


@dataclass(frozen=True, slots=True)
class FeedTaps:
    """These rows of the reply just applied belong to committed tokens, from position `start` on."""

    start: int
    rows: tuple[int, ...]
    positions_len: int  # rows that the reply must have


@dataclass(frozen=True, slots=True)
class CommitTokens:
    """These tokens are output now, for good."""

    ids: tuple[int, ...]
    rows: tuple[int, ...] = field(default=(), compare=False)  # which of the reply's ids they are


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """Ask the drafter for tokens after committed + speculative."""

    request_id: int
    speculative: tuple[int, ...]
    max_len: int
    is_idle: bool = False  # nothing is in flight


@dataclass(frozen=True, slots=True)
class CancelDraft:
    """The request is void; computing it would be waste."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Output ends; no frame will be sent any more."""

    reason: FinishReason


Action = SendFrame | FeedTaps | CommitTokens | RequestDraft | CancelDraft | Finish


@dataclass(frozen=True, slots=True)
class Span:
    """One stage's durations for one frame (see `transport.message.StageSpan`)."""

    queue_ns: int
    compute_ns: int
    span_ns: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a reply came and what it carried besides ids."""

    now_ns: int
    num_bytes: int = 0
    spans: tuple[Span, ...] = ()


@dataclass(slots=True)
class Frame:
    """A sent frame while its fate is open; becomes a `FrameRecord`."""

    epoch: int
    start: int
    positions_len: int
    answer_from: int
    sent_len: int  # drafts in it
    source: str
    match_len: int
    in_flight: int
    frontier: int  # committed tokens when it was sent
    sent_ns: int
    prefill: bool
    accepted_len: int = 0
    refused: bool = False  # one of its drafts was refuted
    committed_len: int = 0
    received_ns: int | None = None
    received_bytes: int = 0
    sent_bytes: int = 0
    draft_ns: int = 0
    spans: tuple[Span, ...] = ()
    parents: tuple[int, ...] = ()  # of a tree's nodes, the last positions
    node_ids: tuple[int, ...] = ()  # of a tree's nodes, their tokens
    path: tuple[int, ...] = ()  # the nodes that the target took
    outcome: Outcome | None = None
    draft_len: int | None = None  # None: sent_len, no cut

    @property
    def end(self) -> int:
        """First position behind the frame."""
        return self.start + self.positions_len

    @property
    def trunk_len(self) -> int:
        """Positions that follow one another: all of a chain's, a tree's up to its root."""
        return self.positions_len - len(self.parents)

    def rows_known(self, frontier: int) -> FeedTaps:
        """Its rows, in order of position, whose token is committed and not the last one.

        What the last one's row says is in the next frame, which carries it.
        """
        rows = [*range(self.trunk_len), *(self.trunk_len + node for node in self.path)]
        known_len = max(0, frontier - 1 - self.start)
        return FeedTaps(self.start, tuple(rows[:known_len]), self.positions_len)

    def land(self, arrival: Arrival) -> None:
        """Its reply has come."""
        self.received_ns = arrival.now_ns
        self.received_bytes = arrival.num_bytes
        self.spans = arrival.spans

    def _counted_len(self) -> int:
        """k: the drafts sent, less those behind the last output position."""
        return self.sent_len if self.draft_len is None else self.draft_len

    def record(self) -> FrameRecord:
        """Freeze it."""
        assert self.outcome is not None, "the frame's fate is still open"
        decided = self.outcome in ("applied", "refuted", "closed")
        return FrameRecord(
            epoch=self.epoch,
            start=self.start,
            positions_len=self.positions_len,
            sent_len=self.sent_len,
            draft_len=self._counted_len() if decided else 0,
            accepted_len=self.accepted_len if decided else 0,
            tested_len=self.accepted_len + self.refused if decided else 0,
            committed_len=self.committed_len,
            outcome=self.outcome,
            source=self.source,
            match_len=self.match_len,
            in_flight=self.in_flight,
            frontier=self.frontier,
            sent_ns=self.sent_ns,
            received_ns=self.received_ns,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            draft_ns=self.draft_ns,
            spans=self.spans,
            parents=self.parents,
            node_ids=self.node_ids,
        )


@dataclass(frozen=True, slots=True)
class FrameRecord:
    """One frame's whole story (DESIGN section 5). Times: coordinator clock, as given."""

    epoch: int
    start: int
    positions_len: int
    sent_len: int
    draft_len: int  # k
    accepted_len: int  # a
    tested_len: int
    committed_len: int
    outcome: Outcome
    source: str
    match_len: int
    in_flight: int
    frontier: int
    sent_ns: int
    received_ns: int | None
    sent_bytes: int = 0
    received_bytes: int = 0
    draft_ns: int = 0  # drafting and planning it, between the event that allowed it and its sending
    spans: tuple[Span, ...] = ()
    parents: tuple[int, ...] = ()  # of a tree's nodes, its last positions; -1: the root
    node_ids: tuple[int, ...] = ()  # their tokens

    @property
    def unverified_len(self) -> int:
        """Drafts sent before this frame's own whose fate was open when it was sent."""
        return max(0, self.start + self.positions_len - self.sent_len - self.frontier)

    def since(self, origin_ns: int) -> FrameRecord:
        """The same record with times counted from `origin_ns`."""
        received_ns = None if self.received_ns is None else self.received_ns - origin_ns
        return replace(self, sent_ns=self.sent_ns - origin_ns, received_ns=received_ns)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands, for whoever watches it."""

    num_in_flight: int
    num_accepted: int  # drafts, of those whose fate is decided
    num_tested: int


def never_stops(output_ids: Sequence[int]) -> bool:
    """The stop check of a job without stop strings."""
    return False


def measures_nothing(record: FrameRecord, company: int) -> None:
    """The measure of a job whose times nobody learns from."""


def tells_nobody(fate: DraftFate) -> None:
    """For a job whose drafter learns from no fate."""
