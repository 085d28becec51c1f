"""Tree drafts: which are sound, how deep they may go, which path of one the target takes. Sans-IO.

A tree hangs on the token committed last, its root; its nodes stand as `engine.model.tree` has them.
With one child each they are a chain, and commit what a chain commits. Must never know sending.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.coordinator.committed_text import CommittedText
from engine.coordinator.records import Frame
from engine.draft.drafter import Draft
from engine.errors import JobError, LocalProtocolError
from engine.model.tree import ROOT, check_tree, followed, row_offsets


def depths_of(parents: Sequence[int]) -> list[int]:
    """Depth of each node; a child of the root has 1.

    Raises:
        LocalProtocolError: the nodes do not stand depth first, or are too many.
    """
    try:
        check_tree(parents, len(parents) + 1)
    except JobError as error:
        raise LocalProtocolError(f"a drafted tree: {error.detail}") from error
    return row_offsets(parents, len(parents) + 1)[1:]


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
    right = followed(frame.parents, frame.node_ids, ids)
    rows: list[int] = []
    for row in (0, *(node + 1 for node in right)):
        text.append(ids[row])
        rows.append(row)
        if text.finished:
            break
    if len(rows) > len(right):  # the target said something else than any child of the last one
        frame.refused = (right[-1] if right else ROOT) in frame.parents
    frame.path = tuple(right[: len(rows)])
    frame.accepted_len = len(frame.path)
    return tuple(rows)
