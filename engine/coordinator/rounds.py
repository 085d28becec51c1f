"""The round machine: what to send, what a reply decides, when output ends. Sans-IO.

Rules (DESIGN section 5):
1. Tokens stream by position. A frame starts at the first position whose token was not sent in this
   epoch; positions below the frontier carry committed tokens, the rest are drafts.
2. A reply's ids are taken in position order: the id at the frontier is committed; if a token was
   sent there and is equal, that draft is accepted; if it differs, the epoch rises and what is in
   flight is stale.
3. So the reply of one frame decides the first draft of the next one, and a bonus token is always
   committed.
4. A tree travels alone. Its reply always raises the epoch: the next frame carries the path anew.
Guarantees: output equals the target's own continuation whatever the drafter says; no position is
sent twice in an epoch; nothing of an older epoch is applied. Must never know sockets, clocks,
threads or torch: time comes in as `now_ns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.coordinator.committed_text import CommittedText
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
    measures_nothing,
    never_stops,
    tells_nobody,
)
from engine.coordinator.stream import Stream
from engine.coordinator.tree_rounds import fit_tree
from engine.draft.drafter import NO_DRAFT, Draft, DraftFate
from engine.errors import JobError, LocalProtocolError


class RoundMachine:
    """State of one job.

    Args:
        prompt_ids: at least one token.
        policy: chooses draft lengths; fed with every round but trees, which are no chain's length.
        should_stop: called with the output so far after each token; True ends output there.
        measure: told of each answered frame, stale and prefill ones too, and how many others were
            on the ring; its fate may still be open, only sizes and times count.
        tell_fate: told what became of each draft, trees too, before the tokens are committed.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        limits: RoundLimits,
        policy: DraftPolicy,
        should_stop: Callable[[Sequence[int]], bool] = never_stops,
        measure: Callable[[FrameRecord, int], None] = measures_nothing,
        tell_fate: Callable[[DraftFate], None] = tells_nobody,
    ) -> None:
        if not prompt_ids or limits.max_new_tokens < 1 or limits.depth < 1:
            raise LocalProtocolError("a job needs a prompt, max_new_tokens >= 1 and depth >= 1")
        self.flight = Flight(measure)
        self._limits = limits
        self._policy = policy
        self._tell_fate = tell_fate
        self._text = CommittedText(prompt_ids, limits, should_stop)
        self._stream = Stream(self._text, self.flight)
        self._requests = DraftRequests()

    @property
    def epoch(self) -> int:
        """Raised whenever what was sent turns out wrong; frames of an older one are stale."""
        return self._stream.epoch

    @property
    def frontier(self) -> int:
        """Number of committed tokens, prompt included."""
        return self._text.frontier

    @property
    def output_ids(self) -> list[int]:
        return self._text.output_ids

    @property
    def speculative(self) -> tuple[int, ...]:
        """Drafts sent beyond the frontier whose fate is open."""
        return tuple(self._stream.speculative)

    @property
    def finish_reason(self) -> FinishReason:
        return self._text.finish_reason

    @property
    def finished(self) -> bool:
        return self._text.finished

    def start(self, now_ns: int) -> list[Action]:
        """Open the job with the first prefill frames."""
        return [*self._stream.send_prompt(self._limits, now_ns)]

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
        # The prompt goes on first: its taps can be looked at while it travels.
        actions: list[Action] = []
        if frame.prefill:
            actions += self._stream.send_prompt(self._limits, arrival.now_ns)
        actions += self._apply(frame, ids)
        if not self.finished:
            if self._requests.open:
                place = self._stream.draft_place
                actions += self._requests.void_unless(place, self._next_draft_len())
            actions += self._pump(arrival.now_ns)
        return actions

    def on_draft(self, request_id: int, draft: Draft, now_ns: int) -> list[Action]:
        """Take a draft; one for a void request is dropped.

        Raises:
            LocalProtocolError: longer than asked, no tree that can be, or one behind other frames.
        """
        if not self._requests.take(request_id, draft):
            return []
        kept = self._keep(draft)
        self._requests.is_dry = not kept.ids
        return [*self._stream.send(kept, now_ns), *self._pump(now_ns)]

    def abandon(self) -> None:
        """Give up: what is in flight is stale, replies still to come are counted and dropped."""
        self.flight.retire()
        self._requests.void()
        self._stream.epoch += 1

    def records(self) -> list[FrameRecord]:
        """Every frame's record, in order of sending; call when finished or abandoned."""
        return [frame.record() for frame in self.flight.frames]

    # -- asking ----------------------------------------------------------------------------------

    def _pump(self, now_ns: int) -> list[Action]:
        """Send or request whatever the depth allows."""
        prefilling = self.frontier == self._text.prompt_len
        if self.finished or prefilling or self._requests.open or self._requests.is_dry:
            return []
        if len(self.flight) >= self._limits.depth or self.flight.is_closed:
            return []
        max_len = self._next_draft_len()
        if max_len > 0:
            is_idle = not len(self.flight)
            place, speculative = self._stream.draft_place, self._stream.speculative
            return [self._requests.ask(place, speculative, max_len, is_idle)]
        return [*self._stream.send(NO_DRAFT, now_ns)]

    def _next_draft_len(self) -> int:
        return max(0, min(self._policy.next_len(self._situation()), self._stream.draft_room))

    def _situation(self) -> Situation:
        return Situation(
            committed_len=self.frontier - self._text.prompt_len,
            remaining_len=self._text.last_position + 1 - self.frontier,
            in_flight=len(self.flight),
            unverified_len=len(self._stream.speculative),
            anchor_len=self._stream.anchor_len,
        )

    def _keep(self, draft: Draft) -> Draft:
        """What of a draft is sent: of a chain, what the policy wants; of a tree, what may be."""
        if (draft.source == "tree") != bool(draft.parents):
            raise LocalProtocolError(f"{len(draft.parents)} parents in a draft by {draft.source!r}")
        if not draft.ids:
            return NO_DRAFT
        if draft.parents:
            return fit_tree(draft, self._stream.draft_room)
        kept_len = self._policy.keep_len(self._situation(), draft)
        if not 0 <= kept_len <= len(draft.ids):
            raise LocalProtocolError(f"policy keeps {kept_len} of {len(draft.ids)} drafted tokens")
        kept = replace(draft, ids=draft.ids[:kept_len], counts=draft.counts[:kept_len])
        return kept if kept_len else NO_DRAFT

    # -- replies ---------------------------------------------------------------------------------

    def _apply(self, frame: Frame, ids: Sequence[int]) -> list[Action]:
        before, epoch = self.frontier, self.epoch
        rows = self._stream.apply(frame, ids)
        frame.committed_len = len(rows)
        actions: list[Action] = []
        if rows:
            self._requests.is_dry = False
            actions.append(CommitTokens(self._text.between(before), rows))
        if self._limits.wants_taps:
            actions.append(frame.rows_known(self.frontier))
        decided: Frame | None = None  # the next frame, if this reply settled it
        if self.finished:
            decided = self.flight.settle_end(frame, self.frontier)
            actions += [*self._requests.void(), Finish(self.finish_reason)]
        elif self.epoch != epoch:
            decided = self.flight.settle_divergence()
            actions += self._requests.void()
        for settled in (frame, decided):
            if settled is not None and not settled.prefill:
                self._note_round(settled.record())
        return actions

    def _note_round(self, record: FrameRecord) -> None:
        if not record.parents:
            self._policy.observe(record)
        if record.sent_len:
            self._tell_fate(
                DraftFate(
                    record.source,
                    record.match_len,
                    record.sent_len,
                    record.accepted_len,
                    record.tested_len,
                    record.unverified_len,
                )
            )
