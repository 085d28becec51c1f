"""What power and size simulate, against the engine's own round machine on a modelled ring."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from analysis.iid_simulation import LengthRule, Text, pipelined_rounds
from bench.replay import Replayed, replay
from bench.ring_model import RingShape, ServiceTime
from bench.traces import Trace
from engine.coordinator.policy import TwoState
from engine.draft.drafter import NO_DRAFT, Draft, Drafter

PROMPT_IDS = tuple(range(10))
FIRST_ID = 1000  # of the output; every one is new, so that none ends it early
WRONG_ID = 1
DECIDED = ("applied", "refuted", "closed")
SHAPE = RingShape(
    stages=(ServiceTime(1e6, 1e5), ServiceTime(2e6, 1e5)),
    hosts=(0, 1),
    one_way_ns=(20_000_000, 30_000_000, 10_000_000),
    rate_bytes_per_s=(0, 0, 0),
    hop_ns=1e5,
    head_ns=1e5,
    id_bytes=3,
    state_bytes=2304,
    overlap=1.0,
)


class ScriptedDrafter(Drafter):
    """Drafts the output's own token where the script says right, and a wrong one elsewhere."""

    name = "ngram"

    def __init__(self, right: Sequence[bool]) -> None:
        self._right = right
        self._committed_len = 0

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job."""
        self._committed_len = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens."""
        self._committed_len += len(ids)

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        """As many as were asked for, right or wrong by output index."""
        first = self._committed_len + len(speculative)
        places = range(first, first + max_len)
        ids = tuple(FIRST_ID + at if self._is_right(at) else WRONG_ID for at in places)
        return Draft(ids, "ngram", 1) if ids else NO_DRAFT

    def _is_right(self, place: int) -> bool:
        return place < len(self._right) and self._right[place]


def decoded(right: Sequence[bool], rule: LengthRule, depth: int, text: Text) -> Replayed:
    """One job of the real round machine; output 0 is the prefill's."""
    num_output = text.num_committed + 1
    trace = Trace(
        cell="made",
        group="made",
        kind="novel",
        prompt_ids=PROMPT_IDS,
        output_ids=tuple(range(FIRST_ID, FIRST_ID + num_output)),
        max_new_tokens=num_output + (100 if text.ends_unforeseen else 0),
        ended_by_eos=text.ends_unforeseen,
        receipt_id="made",
    )
    policy = TwoState(rule.low, rule.high, rule.up)
    return replay(trace, SHAPE, policy, ScriptedDrafter(right), depth)


@pytest.mark.parametrize("ends_unforeseen", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("rule", [LengthRule(8, 8), LengthRule(8, 16), LengthRule(3, 7, 2)])
@pytest.mark.parametrize("alpha", [0.3, 0.8, 0.97])
def test_simulated_rounds_are_the_engines(
    alpha: float, rule: LengthRule, depth: int, ends_unforeseen: bool
) -> None:
    """Catches a stop, a cut, a bonus or a policy's move that the engine makes otherwise."""
    for seed in range(12):
        drawn = random.Random(f"{alpha} {rule} {depth} {ends_unforeseen} {seed}")
        text = Text(drawn.randint(1, 70), ends_unforeseen)
        right = [True, *(drawn.random() < alpha for _ in range(text.num_committed))]
        records = [r for r in decoded(right, rule, depth, text).records if r.outcome in DECIDED]
        fates = iter(
            [
                right[record.start + record.positions_len - record.sent_len + idx - len(PROMPT_IDS)]
                for record in records
                for idx in range(record.tested_len)
            ]
        )
        simulated = pipelined_rounds(lambda fates=fates: next(fates), text, rule, depth)
        expected = [(r.draft_len, r.accepted_len) for r in records if r.draft_len]
        assert [pair for pair in simulated if pair[0]] == expected
        assert next(fates, None) is None, "every draft that the engine tested was drawn once"
