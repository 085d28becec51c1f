"""A drafter that may fail, or be too slow, without costing the job more than speed.

Guarantees: no exception of the drafter leaves it. At the first one, or at two drafts in a row over
the budget, n-grams take over for the rest of the job, knowing all that was committed; `degraded`
says why. Must never know the ring; the clock is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from engine.defaults import DRAFT_BUDGET_S
from engine.draft.drafter import NO_DRAFT, Draft, Drafter, DraftFate, NoDrafter
from engine.draft.ngram import NgramDrafter
from engine.draft.ready import with_ready
from engine.errors import shown

if TYPE_CHECKING:
    import torch

Answer = TypeVar("Answer")
SLOW_DRAFTS = 2  # in a row, until it is given up
REASON_LEN = 200  # characters that a receipt keeps


class FailedDrafter(Drafter):
    """One that could not be made: it fails at once, for the reason why."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self._error = name, error

    def begin(self, prompt_ids: Sequence[int]) -> None:
        raise self._error

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        raise self._error


class DegradingDrafter(Drafter):
    """See the module's header.

    Args:
        drafter: who drafts, as long as it can.
        min_match_len: what n-grams believe when it cannot.
        clock_ns: a clock that never goes back.
    """

    def __init__(self, drafter: Drafter, min_match_len: int, clock_ns: Callable[[], int]) -> None:
        self.name = drafter.name
        self.goes_on = drafter.goes_on
        self._drafter = with_ready(drafter)
        # The last one cannot fail: whatever happens, the job decodes on.
        self._spares = [NoDrafter(), with_ready(NgramDrafter(min_match_len))]
        self._clock_ns = clock_ns
        self._committed: list[int] = []  # prompt included: what a spare begins with
        self._has_drafted = False
        self._num_slow = 0  # drafts in a row

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._committed = list(prompt_ids)
        self._attempt("begin", lambda drafter: drafter.begin(prompt_ids), None)

    def extend(self, ids: Sequence[int]) -> None:
        self._committed += ids
        self._attempt("extend", lambda drafter: drafter.extend(ids), None)

    def feed(self, start: int, taps: Mapping[int, torch.Tensor]) -> None:
        self._attempt("feed", lambda drafter: drafter.feed(start, taps), None)

    def prepare(self, speculative: Sequence[int]) -> None:
        self._attempt("prepare", lambda drafter: drafter.prepare(speculative), None)

    def observe(self, fate: DraftFate) -> None:
        self._attempt("observe", lambda drafter: drafter.observe(fate), None)

    def cancel(self) -> None:
        self._attempt("cancel", lambda drafter: drafter.cancel(), None)

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        """The drafter's, or n-grams' in its place at once."""
        before, begun_ns = self._drafter, self._clock_ns()
        found = self._attempt(
            "draft", lambda drafter: drafter.draft(speculative, max_len, is_idle), None
        )
        if found is None:  # it failed just now
            found = self._attempt(
                "draft", lambda drafter: drafter.draft(speculative, max_len, is_idle), NO_DRAFT
            )
        elif self._drafter is before and self.degraded is None:
            self.degraded = before.degraded  # a drafter may fall back by itself
            self._judge((self._clock_ns() - begun_ns) / 1e9)
        return found

    def _judge(self, took_s: float) -> None:
        """Give up one that is slow again; the first draft may load and warm what it needs."""
        is_slow = self._has_drafted and took_s > DRAFT_BUDGET_S
        self._has_drafted = True
        self._num_slow = self._num_slow + 1 if is_slow else 0
        if self._num_slow == SLOW_DRAFTS:
            self._fall_back(
                f"{SLOW_DRAFTS} drafts in a row took over {DRAFT_BUDGET_S} s, "
                f"the last one {took_s:.2f} s"
            )

    def _attempt(self, step: str, call: Callable[[Drafter], Answer], otherwise: Answer) -> Answer:
        """What the drafter answers; `otherwise` if it fails."""
        try:
            return call(self._drafter)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the job
            self._fall_back(f"{step}: {type(error).__name__}: {error}")
            return otherwise

    def _fall_back(self, reason: str) -> None:
        """Have the next spare take over."""
        self.degraded = self.degraded or shown(f"{self.name}: {reason}", REASON_LEN)
        while self._spares:
            self._drafter = self._spares.pop()
            try:
                self._drafter.begin(self._committed)
                return
            except Exception:  # noqa: BLE001 - the next one, then; the reason is the first's
                continue
