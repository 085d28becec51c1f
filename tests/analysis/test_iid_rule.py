"""The data rule, applicability, Holm and size, naive rules among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.iid import (
    TESTS,
    IidResult,
    NotApplicable,
    Study,
    depth_1_study,
    given_study,
    holm,
    ruled_study,
    run_test,
    run_tests,
)
from analysis.iid_bits import (
    bits_of_rounds,
    first_bits,
    open_study,
    parse_rounds,
    round_outside,
    ruled_len,
)
from engine.errors import ConfigError

Rounds = list[tuple[int, int]]


def decode(bits: Iterable[int], draft_lens: Sequence[int], num_tokens: int) -> Rounds:
    """Depth 1: rounds until exactly `num_tokens` tokens; the last one's k is cut to them.

    The draft length alternates as `draft_lens` says.
    """
    stream, lengths = iter(bits), itertools.cycle(draft_lens)
    rounds: Rounds = []
    left = num_tokens
    while left:
        draft_len = min(next(lengths), left)
        accepted_len = 0
        while accepted_len < draft_len and next(stream):
            accepted_len += 1
        rounds.append((draft_len, accepted_len))
        left -= min(accepted_len + 1, left)
    return rounds


@pytest.mark.parametrize(
    ("num_committed", "k_min", "k_max", "expected"),
    [
        (95, 8, 8, 78),  # ⌈87 · 8 / 9⌉ = ⌈77.3⌉
        (98, 8, 8, 80),  # 90 · 8 / 9, no rounding
        (95, 8, 16, 71),  # ⌈79 · 8 / 9⌉ = ⌈70.2⌉
        (8, 8, 8, 0),
        (3, 8, 8, 0),
        (9, 8, 8, 1),
        (0, 1, 1, 0),
    ],
)
def test_number_of_bits(num_committed: int, k_min: int, k_max: int, expected: int) -> None:
    """Catches a rule rounded the other way or one round off."""
    assert ruled_len(num_committed, k_min, k_max) == expected


def test_impossible_lengths_are_refused() -> None:
    """Catches a rule for an arm without drafts."""
    for k_min, k_max in ((0, 8), (9, 8)):
        with pytest.raises(ConfigError, match="K_min"):
            ruled_len(90, k_min, k_max)


@given(
    st.lists(st.integers(0, 1), min_size=200, max_size=200),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 100),
)
def test_the_first_bits_always_exist(
    bits: list[int], draft_lens: list[int], num_tokens: int
) -> None:
    """Catches an n that some text cannot fill: then the sample would depend on the stop."""
    rounds = decode(bits, draft_lens, num_tokens)
    found = bits_of_rounds(rounds)
    num_bits = ruled_len(num_tokens, min(draft_lens), max(draft_lens))
    assert first_bits(found, num_bits) == bits_between_bonus(bits, rounds)[:num_bits]
    study = depth_1_study([rounds])
    assert study.kind == "open" or len(study.bits[0]) <= len(found)


def bits_between_bonus(bits: list[int], rounds: Rounds) -> list[int]:
    """The text's own bits: what `decode` consumed, in order."""
    return bits[: sum(a + (a < k) for k, a in rounds)]


def test_fewer_bits_are_an_error() -> None:
    """Catches a silently shorter sample, and an error that does not say which request."""
    with pytest.raises(ConfigError, match=r"3 tested bits.* first 4"):
        first_bits([1, 1, 0], 4)
    whole = [1] * 80
    with pytest.raises(ConfigError, match="request 2: 5 tested bits"):
        ruled_study([whole, whole[:5]], [90, 90], 8, 8, [])


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(1, 5))
def test_parse_and_bits_are_inverse(bits: list[int], draft_len: int) -> None:
    """Catches an incomplete last round counted, or a bit lost."""
    rounds = parse_rounds(bits, draft_len)
    found = bits_of_rounds(rounds)
    rest = bits[len(found) :]
    assert bits[: len(found)] == found
    assert all(rest) and len(rest) < draft_len
    assert all(k == draft_len for k, _ in rounds)


def test_log_at_depth_1() -> None:
    """Catches K taken from a cut round, k = 0 kept, or N counted otherwise."""
    study = depth_1_study([[(8, 8), (0, 0), (8, 3), (8, 8), (2, 2)], [(8, 0), (8, 8), (5, 1)]])
    assert (study.kind, study.draft_len) == ("fixed", 8)
    # N = 9 + 4 + 9 + 3 = 25: ⌈17 · 8 / 9⌉ = 16 bits; N = 1 + 9 + 2 = 12: ⌈4 · 8 / 9⌉ = 4 bits.
    assert study.bits == [[1] * 11 + [0] + [1] * 4, [0, 1, 1, 1]]
    assert study.rounds == [[(8, 8), (8, 3)], [(8, 0)]]
    assert study.all_rounds[0] == [(8, 8), (8, 3), (8, 8), (2, 2)]


def test_varying_lengths_are_bounded() -> None:
    """Catches a test on rounds of an adaptive arm."""
    study = depth_1_study([[(8, 8), (16, 16), (16, 3), (8, 8), (8, 2), (8, 1)]])
    assert (study.kind, study.draft_len) == ("bounded", None)
    outcomes = run_tests(study)
    applicable = {name for name, found in outcomes.items() if isinstance(found, IidResult)}
    assert applicable == {"stream_runs", "between_requests", "context_e"}
    longer_last = depth_1_study([[(8, 8), (8, 3), (16, 16)]])
    assert longer_last.kind == "bounded"


def test_unbounded_lengths_have_evidence_only() -> None:
    """Catches a p-value where no reference set holds."""
    for study in (open_study([[(3, 1), (60, 60)]]), depth_1_study([[(8, 8)], [(3, 1)]])):
        outcomes = run_tests(study)
        refused = {name for name, found in outcomes.items() if isinstance(found, NotApplicable)}
        assert refused == outcomes.keys() - {"context_e"}


def test_unequal_frames_are_found() -> None:
    """Catches an arm taken for fixed: k ≠ K before the last K tokens."""
    rounds = [(8, 8), (8, 2), (8, 8), (4, 4)]
    assert round_outside(rounds, [9, 3, 9, 4], 8, 8) is None
    assert round_outside([(8, 8), (3, 2), (8, 8), (4, 4)], [9, 3, 9, 4], 8, 8) == 1
    assert round_outside([(8, 8), (0, 0), (8, 8)], [9, 1, 9], 8, 8) == 1


def test_frames_outside_an_adaptive_arms_limits_are_found() -> None:
    """Catches an arm whose drafter falls short taken for one of bounded draft lengths."""
    rounds = [(8, 8), (16, 16), (16, 2), (8, 8), (3, 3)]
    committed = [9, 17, 3, 9, 4]
    assert round_outside(rounds, committed, 8, 16) is None
    assert round_outside([(7, 7), *rounds[1:]], committed, 8, 16) == 0
    assert round_outside([(8, 8), (17, 16), *rounds[2:]], committed, 8, 16) == 1
    # Of the 42 tokens the last 16 start with the round at 29: its k may be anything.
    assert round_outside([*rounds[:3], (2, 2), (3, 3)], committed, 8, 16) is None


def test_holm_by_hand() -> None:
    """Catches a procedure that goes on after the first failure, or divides by the wrong rank."""
    rows = holm({"b": 0.004, "a": 0.001, "c": 0.02, "d": 0.001}, level=0.01)
    assert [rows[name].rejected for name in "abcd"] == [True, True, False, True]
    assert [rows[name].level for name in "abcd"] == pytest.approx([0.0025, 0.005, 0.01, 0.01 / 3])
    assert [rows[name].adjusted_p for name in "abcd"] == pytest.approx([0.004, 0.008, 0.02, 0.004])
    stopped = holm({"a": 0.004, "b": 0.004, "c": 0.004}, level=0.01)
    assert not any(row.rejected for row in stopped.values())
    assert holm({}) == {}


NUM_STUDIES, NUM_REQUESTS, NUM_TOKENS, LEVEL = 200, 20, 40, 0.05
LIMIT = LEVEL + 3 * (LEVEL * (1 - LEVEL) / NUM_STUDIES) ** 0.5


def simulated(alpha: float, draft_lens: Sequence[int] = (8,)) -> Iterator[list[Rounds]]:
    """I.i.d. studies of requests with `NUM_TOKENS` tokens each."""
    generator = np.random.default_rng(20_240)
    for _ in range(NUM_STUDIES):
        bits = (generator.random((NUM_REQUESTS, 2 * NUM_TOKENS)) < alpha).astype(int).tolist()
        yield [decode(request, draft_lens, NUM_TOKENS) for request in bits]


def ruled(study: list[Rounds], k_max: int = 8) -> Study:
    """The data rule, N known."""
    bits = [bits_of_rounds(request) for request in study]
    return ruled_study(bits, [NUM_TOKENS] * NUM_REQUESTS, 8, k_max, study)


def rejected_share(studies: Sequence[Study], test: str) -> float:
    """Share of studies rejected at LEVEL."""
    outcomes = [run_test(test, study, num_draws=199) for study in studies]
    p_values = [found.p for found in outcomes if isinstance(found, IidResult)]
    assert len(p_values) == len(studies)
    return sum(p <= LEVEL for p in p_values) / len(p_values)


@pytest.mark.parametrize("test", TESTS)
def test_size_of_the_data_rule(test: str) -> None:
    """Catches a rule under which a true null is rejected too often."""
    assert rejected_share([ruled(study) for study in simulated(0.8)], test) <= LIMIT


@pytest.mark.parametrize("test", ["stream_runs", "between_requests", "context_e"])
def test_size_with_two_draft_lengths(test: str) -> None:
    """As above for an arm with bounded k."""
    studies = [ruled(study, k_max=16) for study in simulated(0.9, (8, 16, 16))]
    assert rejected_share(studies, test) <= LIMIT


def test_size_of_the_log_rule() -> None:
    """Catches a log read so that a true null is rejected too often; N is Σ(a + 1) there."""
    studies = [depth_1_study(study) for study in simulated(0.8)]
    assert rejected_share(studies, "stream_runs") <= LIMIT


def test_naive_rules_fail() -> None:
    """Shows why the rule is there: a true null is rejected where the stop decides what is tested.

    All bits of all rounds but the cut one; all bits, the cut round taken for a refused one.
    """
    whole = [given_study([request[:-1] for request in study]) for study in simulated(0.8)]
    assert rejected_share(whole, "stream_runs") > 0.15 > LIMIT
    refused = [
        given_study([[(8, a) for _, a in request] for request in study]) for study in simulated(0.9)
    ]
    assert rejected_share(refused, "stream_runs") > 0.3
    assert rejected_share(refused, "full_excess") > 0.3
