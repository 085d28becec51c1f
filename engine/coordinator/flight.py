"""The frames of one job: in flight, stale, settled. Sans-IO.

Guarantees: every frame that was sent ends with exactly one outcome, and every reply is matched to
the one frame it answers. Must never know tokens, policies or sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.coordinator.records import Arrival, Frame, FrameRecord, Standing
from engine.errors import RemoteProtocolError, UnmatchedReplyError


class Flight:
    """Book of frames, in order of sending.

    Args:
        measure: told of each frame when it is answered, and how many others were on the ring
            meanwhile; its fate may still be open, only sizes and times count.
    """

    def __init__(self, measure: Callable[[FrameRecord, int], None]) -> None:
        self._measure = measure
        self.frames: list[Frame] = []
        self.in_flight: deque[Frame] = deque()  # of the current epoch
        self.stale_replies = 0
        self._retired: deque[Frame] = deque()  # of older epochs; a reply may still come

    def __len__(self) -> int:
        """Frames of the current epoch in flight."""
        return len(self.in_flight)

    @property
    def next_due(self) -> Frame | None:
        """The frame whose reply comes next."""
        return self.in_flight[0] if self.in_flight else None

    @property
    def is_closed(self) -> bool:
        """Whether nothing may join what is in flight: a tree's reply raises the epoch."""
        return bool(self.in_flight and self.in_flight[-1].parents)

    def standing(self) -> Standing:
        """Counted anew at each call: nobody pays for a view that nobody looks at."""
        chains = [frame for frame in self.frames if not frame.parents]
        return Standing(
            num_in_flight=len(self.in_flight),
            num_accepted=sum(frame.accepted_len for frame in chains),
            num_tested=sum(frame.accepted_len + frame.refused for frame in chains),
        )

    def launch(self, frame: Frame) -> None:
        """A frame goes out."""
        self.frames.append(frame)
        self.in_flight.append(frame)

    def note_sent(
        self, epoch: int, start: int, sent_ns: int, num_bytes: int, draft_ns: int = 0
    ) -> None:
        """When a frame was handed to its link, its bytes on the wire, how long drafting it took.

        The machine decides on a frame at the time of the event that allows it; what is measured
        is when it left.
        """
        for frame in reversed(self.frames):
            if (frame.epoch, frame.start) == (epoch, start):
                frame.sent_ns, frame.sent_bytes, frame.draft_ns = sent_ns, num_bytes, draft_ns
                return

    def land(self, start: int, num_ids: int, arrival: Arrival) -> Frame:
        """The reply to the frame next due has come.

        Raises:
            UnmatchedReplyError: no such frame is due.
            RemoteProtocolError: the number of ids is not what the frame asks for.
        """
        frame = self.next_due
        if frame is None or frame.start != start:
            raise UnmatchedReplyError(f"reply for start {start} matches no frame that is due")
        expected_len = max(0, frame.end - frame.answer_from)
        if num_ids != expected_len:
            raise RemoteProtocolError(
                f"reply for start {start} has {num_ids} ids instead of {expected_len}"
            )
        self.in_flight.popleft()
        frame.land(arrival)
        frame.outcome = "prefill" if frame.prefill else "applied"
        self._measure(frame.record(), self.company_of(frame))
        return frame

    def company_of(self, answered: Frame) -> int:
        """How many other frames were on the ring at some time while this one was.

        Stale ones too; those that were never answered count as long on their way as this one.
        """
        assert answered.received_ns is not None, "it was answered just now"
        travel_ns = answered.received_ns - answered.sent_ns
        num_others = 0
        for frame in reversed(self.frames):
            left_ns = frame.received_ns or frame.sent_ns + travel_ns
            if frame.sent_ns + travel_ns < answered.sent_ns - travel_ns:
                break  # long gone, and so is all that was sent before
            num_others += frame is not answered and left_ns > answered.sent_ns
        return num_others

    def land_stale(self, epoch: int, start: int, arrival: Arrival) -> None:
        """A reply that decides nothing: counted and dropped.

        Raises:
            UnmatchedReplyError: no such frame was ever sent, or it was answered before.
        """
        for frame in self._retired:
            if (frame.epoch, frame.start) == (epoch, start) and frame.received_ns is None:
                frame.land(arrival)
                self.stale_replies += 1
                self._measure(frame.record(), self.company_of(frame))
                return
        raise UnmatchedReplyError(f"reply for epoch {epoch} start {start} matches no frame sent")

    def settle_divergence(self) -> Frame | None:
        """Retire what is in flight after a divergence.

        Returns:
            The frame whose first draft was refuted by the reply, if that is how it diverged.
        """
        following = self.next_due
        refuted = following if following is not None and following.refused else None
        if refuted is not None:
            refuted.outcome = "refuted"
        self.retire()
        return refuted

    def settle_end(self, last: Frame, frontier: int) -> Frame | None:
        """Retire what is in flight after the last token, which `last`'s reply brought.

        Drafts behind the last output position were never tested: k is cut to the ones before. A
        tree's k is its nodes.

        Returns:
            The frame whose first draft the last token decided, if there is one.
        """
        if last.sent_len and not last.parents:
            last.draft_len = max(0, last.sent_len - max(0, last.end - frontier))
        following = self.next_due
        decided = following
        if following is not None and following.refused:
            following.outcome, following.draft_len = "refuted", 1
        elif following is not None and following.accepted_len:
            following.outcome, following.draft_len = "closed", 1
        else:
            decided = None
        self.retire()
        return decided

    def retire(self) -> None:
        """Everything still undecided in flight is stale."""
        for frame in self.in_flight:
            if frame.outcome is None:
                frame.outcome = "stale"
        self._retired.extend(self.in_flight)
        self.in_flight.clear()
