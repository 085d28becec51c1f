"""Simulated studies: the stop, mean acceptance held, decisions that draws settle."""

from __future__ import annotations

import random

import numpy as np
import pytest

from analysis.iid import TESTS, IidResult, run_test
from analysis.iid_bits import bits_of_rounds, ruled_study
from analysis.iid_power import (
    EFFECTS,
    PowerInputs,
    SizeInputs,
    generator_of,
    power_study,
    rejections,
    share_interval,
    size_limit,
    size_study,
)
from analysis.iid_result import drawn_until, enough_for
from analysis.iid_simulation import (
    FAMILIES,
    LengthRule,
    Text,
    chances_of,
    drawn_study,
    pipelined_rounds,
)

TEXTS = tuple(Text(length, length % 2 == 0) for length in range(40, 70))


@pytest.mark.parametrize("ends_unforeseen", [True, False])
def test_two_ways_to_decode_at_depth_1_agree(ends_unforeseen: bool) -> None:
    """Catches a vectorised stop or cut that differs from the round by round one."""
    generator = np.random.default_rng(5)
    text = Text(50, ends_unforeseen)
    study = drawn_study(generator, chances_of("within rounds", 0.8, 0.0, 8), (text,) * 40, 8)
    for rounds in study.all_rounds:
        fates = iter(bits_of_rounds(rounds))
        again = pipelined_rounds(lambda fates=fates: bool(next(fates)), text, LengthRule(8, 8), 1)
        assert [pair for pair in again if pair[0]] == list(rounds)
        assert next(fates, None) is None


def test_a_budget_leaves_its_last_position_undrafted() -> None:
    """As the engine does: the reply before it brings its token."""
    budget = pipelined_rounds(lambda: True, Text(10, False), LengthRule(8, 8), 1)
    assert budget == [(8, 8), (0, 0)]
    over = pipelined_rounds(lambda: True, Text(10, True), LengthRule(8, 8), 1)
    assert over == [(8, 8), (1, 1)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("alpha", [0.4, 0.66, 0.9])
def test_mean_acceptance_is_held(family: str, alpha: float) -> None:
    """Catches power that comes from a different α rather than from the effect."""
    for effect in EFFECTS[family]:
        generator = generator_of(family, alpha, effect)
        chances = chances_of(family, alpha, effect, 8)
        # By request, as bits of a request depend on each other.
        shares = []
        for _ in range(60):
            study = drawn_study(generator, chances, TEXTS, 8)
            bits = [bit for stream in study.bits for bit in stream]
            shares.append(sum(bits) / len(bits))
        error = np.std(shares) / np.sqrt(len(shares))
        assert abs(np.mean(shares) - alpha) < 4.5 * error + 0.004, (effect, np.mean(shares))


def test_families_depart_as_they_say() -> None:
    """Catches an effect that is not there, or in the wrong place."""
    shape = (2000, 30, 8)
    generator = np.random.default_rng(1)
    rising = chances_of("within rounds", 0.6, 0.4, 8)(generator, shape)[0, 0]
    logits = np.log(rising / (1 - rising))
    assert np.diff(logits) == pytest.approx([0.4] * 7)
    regimes = chances_of("between rounds", 0.6, 1.0, 8)(generator, shape)[:, :, 0]
    logits = np.log(regimes / (1 - regimes))
    assert logits.max() - logits.min() == pytest.approx(2.0)
    switched = (np.abs(np.diff(logits, axis=1)) > 1).mean()
    assert switched == pytest.approx(0.2, abs=0.01)
    # By tested bits: a round of the high regime tests 4.5 times as many as one of the low.
    assert 0.6 < (logits[:, 0] == logits.max()).mean() < 0.85
    prompts = chances_of("between prompts", 0.6, 0.1, 8)(generator, shape)[:, 0, 0]
    assert prompts.var() / (0.6 * 0.4) == pytest.approx(0.1, abs=0.015)


@pytest.mark.parametrize(("effect", "expected"), [(0.0, False), (2.0, True)])
def test_a_decision_is_that_of_all_draws(effect: float, expected: bool) -> None:
    """Catches draws that stop early on the wrong side of the level, or are never asked for."""
    study = drawn_study(
        generator_of("decided", effect), chances_of("between rounds", 0.7, effect, 8), TEXTS, 8
    )
    level, num_draws = 0.05, 399
    decided = rejections(study, level, num_draws)
    methods = set()
    for test in TESTS:
        found = run_test(test, study, num_draws)
        assert isinstance(found, IidResult)
        is_drawn = found.method.startswith("Monte Carlo")
        if not (is_drawn and level / 4 < found.p < 4 * level):  # else other draws may differ
            assert decided[test] == (found.p <= level)
            methods.add(found.method.partition(",")[0])
    assert "Monte Carlo" in methods and len(methods) > 2
    assert decided["serial_product"] == expected


def test_enough_is_the_fewest_draws_that_settle_it() -> None:
    """At 1,999 draws and Holm's entry level of six tests at 0.01, p ≤ level means 2 at most."""
    assert enough_for(0.01 / 6, 1999) == 3
    for level in (0.01, 0.05, 0.29, 0.3):
        enough = enough_for(level, 99)
        assert (enough + 1) / 100 > level >= enough / 100


@pytest.mark.parametrize("level", [0.01, 0.05, 0.3])
def test_stopping_settles_what_all_draws_would(level: float) -> None:
    """The same stream of draws, stopped or not, is on the same side of the level."""
    num_draws = 199
    enough = enough_for(level, num_draws)
    for seed in range(300):
        chance = random.Random(seed).choice([0.0, level / 2, level, 2 * level, 0.6])
        stream = np.random.default_rng(seed).random(num_draws) < chance
        places = iter(stream.tolist())
        stopped = drawn_until(
            0, lambda count, places=places: sum(next(places) for _ in range(count)), num_draws,
            enough,
        )  # fmt: skip
        whole = (int(stream.sum()) + 1) / (num_draws + 1)
        assert (stopped.p <= level) == (whole <= level)


def test_a_study_is_a_function_of_its_number() -> None:
    """Catches results that hang on how the work was shared out."""
    inputs = PowerInputs(TEXTS[:8], 8, 0.7, 0.05, num_draws=99)
    again = [power_study(inputs, "between rounds", 1.0, idx) for idx in (3, 1, 3)]
    assert again[0] == again[2] and set(again[0]) == set(TESTS)
    sizes = SizeInputs(num_requests=4, num_draws=99)
    first = size_study(sizes, 0.8, LengthRule(8, 16), 4, 0)
    assert first == size_study(sizes, 0.8, LengthRule(8, 16), 4, 0)
    assert set(first) == {"stream_runs", "between_requests", "context_e"}
    assert set(size_study(sizes, 0.8, LengthRule(8, 8), 4, 0)) == set(TESTS)


def test_digests_follow_every_input() -> None:
    """Catches a committed table that is read although its inputs changed."""
    inputs = PowerInputs(TEXTS, 8, 0.7, 0.05)
    others = [
        PowerInputs(TEXTS[1:], 8, 0.7, 0.05),
        PowerInputs(TEXTS, 9, 0.7, 0.05),
        PowerInputs(TEXTS, 8, 0.71, 0.05),
        PowerInputs(TEXTS, 8, 0.7, 0.04),
        PowerInputs(TEXTS, 8, 0.7, 0.05, num_studies=1),
        PowerInputs(TEXTS, 8, 0.7, 0.05, num_draws=1),
    ]
    assert len({inputs.digest(), *(other.digest() for other in others)}) == len(others) + 1
    assert SizeInputs().digest() != SizeInputs(budget=65).digest()


def test_shares_and_limits() -> None:
    assert share_interval(0, 10) == pytest.approx((0.0, 0.0, 0.3085), abs=1e-4)
    assert share_interval(5, 10) == pytest.approx((0.5, 0.1871, 0.8129), abs=1e-4)
    assert size_limit(0.05, 1000) == pytest.approx(0.0706761, abs=1e-6)


def test_size_at_depth_4_through_the_data_rule() -> None:
    """Catches a data rule that holds at depth 1 only."""
    generator = np.random.default_rng(2)
    rejected = 0
    for _ in range(120):
        rounds, texts = [], []
        for _ in range(12):
            text = Text(int(generator.integers(20, 50)), bool(generator.random() < 0.5))
            fates = iter((generator.random(150) < 0.85).tolist())
            rounds.append(
                pipelined_rounds(lambda fates=fates: next(fates), text, LengthRule(8, 8), 4)
            )
            texts.append(text.num_committed)
        study = ruled_study([bits_of_rounds(r) for r in rounds], texts, 8, 8, rounds)
        found = run_test("stream_runs", study)
        rejected += isinstance(found, IidResult) and found.p <= 0.05
    assert rejected / 120 <= size_limit(0.05, 120)
