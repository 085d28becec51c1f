"""Two sources in one drafter: who is asked when, and who hears of what."""

from __future__ import annotations

import pytest

from engine.draft.drafter import NO_DRAFT, Draft, DraftFate
from engine.draft.hybrid import HybridDrafter
from engine.draft.ngram import NgramDrafter
from engine.draft.ready import ReadyDrafts
from engine.draft.tree import DraftTree

COPIED = [1, 2, 3, 4, 5, 1, 2, 3]
TREE = DraftTree((7, 8, 9), (-1, 0, -1), (-0.5, -1.0, -2.0))


class Head:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: list[object] = []

    def begin(self, prompt_ids: object) -> None:
        self.told.append(("begin", prompt_ids))

    def extend(self, ids: object) -> None:
        self.told.append(("extend", ids))

    def feed(self, start: int, taps: object) -> None:
        self.told.append(("feed", start))

    def prepare(self, speculative: object) -> None:
        self.told.append(("prepare", speculative))

    def grow(self, max_len: int) -> DraftTree:
        self.asked.append(max_len)
        return TREE


class Router:
    def __init__(self, needs: bool, prefers: bool) -> None:
        self.needs, self.prefers = needs, prefers
        self.fates: list[DraftFate] = []

    def needs_head(self, ngram: Draft) -> bool:
        return self.needs

    def prefers_tree(self, ngram: Draft, tree: DraftTree) -> bool:
        return self.prefers

    def observe(self, fate: DraftFate) -> None:
        self.fates.append(fate)


def hybrid(needs: bool = True, prefers: bool = True) -> tuple[HybridDrafter, Head, Router]:
    head, router = Head(), Router(needs, prefers)
    drafter = HybridDrafter(ReadyDrafts(NgramDrafter(1), 16), head, router)  # type: ignore[arg-type]
    drafter.begin(COPIED)
    return drafter, head, router


def test_the_tree_goes_out_where_it_is_worth_more() -> None:
    drafter, head, _ = hybrid()
    assert drafter.draft((), 5, is_idle=True) == Draft((7, 8, 9), "tree", 0, parents=(-1, 0, -1))
    assert head.asked == [5]


@pytest.mark.parametrize(("speculative", "is_idle"), [((), False), ((4,), False), ((4,), True)])
def test_what_is_in_flight_is_followed_by_n_grams_only(
    speculative: tuple[int, ...], is_idle: bool
) -> None:
    drafter, head, _ = hybrid()
    found = drafter.draft(speculative, 5, is_idle)
    assert found.source == "ngram" and not head.asked


def test_a_head_that_is_not_needed_is_not_asked() -> None:
    drafter, head, _ = hybrid(needs=False)
    assert drafter.draft((), 3, is_idle=True).ids == (4, 5, 1)
    assert not head.asked


def test_a_tree_that_is_worth_less_is_dropped() -> None:
    drafter, head, _ = hybrid(prefers=False)
    assert drafter.draft((), 3, is_idle=True).source == "ngram"
    assert head.asked == [3]
    drafter.begin([1, 2, 3])  # nothing to copy either
    assert drafter.draft((), 3, is_idle=True) == NO_DRAFT


def test_both_know_every_token_and_the_router_every_fate() -> None:
    drafter, head, router = hybrid(needs=False)
    drafter.extend([4, 5])
    drafter.feed(3, {})
    fate = DraftFate("tree", 0, 3, 1, 2)
    drafter.observe(fate)
    assert head.told == [("begin", COPIED), ("extend", [4, 5]), ("feed", 3)]
    assert router.fates == [fate]
    assert drafter.draft((), 2, is_idle=True).ids == (1, 2)


def test_cancel_and_prepare_ask_the_head_for_nothing() -> None:
    drafter, head, _ = hybrid()
    drafter.prepare(())
    drafter.cancel()
    assert not head.asked
