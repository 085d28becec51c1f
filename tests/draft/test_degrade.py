"""A drafter that fails or dawdles costs speed, never the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from engine.defaults import DRAFT_BUDGET_S
from engine.draft.degrade import REASON_LEN, DegradingDrafter
from engine.draft.drafter import NO_DRAFT, Draft, Drafter, DraftFate
from engine.draft.ngram import NgramDrafter
from engine.draft.ready import ReadyDrafts

PROMPT = (1, 2, 3, 4, 1, 2)
FATE = DraftFate("eagle", 0, 3, 1, 2)
TAPS = {3: torch.zeros(2, 8)}
STEPS: dict[str, Callable[[Drafter], object]] = {
    "begin": lambda drafter: drafter.begin(PROMPT),
    "extend": lambda drafter: drafter.extend([3, 4]),
    "feed": lambda drafter: drafter.feed(0, TAPS),
    "draft": lambda drafter: drafter.draft((), 4, True),
    "prepare": lambda drafter: drafter.prepare(()),
    "observe": lambda drafter: drafter.observe(FATE),
    "cancel": lambda drafter: drafter.cancel(),
}


class Scripted(Drafter):
    """Fails at one step, takes as long as it is told, and counts what it is asked."""

    name = "scripted"

    def __init__(self, fails_at: str = "", seconds: Sequence[float] = ()) -> None:
        self.fails_at = fails_at
        self.seconds = list(seconds)
        self.now_ns = 0
        self.calls: list[str] = []

    def note(self, step: str) -> None:
        self.calls.append(step)
        if step == self.fails_at:
            raise ZeroDivisionError(f"planted in {step}")

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self.note("begin")

    def extend(self, ids: Sequence[int]) -> None:
        self.note("extend")

    def feed(self, start: int, taps: Mapping[int, torch.Tensor]) -> None:
        self.note("feed")

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        self.note("draft")
        self.now_ns += int(self.seconds.pop(0) * 1e9) if self.seconds else 0
        return Draft((77,), "eagle", 0) if is_idle else NO_DRAFT

    def prepare(self, speculative: Sequence[int]) -> None:
        self.note("prepare")

    def observe(self, fate: DraftFate) -> None:
        self.note("observe")

    def cancel(self) -> None:
        self.note("cancel")


def guarded(inner: Scripted) -> DegradingDrafter:
    return DegradingDrafter(inner, 1, lambda: inner.now_ns)


@pytest.mark.parametrize("step", STEPS)
def test_a_failure_anywhere_leaves_n_grams(step: str) -> None:
    """Catches a call that is not guarded, a reason that is lost, and n-grams that know too little:
    they draft at once what they would have drafted had they been there from the start."""
    drafter = guarded(Scripted(fails_at=step))
    for call in STEPS.values():
        call(drafter)
    assert drafter.degraded == f"scripted: {step}: ZeroDivisionError: planted in {step}"
    plain = NgramDrafter(1)
    plain.begin(PROMPT)
    plain.extend([3, 4])
    assert drafter.draft((), 3, True) == plain.draft((), 3)
    drafter.extend([1])
    plain.extend([1])
    assert drafter.draft((2,), 3, False) == plain.draft((2,), 3)


def test_the_failing_draft_itself_is_answered_by_n_grams() -> None:
    """Catches a round that is lost to the failure."""
    drafter = guarded(Scripted(fails_at="draft"))
    drafter.begin(PROMPT)
    assert drafter.draft((), 2, True) == Draft((3, 4), "ngram", 2, (1, 1))


def test_without_a_failure_the_drafter_stays() -> None:
    """Catches a guard that drafts itself, or swallows what it should pass on."""
    inner = Scripted()
    drafter = guarded(inner)
    for call in STEPS.values():
        call(drafter)
    assert inner.calls == list(STEPS)
    assert drafter.degraded is None
    assert drafter.draft((), 4, True).ids == (77,)


SLOW = DRAFT_BUDGET_S + 0.01


@pytest.mark.parametrize(
    ("seconds", "degrades_at"),
    [
        ((SLOW, 0, 0, 0, 0), None),  # the first one may load and warm what it needs
        ((SLOW, SLOW, 0, SLOW, 0), None),
        ((0, SLOW, 0, SLOW, 0), None),
        ((DRAFT_BUDGET_S,) * 5, None),
        ((0, SLOW, SLOW, 0, 0), 2),
        ((SLOW, SLOW, SLOW, 0, 0), 2),
        ((0, 0, 0, SLOW, SLOW), 4),
    ],
)
def test_two_slow_drafts_in_a_row_are_one_too_many(
    seconds: tuple[float, ...], degrades_at: int | None
) -> None:
    """Catches a budget that one hiccup, or the first draft, uses up, and one that nothing does."""
    inner = Scripted(seconds=seconds)
    drafter = guarded(inner)
    drafter.begin(PROMPT)
    for idx in range(len(seconds)):
        found = drafter.draft((), 1, True)
        has_left = degrades_at is not None and idx > degrades_at
        assert found.source == ("ngram" if has_left else "eagle"), "what was drafted is used"
        is_over = degrades_at is not None and idx >= degrades_at
        assert (drafter.degraded is not None) == is_over
    if drafter.degraded:
        assert "2 drafts in a row took over 1.0 s, the last one 1.01 s" in drafter.degraded


def test_n_grams_that_fail_too_leave_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a second failure that nobody guards, or one that overwrites the first reason."""

    def fail(*_: object) -> None:
        raise OSError("again")

    monkeypatch.setattr(NgramDrafter, "draft", fail)
    drafter = guarded(Scripted(fails_at="feed"))
    drafter.begin(PROMPT)
    drafter.feed(0, TAPS)
    assert drafter.draft((), 3, True) == NO_DRAFT
    assert drafter.draft((), 3, True) == NO_DRAFT
    assert drafter.degraded == "scripted: feed: ZeroDivisionError: planted in feed"


def test_a_reason_is_bounded_and_printable() -> None:
    """Catches a receipt that holds a drafter's whole core dump."""

    class Talkative(Scripted):
        def cancel(self) -> None:
            raise RuntimeError("\n" + "x" * 5000)

    drafter = guarded(Talkative())
    drafter.cancel()
    assert drafter.degraded is not None and len(drafter.degraded) == REASON_LEN + 1
    assert drafter.degraded.isprintable()


def test_only_what_goes_on_is_made_ready() -> None:
    """Catches drafts prepared ahead of a drafter whose drafts do not go on."""
    assert isinstance(guarded_inside(NgramDrafter(1)), ReadyDrafts)
    assert isinstance(guarded_inside(Scripted()), Scripted)


def guarded_inside(drafter: Drafter) -> Drafter:
    return DegradingDrafter(drafter, 1, lambda: 0)._drafter


def test_cancel_never_computes() -> None:
    """Catches a void request that is drafted all the same, or whose ready draft is made again."""
    inner = Scripted()
    drafter = guarded(inner)
    drafter.begin(PROMPT)
    drafter.cancel()
    assert inner.calls == ["begin", "cancel"]
    asked: list[int] = []

    class Counting(NgramDrafter):
        def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
            asked.append(max_len)
            return super().draft(speculative, max_len, is_idle)

    ready = DegradingDrafter(Counting(1), 1, lambda: 0)
    ready.begin(PROMPT)
    ready.cancel()
    assert asked == []


def test_a_drafter_that_falls_back_by_itself_says_so() -> None:
    """Catches a receipt that does not tell of it."""

    class Humble(Scripted):
        def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
            self.degraded = "no weights"
            return NO_DRAFT

    drafter = guarded(Humble())
    drafter.begin(PROMPT)
    drafter.draft((), 1, True)
    assert drafter.degraded == "no weights"
