"""The router: n-grams in depth, one tree or a plain step, whichever brings most tokens a second.

The depth-aware rule. An n-gram's draft is the head of a train: frames in depth, until one is
refuted. A tree is one frame and one loop: the pipe is drained for it. With tokens that survive
(`survival`; the head's own confidence, as calibrated when it was trained and corrected by what
this job's trees came to) and times measured on this ring (`ring_cost`), both are tokens a second,
and so is drafting nothing. Guarantees: a short match that happens to be there does not keep the
head from its turn, since its chance is that of short matches. Must never know links or clocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.coordinator.planner import LENGTHS, UnderWay, rated_train
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.survival import Floats, Survival
from engine.draft.drafter import Draft, DraftFate
from engine.draft.tree import DraftTree

HORIZON = 128  # tokens of a train that are looked at
CONFIDENCE_WEIGHT = 6.0  # accepted tokens that the calibration of training is worth
_TYPICAL_TREE = 2.0  # tokens, before any was grown


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
        """False where even twice the usual tree would not be worth as much as the n-gram's."""
        if not ngram.ids:
            return True
        hoped = 1.0 + 2.0 * self._tree_tokens
        return self._ngram_rate(ngram) < hoped / self._cost.loop_ns(self._tree_positions)

    def prefers_tree(self, ngram: Draft, tree: DraftTree) -> bool:
        """By tokens a second."""
        expected = self.expected_len(tree)
        self._tree_tokens += 0.2 * (expected - self._tree_tokens)
        self._tree_positions = len(tree.ids) + 2
        tree_rate = (1.0 + expected) / self._cost.loop_ns(self._tree_positions)
        plain_rate = 1.0 / self._cost.loop_ns(1)
        is_best = tree_rate > max(self._ngram_rate(ngram), plain_rate)
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

    def _ngram_rate(self, draft: Draft) -> float:
        """Tokens a ns of the train that this draft opens; 0 without one."""
        if not draft.ids:
            return 0.0
        survival: Floats = self._survival.curve("ngram", max(1, draft.match_len), HORIZON)
        return rated_train(survival, self._cost, self._draft_lens, self._depth, UnderWay())[1]


def lengths_up_to(len_max: int, is_planned: bool) -> list[int]:
    """Frame lengths that a policy may choose: its one, or a planner's grid."""
    if not is_planned:
        return [max(1, len_max)]
    return [length for length in LENGTHS if length < len_max] + [len_max]
