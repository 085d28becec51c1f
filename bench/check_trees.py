"""What trees among a receipt's frames must satisfy, by themselves and towards the frames around.

A tree frame is the committed path that was not sent yet, the root last, and the nodes behind it; it
travels alone, and its reply raises the epoch (DESIGN section 5). Guarantees: a rule yields (rule
name, detail) for each contradiction and goes on. Separate from the code that makes trees, on
purpose. Must never know files, keys or signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.check_wire import Found
from bench.schema import FrameRow

FIRST_VERSION = 7  # of receipts that tell of trees


def is_tree(frame: FrameRow) -> bool:
    """By its name; what it says of parents is held against that."""
    return frame.source == "tree"


def root_of(frame: FrameRow) -> int:
    """Position of the token that the tree hangs on."""
    return frame.start + frame.positions_len - frame.sent_len - 1


def check_trees(frames: Sequence[FrameRow], version: int) -> Found:
    """Every tree of a receipt, and every frame that claims to be none."""
    last_applied = max((i for i, row in enumerate(frames) if row.outcome == "applied"), default=-1)
    for idx, frame in enumerate(frames):
        parents = frame.parents if isinstance(frame.parents, list) else []
        if not is_tree(frame):
            details = iter([f"{len(parents)} parents in no tree"] if parents else [])
        elif version < FIRST_VERSION:
            details = iter([f"a tree in a receipt of version {version}"])
        else:
            following = frames[idx + 1] if idx + 1 < len(frames) else None
            details = _check_tree(frame, parents, following, idx == last_applied)
        for detail in details:
            yield "trees", f"frame {idx}: {detail}"


def _check_tree(
    frame: FrameRow, parents: list[int], following: FrameRow | None, is_last: bool
) -> Iterator[str]:
    if not parents or len(parents) != frame.sent_len:
        yield f"{len(parents)} parents of {frame.sent_len} nodes"
    depth = _depth(parents)
    if depth is None:
        yield f"its nodes do not stand depth first: {parents}"
    if frame.in_flight != 1:
        yield f"a tree among {frame.in_flight} frames in flight"
    if isinstance(frame.frontier, int) and root_of(frame) != frame.frontier - 1:
        yield f"its root stands at {root_of(frame)}; sent at frontier {frame.frontier}"
    if frame.outcome == "applied":
        yield from _check_counts(frame, depth, is_last)
    elif frame.outcome != "stale":
        yield f"a tree that is {frame.outcome}"
    if following is not None:
        yield from _check_following(frame, following)


def _check_counts(frame: FrameRow, depth: int | None, is_last: bool) -> Iterator[str]:
    accepted, committed = frame.accepted_len, frame.committed_len
    if frame.draft_len != frame.sent_len:
        yield f"k = {frame.draft_len} of {frame.sent_len} nodes"
    if depth is not None and accepted > depth:
        yield f"a = {accepted} in a tree {depth} deep"
    # Only the token that ends output may itself be a node that was accepted.
    fewest = max(1, accepted) if is_last else accepted + 1
    if not fewest <= committed <= accepted + 1:
        yield f"commits {committed} with a = {accepted}"


def _check_following(frame: FrameRow, following: FrameRow) -> Iterator[str]:
    """What comes next is of the next epoch and carries the committed path anew."""
    if following.epoch != frame.epoch + 1:
        yield f"the next frame is of epoch {following.epoch}, not {frame.epoch + 1}"
    if following.start != root_of(frame) + 1:
        yield f"the next frame starts at {following.start}, not behind the root {root_of(frame)}"
    anchor_len = following.positions_len - following.sent_len
    if frame.outcome == "applied" and anchor_len != frame.committed_len:
        yield f"the next frame carries {anchor_len} committed tokens, not {frame.committed_len}"


def _depth(parents: Sequence[int]) -> int | None:
    """Nodes on the longest way down; None unless each follows its parent or a sibling's branch."""
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            return None
        # The node before is the parent, or the last one of an older sibling's branch.
        at = node - 1
        while at > parent:
            at = parents[at]
        if at != parent:
            return None
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)
