"""The exact tests against golden values and against counting every member of the reference set.

The enumeration here shares no code with `analysis`: it lists members and compares, nothing else.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analysis.iid import (
    IidResult,
    NotApplicable,
    between_requests,
    depth_rise,
    full_excess,
    given_study,
    run_tests,
    serial_product,
    stream_runs,
)

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "acceptance_tests.json").read_text(encoding="utf-8")
)
Rounds = tuple[tuple[int, int], ...]
Law = Counter[int]


def as_study(requests: Iterable[Iterable[Sequence[int]]]) -> list[list[tuple[int, int]]]:
    return [[(row[0], row[1]) for row in request] for request in requests]


@pytest.mark.parametrize(
    ("case", "test"),
    [
        pytest.param(case, test, id=f"{case['name']}-{test}")
        for case in GOLDEN
        for test in case["expect"]
    ],
)
def test_golden(case: dict[str, Any], test: str) -> None:
    """Catches any change of a statistic, a reference set, a side or a p-value."""
    found = run_tests(given_study(as_study(case["requests"])))[test]
    expected = case["expect"][test]
    assert isinstance(found, IidResult)
    if test == "context_e":
        assert found.statistic == pytest.approx(expected["statistic"], rel=1e-10)
        assert found.p == pytest.approx(expected["p"], rel=1e-10)
        assert found.parts == pytest.approx(expected["parts"], rel=1e-10)
        return
    assert found.statistic == Fraction(expected["statistic"])
    assert found.p_exact == Fraction(expected["p"])
    assert found.p == float(found.p_exact)
    assert found.method == "exact integers"


def test_golden_file_is_whole() -> None:
    """Catches a golden file that lost cases or tests."""
    assert len(GOLDEN) == 8
    assert sum(len(case["expect"]) for case in GOLDEN) == 44


def test_full_excess_needs_one_draft_length() -> None:
    """Catches a full-round test on drafts of different lengths."""
    for requests in ([[(3, 3), (2, 1)]], [[(3, 3)], [(2, 2)]]):
        assert isinstance(run_tests(given_study(requests))["full_excess"], NotApplicable)
    with_empty = run_tests(given_study([[(3, 3), (0, 0), (3, 1)]]))["full_excess"]
    assert isinstance(with_empty, IidResult)


def members_convolved(laws: Iterable[Law]) -> Law:
    total: Law = Counter({0: 1})
    for law in laws:
        merged: Law = Counter()
        for left, right in itertools.product(total, law):
            merged[left + right] += total[left] * law[right]
        total = merged
    return total


def share(law: Law, counts: Callable[[int], bool]) -> Fraction:
    return Fraction(sum(law[value] for value in law if counts(value)), law.total())


@cache
def depth_law(limits: tuple[int, ...], total: int, refusals: int) -> Law:
    law: Law = Counter()
    for lengths in itertools.product(*(range(limit + 1) for limit in limits)):
        refused = sum(length < limit for length, limit in zip(lengths, limits, strict=True))
        if sum(lengths) == total and refused == refusals:
            law[sum(length * (length + 1) // 2 for length in lengths)] += 1
    return law


@cache
def stream_orders(ones: int, zeros: int) -> list[tuple[int, ...]]:
    streams = itertools.product((0, 1), repeat=ones + zeros)
    return [stream for stream in streams if sum(stream) == ones]


def runs_in(stream: Sequence[int]) -> int:
    return len(list(itertools.groupby(stream)))


def full_rounds_in(stream: Sequence[int], draft_len: int) -> int:
    stretches = "".join(map(str, stream)).split("0")
    return sum(len(stretch) // draft_len for stretch in stretches)


def bits_of(request: Rounds) -> list[int]:
    return [bit for k, a in request for bit in [1] * a + [0] * (a < k)]


def brute_depth(requests: Sequence[Rounds]) -> Fraction:
    laws = [
        depth_law(
            tuple(sorted(k for k, _ in request)),
            sum(a for _, a in request),
            sum(a < k for k, a in request),
        )
        for request in requests
    ]
    seen = sum(a * (a + 1) // 2 for request in requests for _, a in request)
    return share(members_convolved(laws), lambda value: value >= seen)


def brute_serial(requests: Sequence[Rounds]) -> Fraction:
    def product(lengths: Sequence[int]) -> int:
        return sum(lengths[idx] * lengths[idx + 1] for idx in range(len(lengths) - 1))

    lengths = [[a for _, a in request] for request in requests]
    laws = [Counter(map(product, itertools.permutations(one))) for one in lengths]
    seen = sum(map(product, lengths))
    return share(members_convolved(laws), lambda value: value >= seen)


def brute_runs(streams: Sequence[Sequence[int]]) -> Fraction:
    laws = [Counter(map(runs_in, stream_orders(sum(one), len(one) - sum(one)))) for one in streams]
    seen = sum(map(runs_in, streams))
    return share(members_convolved(laws), lambda value: value <= seen)


def brute_full(streams: Sequence[Sequence[int]], draft_len: int) -> Fraction:
    laws = [
        Counter(
            full_rounds_in(order, draft_len)
            for order in stream_orders(sum(one), len(one) - sum(one))
        )
        for one in streams
    ]
    seen = sum(full_rounds_in(one, draft_len) for one in streams)
    return share(members_convolved(laws), lambda value: value >= seen)


def brute_between(streams: Sequence[Sequence[int]]) -> Fraction:
    def spread(pool: Sequence[int]) -> Fraction:
        total, start = Fraction(0), 0
        for one in streams:
            total += Fraction(sum(pool[start : start + len(one)]) ** 2, len(one))
            start += len(one)
        return total

    pool = [bit for one in streams for bit in one]
    seen = spread(pool)
    orders = stream_orders(sum(pool), len(pool) - sum(pool))
    return Fraction(sum(spread(order) >= seen for order in orders), len(orders))


def p_exact(found: IidResult | NotApplicable) -> Fraction | None:
    assert isinstance(found, IidResult)
    return found.p_exact


def all_requests(max_rounds: int, max_draft_len: int) -> list[Rounds]:
    rounds = [(k, a) for k in range(1, max_draft_len + 1) for a in range(k + 1)]
    return [
        request
        for num_rounds in range(1, max_rounds + 1)
        for request in itertools.product(rounds, repeat=num_rounds)
    ]


def check_rounds(requests: Sequence[Rounds]) -> None:
    streams = [bits_of(request) for request in requests]
    assert p_exact(depth_rise(requests)) == brute_depth(requests), requests
    assert p_exact(serial_product(requests)) == brute_serial(requests), requests
    assert p_exact(stream_runs(streams)) == brute_runs(streams), requests
    assert p_exact(between_requests(streams)) == brute_between(streams), requests


def test_every_small_request() -> None:
    """Catches a wrong reference set in any request of up to 3 rounds with k ≤ 3, mixed or not."""
    for request in all_requests(3, 3):
        check_rounds([request])


def test_every_small_pair_of_requests() -> None:
    """Catches requests convolved wrongly: every pair of requests of up to 2 rounds with k ≤ 2."""
    for pair in itertools.combinations_with_replacement(all_requests(2, 2), 2):
        check_rounds(pair)


def test_every_request_of_five_equal_rounds() -> None:
    """Catches a wrong refusal table where all rounds have the same k: 5 rounds, k = 3."""
    for lengths in itertools.combinations_with_replacement(range(4), 5):
        request = tuple((3, length) for length in lengths)
        assert p_exact(depth_rise([request])) == brute_depth([request]), lengths
        assert p_exact(serial_product([request])) == brute_serial([request]), lengths


def test_full_rounds_of_every_small_stream() -> None:
    """Catches a wrong count of full rounds, incomplete last rounds among them."""
    for num_bits in range(1, 9):
        for stream in itertools.product((0, 1), repeat=num_bits):
            for draft_len in (1, 2, 3):
                found = full_excess([stream], draft_len)
                assert p_exact(found) == brute_full([stream], draft_len), (stream, draft_len)


def test_full_rounds_of_pairs_of_streams() -> None:
    """Catches streams convolved wrongly."""
    streams = [one for size in (3, 4) for one in itertools.product((0, 1), repeat=size)]
    for pair in itertools.combinations(streams, 2):
        assert p_exact(full_excess(pair, 2)) == brute_full(pair, 2), pair


def test_three_uneven_requests_between() -> None:
    """Catches a statistic that loses exactness where lengths have no common factor."""
    streams = [[1, 1, 0], [1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1, 0]]
    assert p_exact(between_requests(streams)) == brute_between(streams)
    assert math.lcm(3, 5, 7) == 105


def test_nothing_to_test() -> None:
    """Catches a p-value from no bit at all."""
    assert isinstance(depth_rise([[], [(0, 0)]]), NotApplicable)
    assert isinstance(serial_product([]), NotApplicable)
    for test in (stream_runs, between_requests):
        assert isinstance(test([[]]), NotApplicable)
    assert isinstance(full_excess([], 8), NotApplicable)
    assert all(isinstance(one, NotApplicable) for one in run_tests(given_study([[]])).values())
