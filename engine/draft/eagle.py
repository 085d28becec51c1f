"""The learned drafter: chains and trees of the head's, from the target's taps.

Guarantees: a draft is made only where nothing is in flight and every committed token but the last
one has its tap; taps of the whole prompt are taken, chunk by chunk; what is drafted never stays in
the head's store. Never knows rounds or links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from engine.draft.drafter import NO_DRAFT, Draft, Drafter
from engine.draft.head import EagleHead
from engine.draft.head_file import HeadFacts
from engine.draft.tree import Choice, DraftTree, TreeLimits, grow_tree
from engine.errors import ModelError
from engine.model.row_invariance import on_threads

_EXTENDED_LEN = 256  # slots of one pass
# One layer is too small for two: they would wait for each other, and for stages on these cores.
_NUM_THREADS = 1


class EagleDrafter(Drafter):
    """Drafts with a head.

    Args:
        head: the head; a job's slots are in it, so it serves one drafter.
        shape: what it drafts.
        limits: of a tree; a chain has the asked length.
    """

    goes_on = False  # a longer draft is the same draft, but none is made while others fly

    def __init__(
        self, head: EagleHead, shape: Literal["chain", "tree"], limits: TreeLimits
    ) -> None:
        self.name = "eagle" if shape == "chain" else "tree"
        self._head, self._limits = head, limits
        self._committed: list[int] = []
        self._waiting: list[torch.Tensor] = []  # taps of positions behind the slots', not yet fused
        self._known_len = 0  # positions whose taps have come
        self._last = torch.zeros(0)  # output of the last verified slot, [1, H]

    @property
    def facts(self) -> HeadFacts:
        """What the head's file says."""
        return self._head.facts

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job."""
        self._committed = list(prompt_ids)
        self._waiting.clear()
        self._known_len = 0
        self._head.reset()

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""
        self._committed += ids

    def feed(self, start: int, taps: Mapping[int, torch.Tensor]) -> None:
        """Taps of committed positions; those that were known already are the same again.

        They are only kept: fusing them waits until a draft is wanted, or nothing else is to do.
        """
        known_len = self._known_len
        if start > known_len:
            raise ModelError(f"taps from position {start} on, but those from {known_len} on lack")
        layers = self._head.facts.tap_layers
        if sorted(taps) != list(layers):
            raise ModelError(f"taps of layers {sorted(taps)}; the head fuses {list(layers)}")
        rows = torch.stack([taps[layer] for layer in layers], dim=1)[known_len - start :]
        if len(rows):
            self._waiting.append(rows)
            self._known_len += len(rows)

    def prepare(self, speculative: Sequence[int]) -> None:
        """While a reply is awaited: bring the head up to what is committed."""
        with on_threads(_NUM_THREADS):
            self._extend_to(min(self._known_len, len(self._committed) - 1))

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        """Propose a chain of at most `max_len` tokens, or a tree as deep."""
        if speculative or not is_idle or max_len < 1:
            return NO_DRAFT
        tree = self.grow(max_len)
        if self.name == "tree":
            return Draft(tree.ids, "tree", 0, parents=tree.parents)
        return Draft(tree.ids, "eagle", 0)

    def grow(self, max_len: int) -> DraftTree:
        """Draft behind what is committed.

        Raises:
            ModelError: taps of committed positions lack.
        """
        limits = self._limits
        if self.name == "tree":
            limits = TreeLimits(limits.num_nodes, limits.num_children, min(limits.depth, max_len))
        else:
            limits = TreeLimits(max_len, 1, max_len)
        with on_threads(_NUM_THREADS):
            self._catch_up()
            growth = _Growth(self._head, self._last, limits.num_children)
            return grow_tree(growth.first(), growth.expand, limits)

    def _catch_up(self) -> None:
        """Have a slot for every committed token but the first."""
        num_wanted = len(self._committed) - 1
        if self._known_len < num_wanted:
            raise ModelError(
                f"taps of positions {self._known_len} to {num_wanted - 1} were never fed"
            )
        self._extend_to(num_wanted)

    def _extend_to(self, num_wanted: int) -> None:
        """Fuse what waits and give it slots, a pass at a time."""
        head, first = self._head, self._head.num_slots
        if first >= num_wanted:
            return
        taps = torch.cat(self._waiting)
        for at in range(first, num_wanted, _EXTENDED_LEN):
            end = min(num_wanted, at + _EXTENDED_LEN)
            features = head.fuse(taps[at - first : end - first])
            ids = torch.tensor(self._committed[at + 1 : end + 1])
            self._last = head.extend(features, ids)[-1:]
        self._waiting = [taps[num_wanted - first :]]


class _Growth:
    """The head's part in growing one tree: scratch keys and values, by node."""

    def __init__(self, head: EagleHead, last: torch.Tensor, num_children: int) -> None:
        self._head, self._num_children = head, num_children
        self._outputs: dict[int, torch.Tensor] = {-1: last}
        self._lineages: dict[int, tuple[int, ...]] = {-1: ()}  # scratch places of a node's path
        self._scratch: torch.Tensor | None = None

    def first(self) -> list[Choice]:
        """What may follow the root."""
        return self._choices(self._outputs[-1])[0]

    def expand(
        self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]
    ) -> list[list[Choice]]:
        """What may follow the nodes of one level."""
        num_before = 0 if self._scratch is None else self._scratch.shape[2]
        hidden = torch.ones(len(nodes), num_before + len(nodes), dtype=torch.bool)
        for row, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            self._lineages[node] = (*self._lineages[parent], num_before + row)
            hidden[row, list(self._lineages[node])] = False
        depth = len(self._lineages[nodes[0]])
        features = torch.cat([self._outputs[parent] for parent in parents])
        slots = self._head.draft(features, torch.tensor(tokens), depth, self._scratch, hidden)
        old = self._scratch
        self._scratch = slots.keys_values if old is None else torch.cat([old, slots.keys_values], 2)
        self._outputs |= dict(zip(nodes, torch.split(slots.outputs, 1), strict=True))
        return self._choices(slots.outputs)

    def _choices(self, outputs: torch.Tensor) -> list[list[Choice]]:
        log_probs = self._head.log_probs(outputs)
        best = log_probs.topk(min(self._num_children, log_probs.shape[1]), dim=1)
        ids = self._head.vocab_ids[best.indices]
        return [
            [Choice(token, log_prob) for token, log_prob in zip(*row, strict=True)]
            for row in zip(ids.tolist(), best.values.tolist(), strict=True)
        ]
