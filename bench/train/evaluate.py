"""What a head is worth: its drafts against the target's own answers, round by round.

Guarantees: the drafter is the one that jobs run, fed with taps as a job feeds it, and rounds commit
as a job's do; only the ring is missing. Prompts are others than any it was trained on. Never knows
how the head was trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from bench.train.texts import Text
from engine.draft.eagle import EagleDrafter
from engine.draft.head import EagleHead
from engine.draft.tree import DraftTree, TreeLimits

NUM_BINS = 20
_BIN_WEIGHT = 4.0  # observations that a bin's middle is worth
CHAIN_LEN = 6
TREE = TreeLimits(num_nodes=16, num_children=3, depth=6)


@dataclass(frozen=True, slots=True)
class Round:
    """One traversal: a tree of drafts and what became of it.

    Attributes:
        accepted_len: nodes on the target's path.
        has_right_first: whether the likeliest first token is the target's.
        nodes: of every node its probability and whether it is on the target's path.
    """

    accepted_len: int
    has_right_first: bool
    nodes: tuple[tuple[float, bool], ...]


def rounds_of(head: EagleHead, text: Text, shape: str) -> Iterator[Round]:
    """Decode one text as a job would, a round after another.

    Args:
        shape: "chain" of `CHAIN_LEN`, or "tree" of `TREE`.
    """
    drafter = EagleDrafter(head, "chain" if shape == "chain" else "tree", TREE)
    ids, layers = text.ids.tolist(), head.facts.tap_layers
    taps = dict(zip(layers, text.taps.float().chunk(len(layers), dim=1), strict=True))
    drafter.begin(ids[: text.prompt_len])
    drafter.extend(ids[text.prompt_len : text.prompt_len + 1])  # the prefill's
    drafter.feed(0, {layer: rows[: text.prompt_len] for layer, rows in taps.items()})
    num_committed, num_fed = text.prompt_len + 1, text.prompt_len
    while num_committed < len(ids) - 1:
        depth = min(CHAIN_LEN, len(ids) - 1 - num_committed)
        tree = drafter.grow(depth)
        on_path = _on_path(tree, ids[num_committed:])
        accepted_len = sum(on_path)
        probs = [math.exp(log_prob) for log_prob in tree.log_probs]
        yield Round(accepted_len, on_path[0], tuple(zip(probs, on_path, strict=True)))
        end = num_committed + accepted_len + 1
        drafter.extend(ids[num_committed:end])
        drafter.feed(num_fed, {layer: rows[num_fed : end - 1] for layer, rows in taps.items()})
        num_committed, num_fed = end, end - 1


def _on_path(tree: DraftTree, truth: Sequence[int]) -> list[bool]:
    """Of every node whether the target says the same up to it."""
    depths, on_path = list[int](), list[bool]()
    for token, parent in zip(tree.ids, tree.parents, strict=True):
        depth = 0 if parent < 0 else depths[parent] + 1
        depths.append(depth)
        is_open = parent < 0 or on_path[parent]
        on_path.append(is_open and depth < len(truth) and truth[depth] == token)
    return on_path


@dataclass(frozen=True, slots=True)
class Worth:
    """Sums over the rounds of some texts."""

    num_rounds: int
    num_right_first: int
    num_accepted: int

    @property
    def first_rate(self) -> float:
        """How often the first drafted token is the target's."""
        return self.num_right_first / max(1, self.num_rounds)

    @property
    def tokens_per_traversal(self) -> float:
        """Committed tokens a round."""
        return 1.0 + self.num_accepted / max(1, self.num_rounds)


def worth_of(rounds: Sequence[Round]) -> Worth:
    """Sum rounds up."""
    return Worth(
        num_rounds=len(rounds),
        num_right_first=sum(one.has_right_first for one in rounds),
        num_accepted=sum(one.accepted_len for one in rounds),
    )


def confidence_of(rounds: Sequence[Round]) -> tuple[int, ...]:
    """Calibrate probabilities: of the nodes in each bin, how many of a million are the target's."""
    tested, right = torch.zeros(NUM_BINS), torch.zeros(NUM_BINS)
    for one in rounds:
        for prob, is_right in one.nodes:
            bin_idx = min(int(prob * NUM_BINS), NUM_BINS - 1)
            tested[bin_idx] += 1
            right[bin_idx] += is_right
    middles = (torch.arange(NUM_BINS) + 0.5) / NUM_BINS
    rates = (right + _BIN_WEIGHT * middles) / (tested + _BIN_WEIGHT)
    rising = torch.cummax(rates, dim=0).values
    return tuple(round(rate * 1e6) for rate in rising.tolist())
