"""What holds of every study: p in (0, 1], no order of requests, E-values with expectation ≤ 1."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.iid import (
    IidResult,
    NotApplicable,
    Study,
    context_e,
    given_study,
    match_e,
    run_test,
    run_tests,
)
from analysis.iid_evidence import depth_counts, last_counts

Rounds = tuple[tuple[int, int], ...]

any_round = st.integers(0, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))
equal_round = st.tuples(st.just(4), st.integers(0, 4))
any_study = st.lists(st.lists(any_round, min_size=1, max_size=6), min_size=1, max_size=4)
equal_study = st.lists(st.lists(equal_round, min_size=1, max_size=30), min_size=1, max_size=4)
ORDER_FREE = ("depth_rise", "serial_product", "stream_runs", "full_excess", "between_requests")


@given(any_study | equal_study)
@settings(max_examples=60)
def test_p_is_a_probability(requests: list[list[tuple[int, int]]]) -> None:
    """Catches p = 0, p > 1, and a p printed without its method."""
    for found in run_tests(given_study(requests), num_draws=99).values():
        if isinstance(found, NotApplicable):
            assert found.reason
            continue
        assert 0 < found.p <= 1
        assert found.method
        if found.p_exact is not None:
            assert 0 < found.p_exact <= 1


@given(any_study | equal_study, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_order_of_requests_changes_nothing(
    requests: list[list[tuple[int, int]]], dice: random.Random
) -> None:
    """Catches a merge, a draw or a seed that depends on the order of requests."""
    shuffled = list(requests)
    dice.shuffle(shuffled)
    first = run_tests(given_study(requests), num_draws=99)
    second = run_tests(given_study(shuffled), num_draws=99)
    for test in ORDER_FREE:
        assert first[test] == second[test], test
    for part in ("depth", "last"):
        one, other = first["context_e"], second["context_e"]
        if isinstance(one, IidResult) and isinstance(other, IidResult):
            assert one.parts is not None
            assert other.parts is not None
            assert one.parts[part] == pytest.approx(other.parts[part], rel=1e-12)


@pytest.mark.parametrize("test", ORDER_FREE)
def test_order_of_requests_changes_no_float_and_no_draw(test: str) -> None:
    """As above where sizes ask for float64 and for draws."""
    dice = random.Random(7)
    for num_rounds in (70, 260):
        requests = [[(4, dice.randint(0, 3)) for _ in range(num_rounds + n)] for n in range(3)]
        first = run_test(test, given_study(requests), num_draws=199)
        second = run_test(test, given_study(requests[::-1]), num_draws=199)
        assert first == second
        assert isinstance(first, IidResult)
        assert first.p_exact is None


def test_nothing_in_a_study_is_changed() -> None:
    """Catches a test that sorts or cuts its input in place."""
    requests = [[(4, 4), (4, 0), (4, 2)], [(4, 1), (4, 4)]]
    study = given_study(requests)
    before = repr(study)
    run_tests(study)
    assert repr(study) == before


def streams_of(
    alpha: float, draft_len: Callable[[Rounds], int], stops: Callable[[Rounds], bool]
) -> Iterator[tuple[Rounds, float]]:
    """Every request that a policy and a stopping rule allow, with its probability."""
    growing: list[tuple[Rounds, float]] = [((), 1.0)]
    while growing:
        rounds, chance = growing.pop()
        if stops(rounds):
            yield rounds, chance
            continue
        k = draft_len(rounds)
        for accepted_len in range(k + 1):
            ending = 1.0 if accepted_len == k else 1 - alpha
            growing.append(((*rounds, (k, accepted_len)), chance * alpha**accepted_len * ending))


def fixed(rounds: Rounds) -> int:
    return 3


def two_state(rounds: Rounds) -> int:
    return 4 if rounds and rounds[-1][0] == rounds[-1][1] else 2


def three_rounds(rounds: Rounds) -> bool:
    return len(rounds) == 3


def six_tokens(rounds: Rounds) -> bool:
    return sum(a + 1 for _, a in rounds) >= 6


def first_refusal(rounds: Rounds) -> bool:
    """A stopping rule that looks at the outcome: the worst for a test on all bits."""
    return len(rounds) == 4 or any(a == 0 for _, a in rounds)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("policy", [fixed, two_state])
@pytest.mark.parametrize("stops", [three_rounds, six_tokens, first_refusal])
def test_evidence_expects_at_most_1(
    alpha: float, policy: Callable[[Rounds], int], stops: Callable[[Rounds], bool]
) -> None:
    """Catches a numerator that is no probability: E of every part over all outcomes, enumerated."""
    total = 0.0
    expected = dict.fromkeys(("depth", "last", "request", "mean"), 0.0)
    for rounds, chance in streams_of(alpha, policy, stops):
        found = context_e([rounds])
        assert isinstance(found, IidResult)
        assert found.parts is not None
        total += chance
        for part, evidence in {**found.parts, "mean": float(found.statistic)}.items():
            expected[part] += chance * evidence
    assert total == pytest.approx(1)
    assert all(0 < evidence <= 1 + 1e-12 for evidence in expected.values())


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_evidence_of_two_requests_expects_at_most_1(alpha: float) -> None:
    """As above where the second request is judged by the first."""

    def two_rounds(rounds: Rounds) -> bool:
        return len(rounds) == 2

    outcomes = list(streams_of(alpha, fixed, two_rounds))
    expected = [0.0, 0.0]
    for (one, chance), (other, other_chance) in itertools.product(outcomes, repeat=2):
        contexts, matches = context_e([one, other]), match_e([matched(one), matched(other)])
        assert isinstance(contexts, IidResult)
        assert isinstance(matches, IidResult)
        expected[0] += chance * other_chance * float(contexts.statistic)
        expected[1] += chance * other_chance * float(matches.statistic)
    assert all(0 < evidence <= 1 + 1e-12 for evidence in expected)


def matched(rounds: Rounds) -> list[tuple[int, int, int]]:
    """Match lengths known before the draft: what the last round accepted, trebled."""
    before = [0, *(3 * a for _, a in rounds)]
    return [(k, a, match_len) for (k, a), match_len in zip(rounds, before, strict=False)]


def test_contexts_by_hand() -> None:
    """Catches a draft or a round put in the wrong context."""
    requests = [[(8, 8), (8, 2), (8, 0), (8, 5), (3, 3)], [(8, 4)]]
    assert depth_counts(requests) == {0: (5, 1), 1: (5, 0), 2: (7, 1), 3: (5, 2)}
    assert last_counts(requests) == {
        "none": (12, 1),
        "all": (2, 1),
        "some": (3, 1),
        "nothing": (5, 1),
    }


def test_match_evidence_by_hand() -> None:
    """Catches wrong limits of {0}, {1, 2}, {3 … 7}, {≥ 8}, or another mixture."""

    def mixture(ones: int, zeros: int) -> float:
        log_beta = (
            math.lgamma(ones + 0.5) + math.lgamma(zeros + 0.5) - math.lgamma(ones + zeros + 1)
        )
        return math.exp(log_beta) / math.pi

    request = [(8, 0, 0), (8, 1, 1), (8, 3, 2), (8, 2, 3), (8, 8, 7), (8, 8, 8), (8, 7, 99)]
    found = match_e([request[:3], request[3:]])
    assert isinstance(found, IidResult)
    numerator = mixture(0, 1) * mixture(4, 2) * mixture(10, 1) * mixture(15, 1)
    best = (29 / 34) ** 29 * (5 / 34) ** 5
    assert found.statistic == pytest.approx(numerator / best)
    assert found.p == min(1, 1 / float(found.statistic))
    assert isinstance(match_e([[], [(0, 0, 4)]]), NotApplicable)


def test_match_length_that_predicts_is_evidence() -> None:
    """Catches evidence of the wrong sign."""
    telling = [(8, 8, 12) if idx % 2 else (8, 0, 1) for idx in range(60)]
    silent = [
        (8, 8, 1 + idx // 2 % 2 * 9) if idx % 2 else (8, 0, 1 + idx // 2 % 2 * 9)
        for idx in range(60)
    ]
    strong, weak = match_e([telling]), match_e([silent])
    assert isinstance(strong, IidResult)
    assert isinstance(weak, IidResult)
    assert strong.p < 1e-6 < weak.p == 1


def test_endless_evidence_stays_a_number() -> None:
    """Catches an E-value beyond float64 that becomes infinite, or p = 0."""
    request = [(8, 8)] * 2_000 + [(8, 0)] * 2_000
    found = context_e([request, request[:10]])
    assert isinstance(found, IidResult)
    assert math.isfinite(float(found.statistic))
    assert 0 < found.p < 1e-300


def test_clumps_are_found() -> None:
    """Catches sides mixed up: what each test looks for has a small p, its opposite a large one."""
    clumped: Sequence[tuple[int, int]] = [(4, 4)] * 6 + [(4, 0)] * 6
    spread: Sequence[tuple[int, int]] = [(4, 2)] * 12

    def p_of(test: str, study: Study) -> float:
        found = run_test(test, study)
        assert isinstance(found, IidResult)
        return found.p

    for test in ("serial_product", "stream_runs", "full_excess"):
        assert p_of(test, given_study([clumped])) < 0.05, test
        assert p_of(test, given_study([spread])) > 0.5, test
    rising = [(4, 0)] * 6 + [(4, 3)] * 4
    assert (
        p_of("depth_rise", given_study([rising])) < 0.05 < p_of("depth_rise", given_study([spread]))
    )
    apart, alike = [clumped[:6], clumped[6:]], [spread[:6], spread[6:]]
    assert p_of("between_requests", given_study(apart)) < 0.05
    assert p_of("between_requests", given_study(alike)) == 1
