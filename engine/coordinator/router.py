"""The router: n-grams in depth, one tree or a plain step, whichever brings most tokens a second.

The depth-aware rule. A match either goes on as a copy or is a coincidence. Where it is a copy,
n-grams stream at the rate of a full pipe, and a tree first would put that off by a loop; it is not
lost, since the match is still there behind the tree, and longer. Where it is a coincidence, the
loop brings one token instead of a tree's. So with chance P that the n-gram outruns the tree,
n-grams are sent if

    P * (loop of a tree - its tokens / rate of the pipe)
        > (1 - P) * (loop of a frame - 1 token / rate of trees)

both sides being time lost by the wrong choice. Chances are `survival`'s for n-grams, the head's
own as calibrated when it was trained, corrected by what this job's trees came to; times are
measured on this ring (`ring_cost`). Guarantees: a short match that happens to be there does not
keep the head from its turn. Must never know links or clocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.coordinator.planner import LENGTHS
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.survival import Floats, Survival
from engine.draft.drafter import Draft, DraftFate
from engine.draft.tree import DraftTree

CONFIDENCE_WEIGHT = 6.0  # accepted tokens that the calibration of training is worth
_TYPICAL_TREE = 1.3  # accepted nodes, before any tree was grown
_LEARNING_RATE = 0.2
_SURENESS = 2.0


class LoopRouter:
    """See the module's header.

    Args:
        survival: of n-grams; this job's.
        cost: what frames cost on this ring.
        draft_lens: lengths of frames that the policy may choose.
        depth: most frames in flight.
        confidence: chance that a node is the target's, by equal bins of its probability.
    """

    def __init__(
        self,
        survival: Survival,
        cost: RingCost,
        draft_lens: Sequence[int],
        depth: int,
        confidence: Sequence[float],
    ) -> None:
        self._survival, self._cost = survival, cost
        self._draft_lens, self._depth = list(draft_lens), depth
        self._confidence = confidence
        self._expected = self._accepted = CONFIDENCE_WEIGHT
        self._pending_expected = 0.0  # of the tree on its way
        self._tree_tokens = _TYPICAL_TREE  # what recent trees were expected to bring
        self._tree_positions = 16

    def needs_head(self, ngram: Draft) -> bool:
        """False where the n-gram would still be sent if it were half as sure."""
        return not ngram.ids or not self._is_copy(ngram, self._tree_tokens, _SURENESS)

    def prefers_tree(self, ngram: Draft, tree: DraftTree) -> bool:
        """By the time that the wrong choice would lose."""
        expected = self.expected_len(tree)
        self._tree_tokens += _LEARNING_RATE * (expected - self._tree_tokens)
        self._tree_positions = len(tree.ids) + 2
        if ngram.ids and self._is_copy(ngram, expected, 1.0):
            is_best = False
        else:
            is_best = self._tree_rate(expected) > 1.0 / self._cost.loop_ns(1)
        self._pending_expected = expected if is_best else 0.0
        return is_best

    def expected_len(self, tree: DraftTree) -> float:
        """Nodes of it that the target will take: the sum of their chances."""
        num_bins = len(self._confidence)
        bins = [min(int(math.exp(log) * num_bins), num_bins - 1) for log in tree.log_probs]
        return sum(self._confidence[idx] for idx in bins) * self._accepted / self._expected

    def observe(self, fate: DraftFate) -> None:
        """Learn what trees come to, and how n-grams survive."""
        if fate.source == "ngram":
            self._survival.observe(fate)
        if fate.source == "tree":
            self._expected += self._pending_expected
            self._accepted += fate.accepted_len
            self._pending_expected = 0.0

    def _is_copy(self, draft: Draft, expected: float, sureness: float) -> bool:
        """Is the draft worth more than a tree of so many expected tokens?

        Args:
            sureness: by which the odds of a copy have to outweigh the loss.
        """
        outrun_len = max(1, math.ceil(1.0 + expected))
        survival: Floats = self._survival.curve("ngram", max(1, draft.match_len), outrun_len)
        chance = float(survival[-1])
        novel_rate = max(self._tree_rate(expected), 1.0 / self._cost.loop_ns(1))
        tree_ns = self._cost.loop_ns(self._tree_positions)
        put_off_ns = max(0.0, tree_ns - (1.0 + expected) / self._pipe_rate())
        frame_ns = self._cost.loop_ns(1 + min(self._draft_lens[-1], len(draft.ids)))
        missed_ns = max(0.0, frame_ns - 1.0 / novel_rate)
        return chance * put_off_ns > sureness * (1.0 - chance) * missed_ns

    def _tree_rate(self, expected: float) -> float:
        return (1.0 + expected) / self._cost.loop_ns(self._tree_positions)

    def _pipe_rate(self) -> float:
        """Tokens a ns while everything is accepted."""
        return max(
            length * self._depth / max(1.0, self._cost.train(length, self._depth).replies_ns[-1])
            for length in self._draft_lens
        )


def lengths_up_to(len_max: int, is_planned: bool) -> list[int]:
    """Frame lengths that a policy may choose: its one, or a planner's grid."""
    if not is_planned:
        return [max(1, len_max)]
    return [length for length in LENGTHS if length < len_max] + [len_max]
