"""Two bounds that know the answer: what a better policy, or perfect drafts, could reach at most.

Both are told the reference job's ids, so they are never claims: `clairvoyant` knows how many of the
drafter's tokens will be accepted, `oracle` drafts nothing but right tokens. Guarantees: neither can
change the output. Must never know processes or receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.coordinator.job import JobRequest
from engine.coordinator.planner import HORIZON, Planner
from engine.coordinator.policy import Situation
from engine.coordinator.records import FrameRecord
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.survival import Floats
from engine.draft.drafter import NO_DRAFT, Draft, Drafter

CLAIRVOYANT = "clairvoyant"  # policy
ORACLE = "oracle"  # drafter
# What the engine knows that takes the same levers.
STAND_INS = {CLAIRVOYANT: "planner", ORACLE: "ngram"}


class KnownOutlook:
    """Survival by looking: 1 up to the first draft that the target will refute, 0 behind it."""

    def __init__(self, output_ids: Sequence[int]) -> None:
        self._output_ids = list(output_ids)

    def observe(self, record: FrameRecord) -> None:
        """Nothing to learn."""

    def accepted_len(self, situation: Situation, draft: Draft) -> int:
        """How many of the drafted tokens the target will accept.

        Everything sent before is right: a frame is cut at its first wrong draft.
        """
        at = situation.committed_len + situation.unverified_len
        truth = self._output_ids[at : at + len(draft.ids)]
        agree = [ours == theirs for ours, theirs in zip(draft.ids, truth, strict=False)]
        return agree.index(False) if False in agree else len(agree)

    def survival(self, situation: Situation, draft: Draft) -> Floats:
        accepted_len = self.accepted_len(situation, draft)
        horizon = max(1, min(HORIZON, situation.remaining_len - 1))
        right_len = situation.unverified_len + accepted_len
        if accepted_len == len(draft.ids):
            right_len = horizon  # not told further: as if it went on
        return (np.arange(horizon) < right_len).astype(np.float64)


class Clairvoyant(Planner):
    """The planner with the truth in place of an estimate; sends no draft that will be refuted."""

    name = CLAIRVOYANT

    def __init__(
        self, output_ids: Sequence[int], cost: RingCost, len_max: int, depth_max: int
    ) -> None:
        self._known = KnownOutlook(output_ids)
        super().__init__(self._known, cost, len_max, depth_max)

    def keep_len(self, situation: Situation, draft: Draft) -> int:
        wanted = super().keep_len(situation, draft)
        return min(wanted, self._known.accepted_len(situation, draft))


def knowing(request: JobRequest, output_ids: Sequence[int]) -> JobRequest:
    """The request, with the answer given to whatever its levers name that asks for it."""
    if request.levers.policy == CLAIRVOYANT:
        request = replace(
            request,
            make_policy=lambda levers, cost: Clairvoyant(
                output_ids, cost, levers.draft_len, levers.depth
            ),
        )
    if request.levers.drafter == ORACLE:
        request = replace(request, make_drafter=lambda levers, means: OracleDrafter(output_ids))
    return request


class KnownTextDrafter(Drafter):
    """Drafts from a text that it was told, by what of it is committed."""

    def __init__(self, output_ids: Sequence[int]) -> None:
        self._output_ids = tuple(output_ids)
        self._committed_len = 0

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job."""
        self._committed_len = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""
        self._committed_len += len(ids)

    def upcoming(self, speculative: Sequence[int], max_len: int) -> tuple[int, ...]:
        """What the text goes on with behind committed and speculative tokens."""
        at = self._committed_len + len(speculative)
        return self._output_ids[at : at + max_len]


class OracleDrafter(KnownTextDrafter):
    """Drafts the target's own continuation."""

    name = ORACLE  # and it costs nothing to look again

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        """The next tokens of the answer."""
        ids = self.upcoming(speculative, max_len)
        return Draft(ids, ORACLE, 0) if ids else NO_DRAFT
