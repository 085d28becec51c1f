"""Draft trees: the same as taking the single best open node each time, and well formed.

Catches a tree that keeps a node without its parent, that is not the best one of its size, that
counts levels wrongly, or whose order is not depth first.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.draft.tree import Choice, DraftTree, TreeLimits, grow_tree

VOCAB_LEN = 6


def choices_after(path: tuple[int, ...], seed: int, steps: int) -> list[Choice]:
    """A made-up model: what may follow a path, likeliest first. Few levels, so that ties happen."""
    chooser = random.Random(f"{seed} {path}")
    weights = [chooser.randrange(1, steps + 1) for _ in range(VOCAB_LEN)]
    total = sum(weights)
    order = sorted(range(VOCAB_LEN), key=lambda token: (-weights[token], token))
    return [Choice(token, math.log(weights[token] / total)) for token in order]


class Grower:
    """Answers `Expand`, and checks that it is asked level by level, parents before children."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed, self.steps = seed, steps
        self.paths: dict[int, tuple[int, ...]] = {-1: ()}
        self.asked: list[int] = []

    def __call__(
        self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]
    ) -> list[list[Choice]]:
        for node, token, parent in zip(nodes, tokens, parents, strict=True):
            self.paths[node] = (*self.paths[parent], token)
        self.asked += nodes
        assert len({len(self.paths[node]) for node in nodes}) == 1
        return [choices_after(self.paths[node], self.seed, self.steps) for node in nodes]


def best_first(seed: int, steps: int, limits: TreeLimits) -> dict[tuple[int, ...], float]:
    """The plain way: take the likeliest open node, open its children, until there are enough."""
    taken: dict[tuple[int, ...], float] = {}
    opened: list[tuple[float, int, tuple[int, ...]]] = []
    count = 0

    def open_children(path: tuple[int, ...], so_far: float) -> None:
        nonlocal count
        for choice in choices_after(path, seed, steps)[: limits.num_children]:
            heapq.heappush(opened, (-(so_far + choice.log_prob), count, (*path, choice.token)))
            count += 1

    open_children((), 0.0)
    while opened and len(taken) < limits.num_nodes:
        cost, _, path = heapq.heappop(opened)
        taken[path] = -cost
        if len(path) < limits.depth:
            open_children(path, -cost)
    return taken


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


LIMITS = st.builds(
    TreeLimits,
    num_nodes=st.integers(1, 14),
    num_children=st.integers(1, 4),
    depth=st.integers(1, 6),
)


@given(seed=st.integers(0, 10**6), limits=LIMITS)
def test_the_tree_is_the_best_first_one(seed: int, limits: TreeLimits) -> None:
    """With 10**6 steps of weight no two paths tie, so the nodes are the very same."""
    steps = 10**6
    first = choices_after((), seed, steps)
    tree = grow_tree(first, Grower(seed, steps), limits)
    wanted = best_first(seed, steps, limits)
    assert dict(zip(paths_of(tree), tree.log_probs, strict=True)) == wanted


@given(seed=st.integers(0, 10**6), limits=LIMITS, steps=st.sampled_from([1, 2, 3]))
def test_ties_leave_it_well_formed_and_as_likely(seed: int, limits: TreeLimits, steps: int) -> None:
    tree = grow_tree(choices_after((), seed, steps), Grower(seed, steps), limits)
    assert len(tree.ids) <= limits.num_nodes
    stack: list[int] = []
    for idx, parent in enumerate(tree.parents):
        while stack and stack[-1] != parent:
            stack.pop()
        assert parent == -1 or stack, "a parent is the node before or one of its ancestors"
        stack.append(idx)
    paths = paths_of(tree)
    assert len(set(paths)) == len(paths)
    assert max(len(path) for path in paths) <= limits.depth
    wanted = sorted(best_first(seed, steps, limits).values())
    for found, best in zip(sorted(tree.log_probs), wanted, strict=True):
        assert math.isclose(found, best, abs_tol=1e-9)


@given(seed=st.integers(0, 10**6), length=st.integers(1, 8))
def test_one_child_a_node_is_the_chain(seed: int, length: int) -> None:
    tree = grow_tree(choices_after((), seed, 9), Grower(seed, 9), TreeLimits(length, 1, length))
    path: tuple[int, ...] = ()
    for _ in range(length):
        path = (*path, choices_after(path, seed, 9)[0].token)
    assert tree.ids == path
    assert tree.parents == tuple(range(-1, length - 1))


def test_only_nodes_that_may_stay_are_expanded() -> None:
    """Catches a level that is expanded in full: each row of it costs a pass of the head."""
    for seed in range(20):
        grower = Grower(seed, 10**6)
        limits = TreeLimits(num_nodes=5, num_children=4, depth=6)
        grow_tree(choices_after((), seed, 10**6), grower, limits)
        assert len(grower.asked) <= limits.num_nodes * (limits.depth - 1)
        assert len(grower.asked) < 4 + 16


def test_nothing_to_choose_from_gives_an_empty_tree() -> None:
    empty = grow_tree([], Grower(0, 1), TreeLimits(4, 2, 3))
    assert empty == DraftTree((), (), ())
