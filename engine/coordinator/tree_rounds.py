"""Tree drafts: which are sound, how deep they may go, which path of one the target takes. Sans-IO.

A tree hangs on the token committed last, its root, whose id is `ROOT` here. Its nodes stand depth
first: each one's parent is the node before it, or one that node descends from, or the root. With
one child each they are a chain, and commit what a chain commits. Must never know sending.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.coordinator.committed_text import CommittedText
from engine.coordinator.records import Frame
from engine.draft.drafter import Draft
from engine.errors import LocalProtocolError

ROOT = -1


def depths_of(parents: Sequence[int]) -> list[int]:
    """Depth of each node; a child of the root has 1.

    Raises:
        LocalProtocolError: the nodes do not stand depth first.
    """
    path: list[int] = []  # from the root's child down to the last node
    depths: list[int] = []
    for node, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        if not path and parent != ROOT:
            raise LocalProtocolError(f"node {node}'s parent {parent} is on no open branch")
        path.append(node)
        depths.append(len(path))
    return depths


def fit_tree(draft: Draft, depth_max: int) -> Draft:
    """The tree without the nodes deeper than `depth_max`.

    Raises:
        LocalProtocolError: tokens and parents do not match, or do not stand depth first.
    """
    if len(draft.parents) != len(draft.ids):
        raise LocalProtocolError(f"{len(draft.parents)} parents of {len(draft.ids)} drafted tokens")
    depths = depths_of(draft.parents)
    kept = [node for node, depth in enumerate(depths) if depth <= depth_max]
    place = {ROOT: ROOT, **{node: idx for idx, node in enumerate(kept)}}
    return Draft(
        ids=tuple(draft.ids[node] for node in kept),
        source=draft.source,
        match_len=draft.match_len,
        counts=tuple(draft.counts[node] for node in kept) if draft.counts else (),
        parents=tuple(place[draft.parents[node]] for node in kept),
    )


def walk(frame: Frame, ids: Sequence[int], text: CommittedText) -> tuple[int, ...]:
    """Commit along the path that the target takes, and note on the frame how far it goes.

    Args:
        ids: the target's token behind the root, then behind each node.

    Returns:
        Which of `ids` were committed.
    """
    node, path, rows = ROOT, list[int](), list[int]()
    while not text.finished:
        token = ids[node + 1]
        rows.append(node + 1)
        text.append(token)
        children = [child for child, parent in enumerate(frame.parents) if parent == node]
        chosen = [child for child in children if frame.node_ids[child] == token]
        if not chosen:
            frame.refused = bool(children)
            break
        node = chosen[0]
        path.append(node)
    frame.path = tuple(path)
    frame.accepted_len = len(path)
    return tuple(rows)
