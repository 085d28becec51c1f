"""The shape of a frame whose last rows are a tree's nodes: who may follow whom, and where.

Guarantees: a tree that passed `check_tree` is depth first, each node behind its parent, so that
rows fall into runs of consecutive positions: when a run is computed, the slots before it hold
exactly what its first row follows. A frame without nodes is one run. Sans-IO. Must never know
tensors, tokens' meaning or jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.defaults import TREE_NODES_MAX
from engine.errors import JobError

ROOT = -1  # the parent of a node that follows the row before the first node


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of a frame that follow each other directly.

    Attributes:
        first_row: in the frame.
        num_rows: how many.
        offset: position of the first one, behind the frame's start.
    """

    first_row: int
    num_rows: int
    offset: int

    def within(self, offset: int, length: int) -> Run:
        """The part of it at these positions."""
        skipped = max(offset - self.offset, 0)
        end = min(self.offset + self.num_rows, offset + length)
        return Run(self.first_row + skipped, end - self.offset - skipped, self.offset + skipped)


def check_tree(parents: Sequence[int], num_rows: int) -> None:
    """Refuse parents that are no tree in depth-first order, or leave no row for its root.

    Args:
        parents: of each node an earlier one, or `ROOT`; empty: no tree.
        num_rows: of the frame; the nodes are the last ones.

    Raises:
        JobError: `bad_tree`.
    """
    if len(parents) > TREE_NODES_MAX:
        raise JobError("bad_tree", f"{len(parents)} nodes; allowed: up to {TREE_NODES_MAX}")
    if parents and len(parents) >= num_rows:
        raise JobError(
            "bad_tree", f"{len(parents)} nodes in {num_rows} rows; send the root's row before them"
        )
    path = [ROOT]  # the node before, and what it follows
    for idx, parent in enumerate(parents):
        if parent not in path:
            raise JobError(
                "bad_tree",
                f"node {idx} follows {parent}, which is neither the node before it nor before "
                f"that one: list nodes depth first, each parent in {ROOT}..{idx - 1}",
            )
        del path[path.index(parent) + 1 :]
        path.append(idx)


def check_root(parents: Sequence[int], start: int, num_rows: int, answer_from: int) -> None:
    """Refuse a tree that is not to be answered from its root on.

    Raises:
        JobError: `bad_tree`.
    """
    root = start + num_rows - len(parents) - 1
    if parents and answer_from != root:
        raise JobError(
            "bad_tree", f"answer_from is {answer_from}; a tree is answered from its root, {root}"
        )


def row_offsets(parents: Sequence[int], num_rows: int) -> list[int]:
    """Position of each row, behind the frame's start: a node's is one more than its parent's.

    Args:
        parents: as `check_tree` passed them.
        num_rows: of the frame.
    """
    trunk_len = num_rows - len(parents)
    offsets = list(range(trunk_len))
    for parent in parents:
        offsets.append(offsets[trunk_len + parent] + 1)
    return offsets


def runs_of(parents: Sequence[int], num_rows: int) -> list[Run]:
    """Cut a frame where a row does not follow the one before it; the first run has the trunk."""
    trunk_len, offsets = num_rows - len(parents), row_offsets(parents, num_rows)
    jumps = [trunk_len + idx for idx, parent in enumerate(parents) if parent != idx - 1]
    firsts, ends = [0, *jumps], [*jumps, num_rows]
    return [
        Run(first, end - first, offsets[first] if offsets else 0)
        for first, end in zip(firsts, ends, strict=True)
    ]


def reach_of(runs: Sequence[Run]) -> int:
    """Positions from a frame's first row to behind its deepest one."""
    return max(run.offset + run.num_rows for run in runs)


def answered_positions(
    parents: Sequence[int], start: int, num_rows: int, answer_from: int
) -> list[int]:
    """Where the tokens stand that the answered rows choose, one behind each, in row order.

    The rows from `answer_from` on are answered, none if it lies behind the frame; of a tree the
    root and its nodes.
    """
    offsets = row_offsets(parents, num_rows)
    return [start + offset + 1 for offset in offsets[max(answer_from - start, 0) :]]


def followed(parents: Sequence[int], node_ids: Sequence[int], answers: Sequence[int]) -> list[int]:
    """The nodes that were right: from the root on, the child that is what its parent's row chose.

    Args:
        parents: as `check_tree` passed them.
        node_ids: token of each node.
        answers: the root's, then each node's.
    """
    at, path = ROOT, list[int]()
    for idx, (parent, token) in enumerate(zip(parents, node_ids, strict=True)):
        if parent == at and token == answers[at + 1]:
            at = idx
            path.append(idx)
    return path
