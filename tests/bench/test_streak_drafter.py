"""The scripted drafter: exactly its bits, at any time and length; scripts that a real one gives."""

from __future__ import annotations

import random

import pytest

from bench.replay import replay
from bench.streak_drafter import ScriptedDrafter, position_bits
from engine.coordinator.policies import make_policy
from engine.draft.drafter import NoDrafter
from engine.draft.registry import make_drafter
from engine.errors import ConfigError
from tests.bench.test_replay import ROUNDS, SHAPE, trace_of

OUTPUT = (10, 11, 12, 13, 14, 15, 0, 17)
BITS = (1, 0, 1, 1, 0, 1, 0)


@pytest.mark.parametrize("committed_len", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("speculative_len", [0, 1, 3])
@pytest.mark.parametrize("max_len", [1, 2, 5, 12])
def test_every_position_is_right_as_its_bit_says(
    committed_len: int, speculative_len: int, max_len: int
) -> None:
    """Catches a script that shifts with what is in flight, or a wrong token that is right."""
    drafter = ScriptedDrafter(OUTPUT, BITS)
    drafter.begin((1, 2))
    drafter.extend(OUTPUT[:1])
    drafter.extend(OUTPUT[1:committed_len])
    draft = drafter.draft((99,) * speculative_len, max_len, not speculative_len)
    assert len(draft.ids) == max_len and not draft.parents
    for idx, token in enumerate(draft.ids):
        position = committed_len + speculative_len + idx
        if position < len(OUTPUT):
            assert (token == OUTPUT[position]) == BITS[position - 1], position


def test_a_new_job_starts_the_script_anew() -> None:
    drafter = ScriptedDrafter(OUTPUT, BITS)
    drafter.extend(OUTPUT)
    drafter.begin((1, 2))
    drafter.extend(OUTPUT[:1])
    assert drafter.draft((), 1).ids == (11,)


@pytest.mark.parametrize("bits", [BITS[:-1], (*BITS, 1), (2, *BITS[1:])])
def test_bits_that_do_not_fit_the_text_are_refused(bits: tuple[int, ...]) -> None:
    """Catches a script that is shifted by one, or says neither right nor wrong."""
    with pytest.raises(ConfigError, match="needed: a 0 or 1 for each but the first"):
        ScriptedDrafter(OUTPUT, bits)


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize(("policy", "draft_len"), [("fixed-k", 5), ("two-state", 2), ("streak", 2)])
@pytest.mark.parametrize("by_eos", [False, True])
def test_a_replay_tests_exactly_the_bits(
    policy: str, draft_len: int, depth: int, by_eos: bool
) -> None:
    """Catches fates of a replay that are not those of the script."""
    trace, rng = trace_of(3, 90, by_eos), random.Random(4)
    bits = tuple(int(rng.random() < 0.8) for _ in trace.output_ids[1:])
    done = replay(
        trace,
        SHAPE,
        make_policy(policy, draft_len, {}, depth),
        ScriptedDrafter(trace.output_ids, bits),
        depth,
    )
    assert done.num_output == len(trace.output_ids)
    num_tested = 0
    for record in done.records:
        if record.outcome not in ROUNDS:
            continue
        first = record.start + record.positions_len - record.sent_len - len(trace.prompt_ids)
        fates = [1] * record.accepted_len + [0] * (record.tested_len - record.accepted_len)
        at_end = first + len(fates) > len(trace.output_ids)
        assert not at_end and tuple(fates) == bits[first - 1 : first - 1 + len(fates)]
        num_tested += len(fates)
    assert num_tested > 40


def test_the_script_of_a_drafter_is_what_it_says_of_each_next_token() -> None:
    """Catches a drafter that is shown the token which it is to guess, or not all before it."""
    trace = trace_of(5, 70)
    found = position_bits(trace, make_drafter("ngram-filled", 1))
    text = trace.prompt_ids + trace.output_ids
    for idx, bit in enumerate(found):
        known = text[: len(trace.prompt_ids) + idx + 1]
        fresh = make_drafter("ngram-filled", 1)
        fresh.begin(trace.prompt_ids)
        fresh.extend(known[len(trace.prompt_ids) :])
        assert bit == (fresh.draft((), 1, True).ids == (text[len(known)],))
    assert 0 < sum(found) < len(found) == len(trace.output_ids) - 1


def test_where_nothing_is_drafted_nothing_is_right() -> None:
    assert not any(position_bits(trace_of(5, 20), NoDrafter()))
