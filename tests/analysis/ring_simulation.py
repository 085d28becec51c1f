"""Test only: frames of a pretended ring, played by the rules of DESIGN section 5.

Guarantees: the frames keep the identities that a real receipt keeps (applied, refuted, closed,
stale; k cut at the end of output). Must never be mistaken for a measurement: times are invented.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.schema import FrameRow, StageSpan

LOOP_NS = 275_000_000
POSITION_NS = 1_200_000
SEND_NS = 400_000
DRAFT_NS = 300_000  # of it
QUEUE_NS = 50_000
HANDING_NS = 10_000  # of a span, beside queue and compute


@dataclass(slots=True)
class SentFrame:
    """A frame under way and what became of its drafts so far."""

    epoch: int
    start: int
    positions_len: int
    sent_len: int
    in_flight: int
    sent_ns: int
    frontier: int
    draft_ns: int
    accepted_len: int = 0
    tested_len: int = 0
    committed_len: int = 0
    outcome: str = "stale"
    received_ns: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.positions_len

    @property
    def first_draft(self) -> int:
        return self.end - self.sent_len


@dataclass(slots=True)
class PretendedRing:
    """Plays one job: `right[i]` says whether a draft of output i would be accepted."""

    prompt_len: int
    right: Sequence[bool]  # by output index; its length is the output's
    draft_lens: tuple[int, int]  # base k; k after a fully accepted frame
    depth: int
    slowness: float = 1.0
    num_stages: int = 4
    reply_bytes: int = 100
    frames: list[SentFrame] = field(default_factory=list)
    under_way: deque[SentFrame] = field(default_factory=deque)
    epoch: int = 0
    frontier: int = 0
    next_position: int = 0
    draft_len: int = 0
    now_ns: int = 0

    @property
    def end(self) -> int:
        return self.prompt_len + len(self.right)

    def play(self, start_ns: int) -> tuple[list[FrameRow], int]:
        """Decode after a prefill whose token was committed at `start_ns`.

        Returns:
            The rows, and when the last token was committed.
        """
        self.now_ns = start_ns
        self.frontier = self.prompt_len + 1
        self.next_position = self.prompt_len
        self.draft_len = self.draft_lens[0]
        while self.frontier < self.end:
            self._fill()
            frame = self.under_way.popleft()
            cost_ns = (LOOP_NS + POSITION_NS * frame.positions_len) * self.slowness
            self.now_ns = max(self.now_ns, frame.sent_ns + int(cost_ns))
            self._reply(frame)
        return [self._row(frame) for frame in self.frames], self.now_ns

    def _fill(self) -> None:
        draft_ns = 0  # the first draft was ready
        while len(self.under_way) < self.depth and (self.draft_len or not self.under_way):
            anchors = max(0, self.frontier - self.next_position)
            frame = SentFrame(
                epoch=self.epoch,
                start=self.next_position,
                positions_len=anchors + self.draft_len,
                sent_len=self.draft_len,
                in_flight=len(self.under_way) + 1,
                sent_ns=self.now_ns,
                frontier=self.frontier,
                draft_ns=draft_ns,
            )
            draft_ns = DRAFT_NS if self.draft_len else 0
            self.now_ns += SEND_NS
            self.next_position = frame.end
            self.frames.append(frame)
            self.under_way.append(frame)

    def _reply(self, frame: SentFrame) -> None:
        frame.outcome, frame.received_ns = "applied", self.now_ns
        last_decided = frame
        for position in range(frame.start + 1, frame.end + 1):
            if position != self.frontier or self.frontier == self.end:
                continue
            self.frontier += 1
            frame.committed_len += 1
            if position >= self.next_position:
                continue
            owner = next(f for f in (frame, *self.under_way) if f.first_draft <= position < f.end)
            accepted = self.right[position - self.prompt_len]
            owner.tested_len += 1
            owner.accepted_len += accepted
            if not accepted:
                self._flush(frame, owner)
                last_decided = owner
                break
        full = 0 < last_decided.sent_len == last_decided.accepted_len
        self.draft_len = self.draft_lens[1] if full else self.draft_lens[0]
        if self.frontier == self.end:
            for other in self.under_way:
                if other.tested_len:
                    other.outcome = "closed"

    def _flush(self, frame: SentFrame, owner: SentFrame) -> None:
        if owner is not frame:
            owner.outcome = "refuted"
        self.epoch += 1
        self.under_way.clear()
        self.next_position = self.frontier - 1

    def _row(self, frame: SentFrame) -> FrameRow:
        is_stale = frame.outcome == "stale"
        at_or_before_end = max(0, min(frame.sent_len, self.end - frame.first_draft))
        return FrameRow(
            epoch=frame.epoch,
            start=frame.start,
            positions_len=frame.positions_len,
            sent_len=frame.sent_len,
            draft_len=0 if is_stale else at_or_before_end,
            accepted_len=0 if is_stale else frame.accepted_len,
            tested_len=0 if is_stale else frame.tested_len,
            committed_len=frame.committed_len,
            outcome=frame.outcome,
            source="ngram" if frame.sent_len else "none",
            match_len=4 if frame.sent_len else 0,
            in_flight=frame.in_flight,
            sent_ns=frame.sent_ns,
            received_ns=frame.received_ns,
            sent_bytes=120 + 8 * frame.positions_len,
            received_bytes=0 if frame.received_ns is None else self.reply_bytes,
            spans=[] if frame.received_ns is None else self._spans(frame),
            frontier=frame.frontier,
            draft_ns=frame.draft_ns,
            parents=[],
            node_ids=[],
        )

    def _spans(self, frame: SentFrame) -> list[StageSpan]:
        compute_ns = POSITION_NS * frame.positions_len // self.num_stages
        span_ns = QUEUE_NS + compute_ns + HANDING_NS
        span = StageSpan(queue_ns=QUEUE_NS, compute_ns=compute_ns, span_ns=span_ns)
        return [span] * self.num_stages
