"""Best-first draft trees, grown level by level.

The best tree of M nodes is the M most likely paths from the root. A path is never more likely than
what it goes on from, so a node that is not among the best M of the nodes so far never will be, nor
anything behind it: expanding, level by level, only the best M finds the same tree as taking the
single best open node each time, in as many passes as it is deep. Guarantees: parents come before
children, depth first, likelier siblings first; with one child a node the tree is the chain. Never
knows the head, rounds or links.

Source: Li et al. 2024, EAGLE-2, for trees by cumulative probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """One token that may come next, and its log-probability there."""

    token: int
    log_prob: float


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """How large a tree may be: all told, children of a node, levels."""

    num_nodes: int
    num_children: int
    depth: int


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of drafted tokens, depth first.

    Attributes:
        ids: of its nodes.
        parents: of each the index of its parent; -1: the root, the token committed last.
        log_probs: of each the log-probability of the path to it.
    """

    ids: tuple[int, ...]
    parents: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    token: int
    parent: int  # index in order of growing; -1: the root
    log_prob: float


# Given indices of the nodes of one level in order of growing, with the nodes' tokens and parents:
# for each what may follow it, likeliest first.
Expand = Callable[[Sequence[int], Sequence[int], Sequence[int]], Sequence[Sequence[Choice]]]


def grow_tree(first: Sequence[Choice], expand: Expand, limits: TreeLimits) -> DraftTree:
    """Grow the best tree.

    Args:
        first: what may follow the root, likeliest first.
        expand: asked once a level, for nodes of that level; their order of growing is theirs for
            good, so that it may keep what it computed of them.
        limits: its size.
    """
    nodes = [_Node(choice.token, -1, choice.log_prob) for choice in first[: limits.num_children]]
    level = _kept(nodes, range(len(nodes)), limits)
    for _ in range(1, limits.depth):
        if not level:
            break
        tokens, parents = [nodes[idx].token for idx in level], [nodes[idx].parent for idx in level]
        begun = len(nodes)
        for idx, choices in zip(level, expand(level, tokens, parents), strict=True):
            so_far = nodes[idx].log_prob
            nodes += [
                _Node(choice.token, idx, so_far + choice.log_prob)
                for choice in choices[: limits.num_children]
            ]
        level = _kept(nodes, range(begun, len(nodes)), limits)
    return _depth_first(nodes, _best(nodes, limits.num_nodes))


def _best(nodes: Sequence[_Node], num: int) -> list[int]:
    """The likeliest nodes; among equals the older ones, and so a parent before its child."""
    return sorted(range(len(nodes)), key=lambda idx: (-nodes[idx].log_prob, idx))[:num]


def _kept(nodes: Sequence[_Node], level: range, limits: TreeLimits) -> list[int]:
    """Nodes of the newest level that may still be in the tree."""
    best = set(_best(nodes, limits.num_nodes))
    return [idx for idx in level if idx in best]


def _depth_first(nodes: Sequence[_Node], chosen: Sequence[int]) -> DraftTree:
    children: dict[int, list[int]] = {}
    for idx in chosen:  # likeliest first, so siblings are in that order
        children.setdefault(nodes[idx].parent, []).append(idx)
    ids, parents, log_probs = list[int](), list[int](), list[float]()
    open_nodes = [(idx, -1) for idx in reversed(children.get(-1, []))]
    while open_nodes:
        idx, parent = open_nodes.pop()
        place = len(ids)
        ids.append(nodes[idx].token)
        parents.append(parent)
        log_probs.append(nodes[idx].log_prob)
        open_nodes += [(child, place) for child in reversed(children.get(idx, []))]
    return DraftTree(tuple(ids), tuple(parents), tuple(log_probs))
