"""The one draft that the round machine has asked for, and whether asking again makes sense.

Guarantees: at most one request is open; a draft answers it or is dropped. Must never know frames,
links or clocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.coordinator.records import CancelDraft, RequestDraft
from engine.defaults import DRAFT_LEN_MAX
from engine.draft.drafter import Draft
from engine.errors import LocalProtocolError


class DraftRequests:
    """Book of requests.

    Attributes:
        open: the request that no draft has answered yet.
        is_dry: the drafter, or the policy, had nothing for this very context: only a newly
            committed token makes asking again worth while.
    """

    def __init__(self) -> None:
        self.open: RequestDraft | None = None
        self.is_dry = False
        self._place = 0  # position where the requested draft would start
        self._last_id = 0

    def ask(
        self, place: int, speculative: Iterable[int], max_len: int, is_idle: bool = False
    ) -> RequestDraft:
        """Open a request for at most `max_len` tokens from position `place` on.

        Args:
            is_idle: nothing is in flight. It stays so while the request is open: only an answer to
                it can send.

        Raises:
            LocalProtocolError: one is open.
        """
        if self.open is not None:
            raise LocalProtocolError(f"draft request {self.open.request_id} is still open")
        self._last_id += 1
        self._place = place
        self.open = RequestDraft(self._last_id, tuple(speculative), max_len, is_idle)
        return self.open

    def take(self, request_id: int, draft: Draft) -> bool:
        """A draft has come: True if it answers the open request, which is closed.

        Raises:
            LocalProtocolError: it is longer than was asked for; a tree, than any may be.
        """
        request = self.open
        if request is None or request_id != request.request_id:
            return False
        most = DRAFT_LEN_MAX if draft.parents else request.max_len
        if len(draft.ids) > most:
            raise LocalProtocolError(f"the drafter gave {len(draft.ids)} tokens, asked for {most}")
        self.open = None
        return True

    def void(self) -> list[CancelDraft]:
        """Drop the open request, if there is one."""
        request, self.open = self.open, None
        return [] if request is None else [CancelDraft(request.request_id)]

    def void_unless(self, place: int, max_len: int) -> list[CancelDraft]:
        """Drop a request whose place a bonus token took, or whose length is not wanted any more."""
        if self.open is None or (self._place, self.open.max_len) == (place, max_len):
            return []
        return self.void()
