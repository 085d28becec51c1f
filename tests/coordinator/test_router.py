"""The router: the source that brings more tokens a second, on text whose truth is known.

Catches a short match that keeps the head from its turn, a long copy that is broken off for trees,
trees where computing is dear, and confidence that never learns from what came of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from engine.coordinator.ring_cost import CostPrior, RingCost
from engine.coordinator.router import LoopRouter, lengths_up_to
from engine.coordinator.survival import Survival, load_prior
from engine.draft.drafter import NO_DRAFT, Draft, DraftFate
from engine.draft.tree import DraftTree

LONG_LINKS = CostPrior(
    compute_frame_ns=40e6,
    compute_position_ns=1.5e6,
    transit_frame_ns=275e6,
    transit_position_ns=0.02e6,
)
NO_LINKS = CostPrior(
    compute_frame_ns=40e6,
    compute_position_ns=15e6,
    transit_frame_ns=1e6,
    transit_position_ns=0.01e6,
)
HONEST = [(idx + 0.5) / 20 for idx in range(20)]


def router_on(prior: CostPrior, confidence: Sequence[float] = HONEST, depth: int = 4) -> LoopRouter:
    return LoopRouter(Survival(load_prior()), RingCost(prior), [8], depth, confidence)


def tree_of(expected: float, num_nodes: int = 16) -> DraftTree:
    """A tree whose nodes' chances add up to about so much."""
    chance = min(expected / num_nodes, 0.99)
    return DraftTree(
        tuple(range(num_nodes)),
        tuple(range(-1, num_nodes - 1)),
        (math.log(chance),) * num_nodes,
    )


def ngram(match_len: int) -> Draft:
    return Draft((1, 2, 3, 4, 5, 6, 7, 8), "ngram", match_len)


def fate(source: str, match_len: int, accepted_len: int) -> DraftFate:
    return DraftFate(source, match_len, 8, accepted_len, min(8, accepted_len + 1))


def test_precision_and_recall_on_synthetic_text() -> None:
    """Half of the rounds copy, half are new and have a match of a token or two by coincidence."""
    chooser, router = random.Random(7), router_on(LONG_LINKS)
    outcomes = []
    for _ in range(400):
        copies = chooser.random() < 0.5
        match_len = chooser.randrange(6, 30) if copies else chooser.choice((1, 1, 2))
        draft, tree = ngram(match_len), tree_of(chooser.uniform(0.9, 1.8))
        takes_tree = router.needs_head(draft) and router.prefers_tree(draft, tree)
        outcomes.append((copies, not takes_tree))
        accepted_len, right = 0, 0.96 if copies else 0.15
        while accepted_len < 8 and chooser.random() < right:
            accepted_len += 1
        if takes_tree:
            router.observe(DraftFate("tree", 0, 16, chooser.choice((0, 1, 2, 3)), 2))
        else:
            router.observe(fate("ngram", match_len, accepted_len))
    chosen = [copies for copies, takes_ngram in outcomes if takes_ngram]
    copied = [takes_ngram for copies, takes_ngram in outcomes if copies]
    assert sum(chosen) / len(chosen) > 0.9, "precision: n-grams where text is copied"
    assert sum(copied) / len(copied) > 0.95, "recall: copies are left to n-grams"


@pytest.mark.parametrize("match_len", [1, 2])
def test_a_coincidence_does_not_starve_the_head(match_len: int) -> None:
    """From the first round on: short matches have the prior's chance, not that of n-grams."""
    router = router_on(LONG_LINKS)
    assert router.needs_head(ngram(match_len))
    assert router.prefers_tree(ngram(match_len), tree_of(1.3))


def test_a_long_match_saves_the_head_its_work() -> None:
    router = router_on(LONG_LINKS)
    assert not router.needs_head(ngram(64))


def test_without_a_match_the_tree_stands_against_a_plain_step() -> None:
    assert router_on(LONG_LINKS).prefers_tree(NO_DRAFT, tree_of(0.5))
    assert not router_on(NO_LINKS).prefers_tree(NO_DRAFT, tree_of(0.5))


def test_trees_that_disappoint_are_trusted_less_and_the_other_way_round() -> None:
    router = router_on(LONG_LINKS)
    before = router.expected_len(tree_of(1.5))
    for _ in range(40):
        assert router.prefers_tree(NO_DRAFT, tree_of(1.5))
        router.observe(DraftFate("tree", 0, 16, 0, 1))
        if router.expected_len(tree_of(1.5)) < 0.4 * before:
            break
    else:
        pytest.fail("forty empty trees taught nothing")
    for _ in range(60):
        router.prefers_tree(NO_DRAFT, tree_of(1.5))
        router.observe(DraftFate("tree", 0, 16, 4, 5))
    assert router.expected_len(tree_of(1.5)) > before


def test_depth_makes_copies_worth_more() -> None:
    """The depth-aware rule: what a tree puts off is worth more the faster the pipe is."""
    alone, streamed = router_on(LONG_LINKS, depth=1), router_on(LONG_LINKS, depth=8)
    assert alone._pipe_rate() < streamed._pipe_rate()
    taken = {
        depth: [length for length in range(1, 40) if router._is_copy(ngram(length), 4.0, 1.0)]
        for depth, router in ((1, alone), (8, streamed))
    }
    assert set(taken[1]) < set(taken[8])


def test_a_planner_s_lengths_are_its_grid() -> None:
    assert lengths_up_to(8, is_planned=False) == [8]
    assert lengths_up_to(0, is_planned=False) == [1]
    assert lengths_up_to(64, is_planned=True)[-1] == 64
    assert len(lengths_up_to(64, is_planned=True)) > 5
