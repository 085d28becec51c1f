"""The stream of positions: what was sent in this epoch, and what a reply makes of it. Sans-IO.

Guarantees: no position is sent twice in an epoch; an id is committed at the frontier or nowhere;
whatever is in flight behind a token that differs from what was sent is void at once. Must never
know policies, drafters' requests or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.coordinator.committed_text import CommittedText
from engine.coordinator.flight import Flight
from engine.coordinator.records import Frame, RoundLimits, SendFrame
from engine.coordinator.tree_rounds import walk
from engine.draft.drafter import Draft
from engine.errors import LocalProtocolError

_PREFILL = Draft((), "prefill", 0)


class Stream:
    """Positions of one job on their way.

    Attributes:
        epoch: raised whenever what was sent turns out wrong.
        next_position: the first one not sent in this epoch.
        speculative: drafts sent beyond the frontier.
    """

    def __init__(self, text: CommittedText, flight: Flight) -> None:
        self.epoch = 0
        self.next_position = 0
        self.speculative: deque[int] = deque()
        self._text = text
        self._flight = flight

    @property
    def draft_place(self) -> int:
        """The position where the next draft starts."""
        return max(self.next_position, self._text.frontier)

    @property
    def draft_room(self) -> int:
        """How many tokens from there on a draft can decide.

        The token of the last output position is decided by the position before it: drafting it
        would verify nothing.
        """
        return self._text.last_position - self.draft_place

    @property
    def anchor_len(self) -> int:
        """Committed tokens that the next frame has to carry."""
        return max(0, self._text.frontier - self.next_position)

    def send_prompt(self, limits: RoundLimits, now_ns: int) -> list[SendFrame]:
        """As many chunks of the prompt as may be in flight."""
        sent: list[SendFrame] = []
        prompt_len = self._text.prompt_len
        while self.next_position < prompt_len and len(self._flight) < limits.prefill_depth:
            start = self.next_position
            end = min(start + limits.prefill_chunk, prompt_len)
            answer_from = end - 1 if end == prompt_len else end
            ids = self._text.between(start, end)
            sent.append(self._emit(ids, answer_from, _PREFILL, now_ns))
        return sent

    def send(self, draft: Draft, now_ns: int) -> list[SendFrame]:
        """A frame of what is committed and unsent, and a draft behind it; none if both are empty.

        Raises:
            LocalProtocolError: a tree, and something is in flight.
        """
        if draft.parents and len(self._flight):
            raise LocalProtocolError(f"a tree behind {len(self._flight)} frames in flight")
        anchor = self._text.between(self.next_position)
        if not anchor and not draft.ids:
            return []
        if not draft.parents:
            self.speculative.extend(draft.ids)
        # What a tree's path committed is carried anew, and needs no answer but its last token's.
        answer_from = max(self.next_position, self._text.frontier - 1)
        return [self._emit(anchor + draft.ids, answer_from, draft, now_ns)]

    def apply(self, frame: Frame, ids: Sequence[int]) -> tuple[int, ...]:
        """Commit what a reply decides; raises the epoch where the stream must begin anew.

        Returns:
            Which of `ids` were committed.
        """
        return self._climb(frame, ids) if frame.parents else self._follow(frame, ids)

    def _emit(self, ids: tuple[int, ...], answer_from: int, draft: Draft, now_ns: int) -> SendFrame:
        frame = Frame(
            epoch=self.epoch,
            start=self.next_position,
            positions_len=len(ids),
            answer_from=answer_from,
            sent_len=len(draft.ids),
            source=draft.source,
            match_len=draft.match_len,
            in_flight=len(self._flight) + 1,
            frontier=self._text.frontier,
            sent_ns=now_ns,
            prefill=draft is _PREFILL,
            parents=draft.parents,
            node_ids=draft.ids if draft.parents else (),
        )
        self._flight.launch(frame)
        self.next_position = frame.end
        return SendFrame(frame.epoch, frame.start, ids, answer_from, frame.parents)

    def _follow(self, frame: Frame, ids: Sequence[int]) -> tuple[int, ...]:
        """Commit a chain's ids up to the end of output or a draft that differs."""
        rows: list[int] = []
        for row, token in enumerate(ids):
            position = frame.answer_from + row + 1
            if position != self._text.frontier:
                raise LocalProtocolError(
                    f"token for {position} while the frontier is {self._text.frontier}"
                )
            rows.append(row)
            diverged = self._commit(frame, position, token)
            if self._text.finished:
                break
            if diverged:
                self._rewind(position)
                break
        return tuple(rows)

    def _commit(self, frame: Frame, position: int, token: int) -> bool:
        """Commit one token at the frontier; True if a draft sent there differs."""
        self._text.append(token)
        if not self.speculative:
            return False
        # The draft belongs to this frame, or is the first one of the next frame.
        owner = frame if position < frame.end else self._flight.in_flight[0]
        owner.refused = self.speculative.popleft() != token
        owner.accepted_len += not owner.refused
        return owner.refused

    def _climb(self, frame: Frame, ids: Sequence[int]) -> tuple[int, ...]:
        """Commit a tree's path; caches hold its nodes by place, not by position: all begin anew."""
        rows = walk(frame, ids, self._text)
        if not self._text.finished:
            self._rewind(frame.answer_from + 1)
        return rows

    def _rewind(self, start: int) -> None:
        """Raise the epoch; the next frame starts at this committed position."""
        self.speculative.clear()
        self.epoch += 1
        self.next_position = start
