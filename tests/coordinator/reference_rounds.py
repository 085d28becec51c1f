"""Test only: DESIGN section 5 written down twice more, slowly and plainly.

`SlowRounds` says which frames are sent, keeping one dictionary from position to token.
`expected_row` says what becomes of a frame, without any simulation: from the position where its
epoch diverges and the position where output ends. Neither shares code with the round machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.coordinator.records import FrameRecord, RoundLimits, SendFrame

EOS = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's own continuation, cut where output must end."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def last_position(self) -> int:
        return len(self.prompt) + len(self.output) - 1

    def token(self, position: int) -> int:
        """The target's token; past the end of output anything goes."""
        full = self.prompt + self.output
        return full[position] if position < len(full) else 5000 + position


def make_text(prompt_len: int, max_new_tokens: int, eos_at: int | None) -> Text:
    """Distinct tokens; EOS at output index `eos_at`."""
    output = [200 + idx for idx in range(max_new_tokens)]
    if eos_at is not None and eos_at < max_new_tokens:
        output = [*output[:eos_at], EOS]
    return Text(tuple(range(100, 100 + prompt_len)), tuple(output))


def make_limits(max_new_tokens: int, depth: int, **changes: int) -> RoundLimits:
    """Limits of a small job."""
    values = {
        "prefill_chunk": 256,
        "prefill_depth": 2,
        "reply_timeout_ns": 1_000_000,
        "prefill_timeout_ns": 10_000_000,
        **changes,
    }
    return RoundLimits(
        max_new_tokens=max_new_tokens, eos_ids=frozenset({EOS}), depth=depth, **values
    )


@dataclass(slots=True)
class SlowFrame:
    """A decode frame as the reference sent it."""

    epoch: int
    start: int
    ids: tuple[int, ...]
    first_draft: int
    in_flight: int


@dataclass(slots=True)
class SlowRounds:
    """The sending rules of DESIGN section 5, for a fixed draft length."""

    text: Text
    limits: RoundLimits
    draft_len: int
    propose: Callable[[int, int], tuple[int, ...]]  # (position, asked) -> tokens
    frontier: int = 0
    epoch: int = 0
    finished: bool = False
    sent: dict[int, int] = field(default_factory=dict)  # of this epoch
    request: tuple[int, int] | None = None  # (position, asked)
    waiting: list[SlowFrame] = field(default_factory=list)
    frames: list[SlowFrame] = field(default_factory=list)
    dry: bool = False

    def after_prefill(self) -> None:
        """The prompt is computed and the first output token committed."""
        self.frontier = len(self.text.prompt)
        self.sent = dict(enumerate(self.text.prompt))
        self._take([self.frontier])

    def deliver_reply(self) -> None:
        """The oldest frame of this epoch is answered."""
        frame = self.waiting.pop(0)
        self._take(range(frame.start + 1, frame.start + len(frame.ids) + 1))

    def deliver_draft(self) -> None:
        """The drafter answers the open request."""
        assert self.request is not None
        draft = self.propose(*self.request)
        self.request = None
        self.dry = not draft
        self._send(draft)
        self._next()

    def _take(self, positions: Sequence[int]) -> None:
        for position in positions:
            self.frontier = position + 1
            self.dry = False
            if position == self.text.last_position:
                self.finished, self.request, self.waiting = True, None, []
                return
            if position in self.sent and self.sent[position] != self.text.token(position):
                self.epoch += 1
                self.sent = {p: self.text.token(p) for p in range(position)}
                self.request, self.waiting = None, []
                break
        place = max(len(self.sent), self.frontier)
        if self.request is not None and self.request != (place, self._asked(place)):
            self.request = None
        self._next()

    def _asked(self, place: int) -> int:
        last = len(self.text.prompt) + self.limits.max_new_tokens - 1
        return max(0, min(self.draft_len, last - place))

    def _next(self) -> None:
        if self.request is not None or self.dry or len(self.waiting) >= self.limits.depth:
            return
        place = max(len(self.sent), self.frontier)
        if self._asked(place):
            self.request = (place, self._asked(place))
        else:
            self._send(())

    def _send(self, draft: tuple[int, ...]) -> None:
        start = len(self.sent)
        anchor = tuple(self.text.token(p) for p in range(start, self.frontier))
        if not anchor + draft:
            return
        for token in anchor + draft:
            self.sent[len(self.sent)] = token
        frame = SlowFrame(
            self.epoch, start, anchor + draft, start + len(anchor), len(self.waiting) + 1
        )
        self.waiting.append(frame)
        self.frames.append(frame)


def expected_row(frame: SlowFrame, epoch_frames: Sequence[SlowFrame], text: Text) -> dict:
    """What must become of a frame, by position alone.

    The first position of the epoch whose sent token is not the target's is decided by the frame
    that holds the position before it; so is the last output position.
    """
    sent = {f.start + idx: token for f in epoch_frames for idx, token in enumerate(f.ids)}
    never = 10**9
    wrong = min((p for p, token in sent.items() if token != text.token(p)), default=never)
    last = text.last_position
    end = frame.start + len(frame.ids)
    drafts = range(frame.first_draft, end)
    row = {"sent_len": len(drafts), "k": 0, "a": 0, "tested": 0, "committed": 0}
    tested = [p for p in drafts if p <= min(wrong, last)]
    if frame.start < min(wrong, last):
        row |= {"outcome": "applied", "committed": min(end, wrong, last) - frame.start}
    elif frame.start == wrong <= last:
        row["outcome"] = "refuted"
    elif frame.start == last < wrong:
        row["outcome"] = "closed"
    else:
        return row | {"outcome": "stale", "k": None}
    ends_here = min(wrong, end) >= last if row["outcome"] == "applied" else frame.start == last
    row["k"] = sum(p <= last for p in drafts) if ends_here else len(drafts)
    row["tested"] = len(tested)
    row["a"] = sum(p != wrong for p in tested)
    return row


def row_of(record: FrameRecord) -> dict:
    """The same columns of a machine's record (`k` of a stale frame is checked apart)."""
    stale = record.outcome == "stale"
    return {
        "sent_len": record.sent_len,
        "k": None if stale else record.draft_len,
        "a": record.accepted_len,
        "tested": record.tested_len,
        "committed": record.committed_len,
        "outcome": record.outcome,
    }


def send_of(frame: SlowFrame) -> SendFrame:
    """The action that the machine must have taken."""
    return SendFrame(frame.epoch, frame.start, frame.ids, frame.start)
