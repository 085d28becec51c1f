"""Test only: trees, drawn and judged without the engine's own walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st


@st.composite
def trees(draw: st.DrawFn, min_size: int = 0, max_size: int = 14) -> tuple[int, ...]:
    """Parents of a tree in depth-first order: each node follows some of the path before it."""
    path, parents = [-1], []
    for idx in range(draw(st.integers(min_size, max_size))):
        path = path[: draw(st.integers(1, len(path)))]
        parents.append(path[-1])
        path.append(idx)
    return tuple(parents)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root's child to this one."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def leaves(parents: Sequence[int]) -> list[int]:
    """Nodes that nothing follows; -1 if there are no nodes at all."""
    return [node for node in range(-1, len(parents)) if node not in parents]


def depth_first_orders(num: int) -> Iterator[tuple[int, ...]]:
    """Every tree of so many nodes, each spelt out by visiting children recursively."""
    for shape in _forests(num):
        parents: list[int] = []
        _visit(shape, -1, parents)
        yield tuple(parents)


def _forests(num: int) -> Iterator[tuple[object, ...]]:
    """Every ordered forest: a node is the forest below it."""
    if num == 0:
        yield ()
        return
    for below in range(num):
        for first in _forests(below):
            for rest in _forests(num - 1 - below):
                yield (first, *rest)


def _visit(forest: tuple[object, ...], parent: int, parents: list[int]) -> None:
    for below in forest:
        own = len(parents)
        parents.append(parent)
        assert isinstance(below, tuple)
        _visit(below, own, parents)
