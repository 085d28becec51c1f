"""The closed form against simulation, its limits, and the crossover with a tree."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.closed_form import (
    ceiling,
    chain_rate,
    chunk_tokens,
    crossover,
    lockstep_rate,
    path_tokens,
    tree_rate,
)

ALPHA = st.floats(0.0, 0.999)
LENGTH = st.integers(1, 64)
DEPTH = st.integers(1, 8)


def simulated_rate(alpha: float, draft_len: int, depth: int, cycles: int) -> float:
    """Tokens a loop, chunk by chunk: a slot for one that is right in full, a loop for another."""
    generator = random.Random(f"{alpha} {draft_len} {depth}")
    tokens, loops = 0, 0.0
    for _ in range(cycles):
        accepted = 0
        while accepted < draft_len and generator.random() < alpha:
            accepted += 1
        is_full = accepted == draft_len
        tokens += accepted if is_full else accepted + 1
        loops += 1 / depth if is_full else 1.0
    return tokens / loops


@pytest.mark.parametrize(("alpha", "draft_len", "depth"), [(0.5, 8, 4), (0.9, 8, 4), (0.97, 16, 8)])
def test_the_closed_form_is_the_mean_of_the_process(
    alpha: float, draft_len: int, depth: int
) -> None:
    """Catches a chunk that counts a token too many, or costs the wrong number of slots."""
    found = chain_rate(alpha, draft_len, depth, 1.0)
    assert found == pytest.approx(simulated_rate(alpha, draft_len, depth, 200_000), rel=0.02)


@given(ALPHA, LENGTH, DEPTH)
def test_no_chain_exceeds_the_ceiling(alpha: float, draft_len: int, depth: int) -> None:
    assert chain_rate(alpha, draft_len, depth, 0.3) <= ceiling(alpha, 0.3) * (1 + 1e-9)


@given(ALPHA, LENGTH, DEPTH)
def test_more_depth_is_never_slower_and_time_scales(alpha: float, length: int, depth: int) -> None:
    one, more = (chain_rate(alpha, length, d, 0.3) for d in (depth, depth + 1))
    assert more >= one * (1 - 1e-12)
    assert chain_rate(alpha, length, depth, 0.6) == pytest.approx(one / 2)


def test_the_ends_are_exact() -> None:
    """Catches 0 / 0 where every draft is right, and anything but a token a loop where none is."""
    assert chain_rate(1.0, 8, 4, 0.5) == 8 * 4 / 0.5
    assert chain_rate(0.0, 8, 4, 0.5) == 1 / 0.5
    assert lockstep_rate(1.0, 8, 0.5) == 9 / 0.5
    assert lockstep_rate(0.0, 8, 0.5) == 1 / 0.5
    assert ceiling(1.0, 0.5) == float("inf")


def test_a_pipeline_of_depth_one_is_lockstep_without_its_bonus() -> None:
    for alpha in (0.3, 0.8):
        assert chain_rate(alpha, 8, 1, 1.0) == pytest.approx(chunk_tokens(alpha, 8))
        assert lockstep_rate(alpha, 8, 1.0) == pytest.approx(chunk_tokens(alpha, 9))


def test_a_tree_counts_the_path_that_is_right() -> None:
    assert path_tokens([]) == 1.0
    assert path_tokens([0.5, 0.5]) == 1.75
    assert tree_rate([1.0, 1.0, 0.0, 1.0], 0.5) == 3 / 0.5


@pytest.mark.parametrize(("cap", "alpha"), [(3, 0.71), (4, 0.81), (5, 0.85), (6, 0.87), (8, 0.91)])
def test_the_published_crossover_is_its_tree_s_depth_cap(cap: int, alpha: float) -> None:
    """Recomputed from the public account: K = 8, D = 4, a level covers 1.26 times alpha."""
    assert crossover(8, 4, 1.26, cap) == pytest.approx(alpha, abs=0.006)


def test_a_tree_that_covers_no_more_than_a_chain_never_leads() -> None:
    """A tree of one level and a chain of longer drafts: there is nothing to cross."""
    assert crossover(8, 4, 1.0, 1) is None


@given(st.floats(1.05, 1.6), st.integers(2, 10))
def test_at_the_crossover_both_are_as_fast(cover: float, cap: int) -> None:
    found = crossover(8, 4, cover, cap)
    if found is not None:
        tree = tree_rate([min(1.0, cover * found)] * cap, 1.0)
        assert chain_rate(found, 8, 4, 1.0) == pytest.approx(tree, rel=1e-6)
