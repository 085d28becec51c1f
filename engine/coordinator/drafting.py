"""One job's drafter as the coordinator drives it: told, fed, asked, and timed.

Guarantees: the drafter knows every committed token, and what the tapped layers said at the
positions before the last one, when it is asked; nothing that it does fails the job. Must never know
links, nor how a draft is judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from engine.coordinator.job import DraftMeans, JobRequest
from engine.coordinator.records import Action, CancelDraft, FeedTaps, RequestDraft
from engine.coordinator.rounds import RoundMachine
from engine.draft.degrade import DegradingDrafter, FailedDrafter
from engine.draft.drafter import Drafter, DraftFate
from engine.errors import LonghaulError
from engine.transport.taps import split_taps, unpack_taps


class Drafting:
    """The drafter that a job's levers name.

    Args:
        clock_ns: a clock that never goes back.

    Attributes:
        draft_ns: drafting, and planning, between an event and the frames it leads to.
        prepare_ns: drafting while nothing had come.
    """

    def __init__(
        self,
        request: JobRequest,
        means: DraftMeans,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        levers = request.levers
        self.draft_ns = self.prepare_ns = 0
        drafter: Drafter
        try:
            drafter = request.make_drafter(levers, means)
        except LonghaulError as error:
            drafter = FailedDrafter(levers.drafter, error)
        self._drafter = DegradingDrafter(drafter, levers.min_match_len, clock_ns)
        self._tap_layers = levers.tap_layers
        self._tap_wire = levers.tap_wire
        self._clock_ns = clock_ns
        self._frame_ns = 0  # of the frame to be sent next

    @property
    def wants_taps(self) -> bool:
        return bool(self._tap_layers)

    @property
    def degraded(self) -> str | None:
        """Why n-grams took over; None: they did not."""
        return self._drafter.degraded

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start the job."""
        self._drafter.begin(prompt_ids)

    def commit(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""
        self._drafter.extend(ids)

    def observe(self, fate: DraftFate) -> None:
        """What became of a draft."""
        self._drafter.observe(fate)

    def prepare(self, speculative: Sequence[int]) -> None:
        """Nothing has come: make the next draft ready."""
        before_ns = self._clock_ns()
        self._drafter.prepare(speculative)
        self.prepare_ns += self._clock_ns() - before_ns

    def carry_out(
        self, action: Action, tensors: Mapping[str, torch.Tensor], machine: RoundMachine
    ) -> list[Action]:
        """Do what concerns the drafter, and nothing else.

        Args:
            tensors: of the reply that the action follows from.

        Returns:
            What the machine makes of it.

        Raises:
            RemoteProtocolError: taps of a layer are missing or were not asked for, or their rows
                are not the frame's positions.
        """
        if isinstance(action, FeedTaps):
            self._feed(action, tensors)
        elif isinstance(action, RequestDraft):
            return self._draft(action, machine)
        elif isinstance(action, CancelDraft):
            self._drafter.cancel()
        return []

    def take_frame_ns(self) -> int:
        """What was spent since the last frame went out, or since `begin_event`."""
        spent_ns, self._frame_ns = self._frame_ns, 0
        return spent_ns

    def begin_event(self) -> None:
        """Something else has come: what was drafted and not sent is no part of a later frame."""
        self._frame_ns = 0

    def _feed(self, action: FeedTaps, tensors: Mapping[str, torch.Tensor]) -> None:
        before_ns = self._clock_ns()
        tapped = split_taps(tensors)[1]
        taps = unpack_taps(tapped, self._tap_layers, self._tap_wire, action.positions_len)
        rows = list(action.rows)
        self._drafter.feed(action.start, {layer: taps[layer][rows] for layer in taps})
        self._spend(before_ns)

    def _draft(self, action: RequestDraft, machine: RoundMachine) -> list[Action]:
        before_ns = self._clock_ns()
        draft = self._drafter.draft(action.speculative, action.max_len, action.is_idle)
        actions = machine.on_draft(action.request_id, draft, self._clock_ns())
        self._spend(before_ns)  # the policy's planning too
        return actions

    def _spend(self, before_ns: int) -> None:
        spent_ns = self._clock_ns() - before_ns
        self.draft_ns += spent_ns
        self._frame_ns += spent_ns
