"""A drafter that fails in the middle of a job, on a real ring: neither ids nor end show it.

DESIGN section 12: degrade to n-grams for the job, and say so in the receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from oracle_ring import OracleRing, continuation, repetitive_truth

from engine.coordinator.job import JobRequest, make_levers
from engine.draft.drafter import Draft, Drafter, DraftFate

TRUTH = repetitive_truth(alphabet=13, period=11)
PROMPT = tuple(TRUTH([0] * (idx + 1)) for idx in range(30))
STEPS = ("begin", "extend", "draft", "prepare", "observe")


class Failing(Drafter):
    """Drafts nonsense until it fails at the n-th call of one step."""

    name = "failing"

    def __init__(self, step: str, at_call: int) -> None:
        self._step, self._left = step, at_call

    def note(self, step: str) -> None:
        self._left -= step == self._step
        if self._left <= 0 and step == self._step:
            raise IndexError("planted")

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self.note("begin")

    def extend(self, ids: Sequence[int]) -> None:
        self.note("extend")

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        self.note("draft")
        return Draft((1,) * max_len, "eagle", 0)

    def prepare(self, speculative: Sequence[int]) -> None:
        self.note("prepare")

    def observe(self, fate: DraftFate) -> None:
        self.note("observe")


def test_a_failing_drafter_costs_no_job() -> None:
    """Catches an exception that ends the job or the session, a fallback that knows another text,
    and one that lasts into the next job."""
    levers = make_levers(draft_len=3, depth=2, prefill_chunk=7, max_new_tokens=40)
    plain = JobRequest(PROMPT, levers, frozenset(), "00")
    expected = continuation(TRUTH, PROMPT, 40, ())
    with OracleRing(2, TRUTH, delay_s=0.001) as ring, ring.session() as session:
        for step in STEPS:
            for at_call in (1,) if step == "begin" else (1, 3):
                request = replace(
                    plain, make_drafter=lambda *_, step=step, at=at_call: Failing(step, at)
                )
                result = session.run(request)
                assert result.failure is None and result.ring_usable
                assert result.output_ids == expected, step
                assert result.degraded == f"failing: {step}: IndexError: planted"
                sources = {frame.source for frame in result.frames}
                assert "ngram" in sources, "n-grams did not take over"
        healthy = session.run(plain)
    assert healthy.output_ids == expected and healthy.degraded is None


@pytest.mark.parametrize("depth", [1, 4])
def test_a_drafter_that_needs_an_idle_ring_drafts_in_every_round(depth: int) -> None:
    """Catches one that is starved at a depth it cannot use, or whose anchor goes out alone."""

    class IdleOnly(Drafter):
        name = "idle-only"

        def __init__(self) -> None:
            self.ids: list[int] = []

        def begin(self, prompt_ids: Sequence[int]) -> None:
            self.ids = list(prompt_ids)

        def extend(self, ids: Sequence[int]) -> None:
            self.ids += ids

        def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
            if not is_idle:
                return Draft((), "none", 0)
            return Draft(tuple(continuation(TRUTH, self.ids, max_len, ())), "eagle", 0)

    levers = make_levers(draft_len=3, depth=depth, max_new_tokens=41)
    request = JobRequest(PROMPT, levers, frozenset(), "00", make_drafter=lambda *_: IdleOnly())
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        result = session.run(request)
    assert result.output_ids == continuation(TRUTH, PROMPT, 41, ())
    rounds = [frame for frame in result.frames if frame.outcome != "prefill"]
    assert [frame.committed_len for frame in rounds] == [4] * 10
    assert {frame.source for frame in rounds} == {"eagle"} and result.degraded is None
