"""The round machine: what to send, what a reply decides, when output ends. Sans-IO.

Rules (DESIGN section 5):
1. Tokens stream by position. A frame starts at the first position whose token was not sent in this
   epoch; positions below the frontier carry committed tokens, the rest are drafts.
2. A reply's ids are taken in position order: the id at the frontier is committed; if a token was
   sent there and is equal, that draft is accepted; if it differs, the epoch rises and what is in
   flight is stale.
3. So the reply of one frame decides the first draft of the next one, and a bonus token is always
   committed.
Guarantees: output equals the target's own continuation whatever the drafter says; no position is
sent twice in an epoch; nothing of an older epoch is applied. Must never know sockets, clocks,
threads or torch: time comes in as `now_ns`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.coordinator.draft_requests import DraftRequests
from engine.coordinator.flight import Flight
from engine.coordinator.policy import DraftPolicy, Situation
from engine.coordinator.records import (
    Action,
    Arrival,
    CommitTokens,
    Finish,
    FinishReason,
    Frame,
    FrameRecord,
    RoundLimits,
    SendFrame,
    measures_nothing,
    never_stops,
)
from engine.draft.drafter import NO_DRAFT, Draft
from engine.errors import JobError, LocalProtocolError

_PREFILL = Draft((), "prefill", 0)


class RoundMachine:
    """State of one job.

    Args:
        prompt_ids: at least one token.
        policy: chooses draft lengths; fed with every round.
        should_stop: called with the output so far after each token; True ends output there.
        measure: told of each answered frame, stale and prefill ones too, and how many others were
            on the ring; its fate may still be open, only sizes and times count.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        limits: RoundLimits,
        policy: DraftPolicy,
        should_stop: Callable[[Sequence[int]], bool] = never_stops,
        measure: Callable[[FrameRecord, int], None] = measures_nothing,
    ) -> None:
        if not prompt_ids or limits.max_new_tokens < 1 or limits.depth < 1:
            raise LocalProtocolError("a job needs a prompt, max_new_tokens >= 1 and depth >= 1")
        self.epoch = 0
        self.finish_reason: FinishReason = "none"
        self.flight = Flight(measure)
        self._limits = limits
        self._policy = policy
        self._should_stop = should_stop
        self._prompt_len = len(prompt_ids)
        self._tokens = list(prompt_ids)  # committed, by position
        self._speculative: deque[int] = deque()  # drafts sent beyond the frontier
        self._next_position = 0  # first position not sent in this epoch
        self._requests = DraftRequests()

    @property
    def frontier(self) -> int:
        """Number of committed tokens, prompt included."""
        return len(self._tokens)

    @property
    def output_ids(self) -> list[int]:
        return self._tokens[self._prompt_len :]

    @property
    def speculative(self) -> tuple[int, ...]:
        """Drafts sent beyond the frontier whose fate is open."""
        return tuple(self._speculative)

    @property
    def finished(self) -> bool:
        return self.finish_reason != "none"

    @property
    def _draft_place(self) -> int:
        """The position where the next draft starts."""
        return max(self._next_position, self.frontier)

    def start(self, now_ns: int) -> list[Action]:
        """Open the job with the first prefill frames."""
        return self._send_prefill(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When the oldest exchange of this epoch is overdue; None if nothing is awaited."""
        frame = self.flight.next_due
        if frame is None or self.finished:
            return None
        if frame.prefill:
            return self.flight.frames[0].sent_ns + self._limits.prefill_timeout_ns
        return frame.sent_ns + self._limits.reply_timeout_ns

    def on_timer(self, now_ns: int) -> None:
        """Raise `JobError` (`reply_timeout`) if the deadline has passed."""
        deadline_ns = self.next_deadline_ns()
        frame = self.flight.next_due
        if deadline_ns is not None and frame is not None and now_ns >= deadline_ns:
            waited_s = (now_ns - frame.sent_ns) / 1e9
            raise JobError(
                "reply_timeout",
                f"no reply to epoch {frame.epoch} start {frame.start} after {waited_s:.1f} s",
            )

    def on_reply(
        self, epoch: int, start: int, ids: Sequence[int], arrival: Arrival
    ) -> list[Action]:
        """Apply or drop one reply.

        Raises:
            UnmatchedReplyError: it matches no frame in flight or comes out of order.
            RemoteProtocolError: it has a wrong number of ids.
        """
        if epoch != self.epoch or self.finished:
            self.flight.land_stale(epoch, start, arrival)
            return []
        frame = self.flight.land(start, len(ids), arrival)
        actions = self._apply(frame, ids)
        if not self.finished:
            if frame.prefill:
                actions += self._send_prefill(arrival.now_ns)
            if self._requests.open:
                actions += self._requests.void_unless(self._draft_place, self._next_draft_len())
            actions += self._pump(arrival.now_ns)
        return actions

    def on_draft(self, request_id: int, draft: Draft, now_ns: int) -> list[Action]:
        """Take a draft; one for a void request is dropped."""
        if not self._requests.take(request_id, draft):
            return []
        kept = self._keep(draft)
        self._requests.is_dry = not kept.ids
        return self._send_frame(kept, now_ns) + self._pump(now_ns)

    def abandon(self) -> None:
        """Give up: what is in flight is stale, replies still to come are counted and dropped."""
        self.flight.retire()
        self._requests.void()
        self.epoch += 1

    def records(self) -> list[FrameRecord]:
        """Every frame's record, in order of sending; call when finished or abandoned."""
        return [frame.record() for frame in self.flight.frames]

    # -- sending ---------------------------------------------------------------------------------

    def _send_prefill(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        limits = self._limits
        while self._next_position < self._prompt_len and len(self.flight) < limits.prefill_depth:
            start = self._next_position
            end = min(start + limits.prefill_chunk, self._prompt_len)
            last = end == self._prompt_len
            answer_from = end - 1 if last else end
            ids = tuple(self._tokens[start:end])
            actions.append(self._emit(ids, answer_from, _PREFILL, now_ns))
        return actions

    def _pump(self, now_ns: int) -> list[Action]:
        """Send or request whatever the depth allows."""
        prefilling = self.frontier == self._prompt_len
        if self.finished or prefilling or self._requests.open or self._requests.is_dry:
            return []
        if len(self.flight) >= self._limits.depth:
            return []
        max_len = self._next_draft_len()
        if max_len > 0:
            return [self._requests.ask(self._draft_place, self._speculative, max_len)]
        if self._next_position >= self.frontier:
            return []  # nothing committed is unsent, and nothing may be drafted
        return self._send_frame(NO_DRAFT, now_ns)

    def _next_draft_len(self) -> int:
        # The token of the last output position is decided by the position before it: drafting it
        # would verify nothing.
        last_output_position = self._prompt_len + self._limits.max_new_tokens - 1
        room = last_output_position - self._draft_place
        return max(0, min(self._policy.next_len(self._situation()), room))

    def _situation(self) -> Situation:
        return Situation(
            committed_len=self.frontier - self._prompt_len,
            remaining_len=self._prompt_len + self._limits.max_new_tokens - self.frontier,
            in_flight=len(self.flight),
            unverified_len=len(self._speculative),
            anchor_len=max(0, self.frontier - self._next_position),
        )

    def _keep(self, draft: Draft) -> Draft:
        """What of a draft the policy wants sent."""
        if not draft.ids:
            return NO_DRAFT
        kept_len = self._policy.keep_len(self._situation(), draft)
        if not 0 <= kept_len <= len(draft.ids):
            raise LocalProtocolError(f"policy keeps {kept_len} of {len(draft.ids)} drafted tokens")
        kept = replace(draft, ids=draft.ids[:kept_len], counts=draft.counts[:kept_len])
        return kept if kept_len else NO_DRAFT

    def _send_frame(self, draft: Draft, now_ns: int) -> list[Action]:
        anchor = tuple(self._tokens[self._next_position :])
        if not anchor and not draft.ids:
            return []
        self._speculative.extend(draft.ids)
        return [self._emit(anchor + draft.ids, self._next_position, draft, now_ns)]

    def _emit(self, ids: tuple[int, ...], answer_from: int, draft: Draft, now_ns: int) -> SendFrame:
        frame = Frame(
            epoch=self.epoch,
            start=self._next_position,
            positions_len=len(ids),
            answer_from=answer_from,
            sent_len=len(draft.ids),
            source=draft.source,
            match_len=draft.match_len,
            in_flight=len(self.flight) + 1,
            frontier=self.frontier,
            sent_ns=now_ns,
            prefill=draft is _PREFILL,
        )
        self.flight.launch(frame)
        self._next_position = frame.end
        return SendFrame(frame.epoch, frame.start, ids, answer_from)

    # -- replies ---------------------------------------------------------------------------------

    def _apply(self, frame: Frame, ids: Sequence[int]) -> list[Action]:
        committed: list[int] = []
        diverged = False
        for offset, token in enumerate(ids):
            position = frame.answer_from + offset + 1
            if position < self.frontier:
                continue  # re-fed: already committed
            committed.append(token)
            diverged = self._commit(frame, position, token)
            if diverged or self.finished:
                break
        frame.committed_len = len(committed)
        if not committed:
            return []
        self._requests.is_dry = False
        actions: list[Action] = [CommitTokens(tuple(committed))]
        decided: Frame | None = None  # the next frame, if this reply settled it
        if self.finished:
            decided = self.flight.settle_end(frame, self.frontier)
            actions += [*self._requests.void(), Finish(self.finish_reason)]
        elif diverged:
            decided = self.flight.settle_divergence()
            actions += self._requests.void()
            self._rewind()
        if not frame.prefill:
            self._policy.observe(frame.record())
        if decided is not None:
            self._policy.observe(decided.record())
        return actions

    def _commit(self, frame: Frame, position: int, token: int) -> bool:
        """Commit one token at the frontier; True if a draft sent there differs."""
        if position != self.frontier:
            raise LocalProtocolError(f"token for {position} while the frontier is {self.frontier}")
        self._tokens.append(token)
        diverged = False
        if self._speculative:
            # The draft belongs to this frame, or is the first one of the next frame.
            owner = frame if position < frame.end else self.flight.in_flight[0]
            diverged = self._speculative.popleft() != token
            owner.refused = diverged
            owner.accepted_len += not diverged
        if token in self._limits.eos_ids:
            self.finish_reason = "eos"
        elif self._should_stop(self.output_ids):
            self.finish_reason = "stop"
        elif self.frontier - self._prompt_len == self._limits.max_new_tokens:
            self.finish_reason = "length"
        return diverged

    def _rewind(self) -> None:
        """Raise the epoch; the next frame starts at the corrected position."""
        self._speculative.clear()
        self.epoch += 1
        self._next_position = self.frontier - 1
