"""Pathwise sampling: the stream of the noise, the candidates, the distribution, the refusals.

Catches an id that depends on more than its row, position and parameters, and a distribution that is
not the softmax's. Streams are fixed, so every comparison has one outcome; each was designed to
raise a false alarm in at most `FALSE_ALARM` of streams, 30 comparisons in 3e-5 of them. With
`NUM_DRAWS` draws and 10 ids a shift of 6 % of every probability is seen in 99 of 100 streams.
"""

from __future__ import annotations

import decimal
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from engine.errors import ConfigError, JobError
from engine.model import sampling
from engine.model.sampling import (
    SamplingParams,
    candidate_ids,
    greedy_ids,
    noise_uniforms,
)

FALSE_ALARM = 1e-6
NUM_DRAWS = 20_000
SEED = 0x0123_4567_89AB_CDEF
PLAIN = SamplingParams(temperature=1.0, seed=SEED)
# few levels, so that ties are common
LOGITS = st.sampled_from([-math.inf, -50.0, -1.5, -1e-40, -0.0, 0.0, 0.25, 1.0, 2.0, 30.0])
ROWS = st.lists(st.floats(-30, 30, width=32) | LOGITS, min_size=1, max_size=40).filter(
    lambda row: max(row) > -math.inf
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.01, 100),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 2**64 - 1),
)
POSITIONS = st.integers(1, 2**40)


def sample_ids(logits, first: int, params: SamplingParams) -> list[int]:
    """Of consecutive positions."""
    return sampling.sample_ids(logits, range(first, first + len(logits)), params)


def one_row(values) -> torch.Tensor:
    return torch.tensor([list(values)], dtype=torch.float32)


def candidates(row, **limits) -> list[int]:
    params = SamplingParams(**{"temperature": 1.0, **limits})
    return candidate_ids(np.array(row, dtype=np.float32), params).tolist()


def masses(row, temperature: float) -> list[float]:
    return [math.exp((value - max(row)) / temperature) for value in row]


def plain_candidates(row, params: SamplingParams) -> list[int]:
    """The definition, written as it is said: sort, cut to k, cut to the mass."""
    ids = sorted(range(len(row)), key=lambda idx: (-row[idx], idx))[: params.top_k or None]
    if params.top_p == 1:
        return ids
    mass = masses(row, params.temperature)
    total = math.fsum(mass[idx] for idx in ids)
    for num_kept in range(1, len(ids) + 1):
        held = math.fsum(mass[idx] for idx in ids[:num_kept])
        assume(abs(held - params.top_p * total) > 1e-9 * total)  # rounding may decide there
        if held > params.top_p * total:
            return ids[:num_kept]
    return ids


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 on Python integers, after Salmon et al. 2011."""
    low = 2**64 - 1
    for _ in range(10):
        first, third = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [
            (third >> 64) ^ counter[1] ^ key[0],
            third & low,
            (first >> 64) ^ counter[3] ^ key[1],
            first & low,
        ]
        key = [(key[0] + 0x9E3779B97F4A7C15) & low, (key[1] + 0xBB67AE8584CAA73B) & low]
    return counter


def test_philox_is_the_published_one() -> None:
    """Catches a numpy, or the integers above, that leave the authors' known answers."""
    answers = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    before_zero = np.full(4, 2**64 - 1, dtype=np.uint64)  # numpy steps the counter first
    stream = np.random.Philox(key=np.zeros(2, dtype=np.uint64), counter=before_zero)
    assert stream.random_raw(4).tolist() == answers == philox([0] * 4, [0] * 2)


@settings(deadline=None)
@given(seed=st.integers(0, 2**64 - 1), position=POSITIONS, idx=st.integers(0, 50))
def test_noise_is_the_documented_stream(seed: int, position: int, idx: int) -> None:
    """Catches another key, counter, word order or use of the bits."""
    word = philox([idx // 4 + 1, position, 0, 0], [seed, 0])[idx % 4]
    assert noise_uniforms(seed, position, 51)[idx] == (2 * (word >> 12) + 1) / 2**53


@pytest.mark.parametrize(
    ("seed", "position", "uniforms"),
    [
        (
            SEED,
            1,
            "0x1.00dea38673afcp-3 0x1.0fca94c70974dp-1 0x1.84aac8abda575p-1 0x1.0a1969306a112p-2 "
            "0x1.2f44ba406859bp-1 0x1.f219a587698b3p-1 0x1.48206cd69b625p-1 0x1.f1297dcee2d69p-1",
        ),
        (
            2**64 - 1,
            2047,
            "0x1.3b451aab34c08p-4 0x1.55b14f4894567p-1 0x1.8d823bf4a6058p-4 0x1.5438e5254f065p-1 "
            "0x1.90a545911c0b2p-2 0x1.dcee37e346f9ap-2 0x1.419f5d97806d6p-2 0x1.6306e93d8d0f5p-1",
        ),
    ],
)
def test_golden_uniforms(seed: int, position: int, uniforms: str) -> None:
    """Catches an upgrade that changes the stream, and a length that changes its beginning."""
    for num_ids in (8, 9, 49152):
        first = noise_uniforms(seed, position, num_ids)[:8]
        assert " ".join(value.hex() for value in first.tolist()) == uniforms


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        (SamplingParams(1.0, seed=SEED), [7, 11, 1, 9, 9, 7, 6, 2]),
        (SamplingParams(0.5, seed=9), [7, 2, 7, 2, 4, 9, 7, 2]),
        (SamplingParams(1.0, top_k=3, seed=SEED), [7, 9, 2, 9, 9, 7, 2, 2]),
        (SamplingParams(3.0, top_p=0.5, seed=SEED), [7, 11, 2, 9, 9, 7, 11, 11]),
        (SamplingParams(2.0, top_k=9, top_p=0.8, seed=7), [11, 4, 2, 4, 2, 4, 2, 7]),
    ],
)
def test_golden_ids(params: SamplingParams, ids: list[int]) -> None:
    """Catches a changed rule between the noise and the id."""
    row = torch.arange(12, dtype=torch.float32) * 5 % 12 / 4
    assert sample_ids(row.expand(8, 12), 1, params) == ids


def test_extreme_uniforms_stay_inside() -> None:
    """Catches noise that is infinite: all bits clear and all bits set give neither 0 nor 1."""

    class Words:
        def __init__(self, key, counter) -> None:
            pass

        def random_raw(self, num_ids: int) -> np.ndarray:
            return np.array([0, 2**64 - 1], dtype=np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "Philox", Words)
        assert noise_uniforms(0, 0, 2).tolist() == [2.0**-53, 1 - 2.0**-53]


@settings(deadline=None)
@given(params=PARAMS, position=POSITIONS, cuts=st.sets(st.integers(1, 15)), at=st.integers(0, 15))
def test_ids_depend_on_row_and_position_alone(params, position, cuts, at) -> None:
    """Catches chunks, neighbours, padding or memory layout that change an id."""
    logits = torch.randn(16, 37, generator=torch.Generator().manual_seed(at)) * 3
    ids = sample_ids(logits, position, params)
    bounds = [0, *sorted(cuts), 16]
    chunks = [
        sample_ids(logits[start:end], position + start, params) for start, end in pairwise(bounds)
    ]
    assert [idx for chunk in chunks for idx in chunk] == ids
    others = logits.roll(1, dims=0)
    others[at] = logits[at]
    assert sample_ids(others, position, params)[at] == ids[at]
    assert sample_ids(logits.T.contiguous().T, position, params) == ids


@settings(deadline=None)
@given(row=ROWS, params=PARAMS, position=POSITIONS)
def test_id_is_the_argmax_of_the_definition(row, params, position) -> None:
    """Catches noise given to another id because some ids are no candidates."""
    uniforms = noise_uniforms(params.seed, position, len(row)).tolist()
    scores = {
        idx: row[idx] / params.temperature - math.log(-math.log(uniforms[idx]))
        for idx in plain_candidates(row, params)
    }
    best = max(scores.values())
    assume(sum(score > best - 1e-9 for score in scores.values()) == 1)
    assert sample_ids(one_row(row), position, params) == [max(scores, key=scores.__getitem__)]


@settings(deadline=None)
@given(row=ROWS, params=PARAMS, position=POSITIONS)
def test_restriction_keeps_an_id_that_stays(row, params, position) -> None:
    """Catches a limit that changes the choice although the free choice is still allowed."""
    free = SamplingParams(params.temperature, seed=params.seed)
    (id_free,) = sample_ids(one_row(row), position, free)
    kept = candidate_ids(np.array(row, dtype=np.float32), params).tolist()
    (id_kept,) = sample_ids(one_row(row), position, params)
    assert id_kept in kept
    assert id_kept == id_free or id_free not in kept


def ladder(position: int) -> tuple[torch.Tensor, list[SamplingParams]]:
    """Two ids and 801 neighbouring temperatures, between which the choice changes once."""
    low, high = np.sort(-np.log(-np.log(noise_uniforms(SEED, position, 2))))
    first = int(noise_uniforms(SEED, position, 2).argmin())
    middle = 1 / (high - low)
    steps = [SamplingParams(middle * (1 + idx * 2.0**-52), seed=SEED) for idx in range(-400, 401)]
    return one_row([1.0, 0.0] if first == 0 else [0.0, 1.0]), steps


@pytest.mark.parametrize("position", [1, 2, 3, 4])
def test_near_ties_are_decided_exactly(position: int, monkeypatch) -> None:
    """Catches a choice left to the last bits of a logarithm, which differ between processors."""
    row, steps = ladder(position)
    log = np.log
    with decimal.localcontext(prec=3):
        ids = [sample_ids(row, position, params)[0] for params in steps]
        changes = [idx for idx in range(800) if ids[idx] != ids[idx + 1]]
        assert len(changes) == 1
        for direction in (1, -1):
            monkeypatch.setattr(np, "log", lambda x, by=direction: log(x) * (1 + by * 2e-15))
            assert [sample_ids(row, position, params)[0] for params in steps] == ids


def test_exact_ties_go_to_the_lowest_id(monkeypatch) -> None:
    """Catches the order of candidates, here 2, 1, 0, as the one that breaks ties."""
    uniforms = np.array([0.99, 0.99, 0.01, 0.5])
    monkeypatch.setattr(sampling, "noise_uniforms", lambda seed, position, num_ids: uniforms)
    row = one_row([1e-30, 2e-30, 1.0, -math.inf])  # equal once the largest is subtracted
    assert candidates(row[0].tolist(), top_k=3) == [2, 1, 0]
    assert sample_ids(row, 1, SamplingParams(1.0, top_k=3)) == [0]
    assert sample_ids(row, 1, PLAIN) == [0]


def test_gaps_are_taken_in_float64(monkeypatch) -> None:
    """Catches logits subtracted as float32, where 1 - 2^-30 would be 1."""
    lead = math.exp(-math.exp(2.0**-31 - 1))  # noise of 1 - 2^-31, against a noise of 0
    uniforms = np.array([math.exp(-1), lead])
    monkeypatch.setattr(sampling, "noise_uniforms", lambda seed, position, num_ids: uniforms)
    assert sample_ids(one_row([1.0, 2.0**-30]), 1, PLAIN) == [1]


@settings(deadline=None)
@given(row=ROWS, params=PARAMS)
def test_candidates_are_the_definition_s(row, params) -> None:
    """Catches a set that is too large, too small or empty, or of the wrong ids among equals."""
    kept = candidate_ids(np.array(row, dtype=np.float32), params).tolist()
    expected = plain_candidates(row, params)
    is_ordered = params.top_p < 1 or 0 < params.top_k < len(row)
    assert kept == (expected if is_ordered else sorted(expected))


@settings(deadline=None)
@given(row=st.lists(st.floats(width=32, allow_nan=False) | LOGITS, min_size=2, max_size=50))
def test_order_is_that_of_a_stable_sort(row) -> None:
    """Catches keys that misplace a sign, a zero of either sign, an infinity or a subnormal."""
    order = sorted(range(len(row)), key=lambda idx: (-row[idx], idx))
    assert candidates(row, top_k=len(row) - 1) == order[:-1]


@settings(deadline=None)
@given(row=ROWS, params=PARAMS, more_k=st.integers(1, 9), more_p=st.floats(1, 2))
def test_looser_limits_only_add(row, params, more_k, more_p) -> None:
    """Catches sets that are not nested."""
    values = np.array(row, dtype=np.float32)
    temperature, top_k, top_p = params.temperature, max(1, params.top_k), params.top_p
    kept = set(candidates(values, temperature=temperature, top_k=top_k))
    assert kept <= set(candidates(values, temperature=temperature, top_k=top_k + more_k))
    assert kept <= set(candidates(values, temperature=temperature))
    kept = set(candidates(values, temperature=temperature, top_p=top_p))
    looser = candidates(values, temperature=temperature, top_p=min(1.0, top_p * more_p))
    assert kept <= set(looser)


def test_candidates_by_hand() -> None:
    """Catches limits off by one, and ties that take more than their place or the wrong one."""
    level = [0.0, 1.0, 1.0, -math.inf, 1.0]
    assert [candidates(level, top_k=k) for k in (1, 2, 4)] == [[1], [1, 2], [1, 2, 4, 0]]
    assert candidates(level, top_k=5) == candidates(level, top_k=99) == [0, 1, 2, 3, 4]
    equal = [7.0] * 4
    kept = [candidates(equal, top_p=p) for p in (0.25, 0.26, 0.5, 0.75, 0.76, 1.0)]
    assert [len(ids) for ids in kept] == [1, 2, 2, 3, 4, 4]
    assert kept[3] == [0, 1, 2]
    # top-p counts what top-k leaves: half of two, not of four
    assert candidates(equal, top_k=2, top_p=0.5) == [0]
    # and counts it at the given temperature: e^-1 of the mass is out of reach, e^-0.01 is not
    assert candidates([1.0, 0.0], top_p=0.7) == [0]
    assert candidates([1.0, 0.0], top_p=0.7, temperature=100.0) == [0, 1]


@settings(deadline=None)
@given(row=ROWS, params=PARAMS, position=POSITIONS)
def test_three_ways_to_be_greedy(row, params, position) -> None:
    """Catches noise in a choice that leaves none."""
    greedy = greedy_ids(one_row(row))
    temperature, seed = params.temperature, params.seed
    for same in (
        SamplingParams(0.0, params.top_k, params.top_p, seed),
        SamplingParams(temperature, 1, params.top_p, seed),
        SamplingParams(temperature, params.top_k, 1e-17, seed),
    ):
        assert sample_ids(one_row(row), position, same) == greedy


def test_temperature_zero_takes_the_greedy_path(monkeypatch) -> None:
    """Catches a greedy answer computed in a second place."""
    monkeypatch.setattr(sampling, "greedy_ids", lambda logits: [41] * logits.shape[0])
    assert sample_ids(torch.zeros(2, 3), 1, SamplingParams(0.0, 2, 0.5, 1)) == [41, 41]


@pytest.mark.parametrize("limits", [{}, {"top_k": 3}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.9}])
def test_one_finite_logit_leaves_no_choice(limits) -> None:
    """Catches an id without mass that is chosen, or a NaN where infinities meet."""
    row = torch.full((50, 9), -math.inf)
    row[:, 5] = -3e38
    assert sample_ids(row, 1, SamplingParams(1.0, seed=SEED, **limits)) == [5] * 50


def test_cold_is_greedy_but_among_equals() -> None:
    """Catches a tiny temperature that overflows or lets a lesser logit win."""
    row = torch.tensor([0.0, 3.4e38, -3.4e38, 3.4e38, 3.3e38]).expand(64, 5)
    assert set(sample_ids(row, 1, SamplingParams(1e-17, seed=SEED))) == {1, 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_logits_are_one_job_s_error(bad: float) -> None:
    """Catches a broken row that yields an id, and a message that names another position."""
    logits = torch.zeros(3, 4)
    logits[2, 1] = bad
    with pytest.raises(JobError, match=f"position 12 is {bad}") as caught:
        sample_ids(logits, 10, PLAIN)
    assert caught.value.code == "bad_logits"


@pytest.mark.parametrize("params", [PLAIN, SamplingParams()])
def test_a_row_of_nothing_is_refused(params: SamplingParams) -> None:
    with pytest.raises(JobError, match="bad_logits"):
        sample_ids(torch.full((1, 4), -math.inf), 1, params)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_greedy_decoding_of_a_broken_row_is_the_jobs_error_too(bad: float) -> None:
    """Catches a damaged model whose first id ends every answer."""
    logits = torch.zeros(3, 4)
    logits[2, 1] = bad
    with pytest.raises(JobError, match="bad_logits"):
        sample_ids(logits, 10, SamplingParams())


NORMAL_ROW = [1.1, -0.3, 2.0, 0.4, 0.4, -1.2, 1.7, 0.0, 0.9, -0.5]
BEST_FIRST = [2, 6, 0, 8, 3, 4, 7, 1, 9, 5]


def false_alarm_rate(counts, probabilities) -> float:
    """Chi-square p-value; an id of no probability that was drawn is no chance at all."""
    counts, probabilities = np.asarray(counts), np.asarray(probabilities)
    if counts[probabilities == 0].any():
        return 0.0
    possible = probabilities > 0
    expected = probabilities[possible] * counts.sum()
    assert expected.min() > 20  # the approximation holds
    return float(stats.chisquare(counts[possible], expected).pvalue) if possible.sum() > 1 else 1.0


@pytest.mark.parametrize(
    ("params", "num_kept"),
    [
        (SamplingParams(1.0, seed=SEED), 10),
        (SamplingParams(0.6, seed=1), 10),
        (SamplingParams(100.0, seed=2), 10),
        (SamplingParams(1.0, top_k=5, seed=SEED), 5),
        (SamplingParams(1.5, top_p=0.8, seed=SEED), 6),
        (SamplingParams(0.8, top_k=7, top_p=0.9, seed=SEED), 5),
    ],
)
def test_draws_follow_the_softmax(params: SamplingParams, num_kept: int) -> None:
    """Catches noise of another law, a temperature misapplied, a candidate left out or let in."""
    ids = sample_ids(torch.tensor(NORMAL_ROW).expand(NUM_DRAWS, 10), 1, params)
    mass = np.array(masses(NORMAL_ROW, params.temperature))
    mass[BEST_FIRST[num_kept:]] = 0
    probabilities = mass / mass.sum()
    assert false_alarm_rate(np.bincount(ids, minlength=10), probabilities) > FALSE_ALARM


def test_draws_follow_the_softmax_over_many_ids() -> None:
    """Catches noise that repeats or favours some ids of a large vocabulary."""
    row = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    ids = np.array(sample_ids(row.expand(4000, 5000), 1, PLAIN))
    probabilities = torch.softmax(row.double(), dim=0).numpy()
    bins = np.arange(5000) % 25
    expected = np.bincount(bins, probabilities)
    assert false_alarm_rate(np.bincount(bins[ids], minlength=25), expected) > FALSE_ALARM


def test_the_comparison_sees_a_shift() -> None:
    """Catches a threshold that lets everything pass."""
    probabilities = np.full(10, 0.1)
    counts = NUM_DRAWS * probabilities * (1 + 0.06 * np.array([1, -1] * 5))
    assert false_alarm_rate(counts.astype(int), probabilities) < FALSE_ALARM
    assert false_alarm_rate([50, 50, 1], [0.5, 0.5, 0]) == 0


def pair_rate(first, second, num_bins: int) -> float:
    """Chi-square p-value of independence of paired observations in [0, num_bins)."""
    cells = np.asarray(first) * num_bins + np.asarray(second)
    table = np.bincount(cells, minlength=num_bins**2).reshape(num_bins, num_bins)
    return float(stats.chi2_contingency(table, correction=False).pvalue)


@pytest.mark.parametrize("seed", [0, 1, SEED, 2**63])
def test_uniforms_are_uniform_and_independent(seed: int) -> None:
    """Catches noise shared between neighbouring ids, positions or seeds."""

    def bins(of_seed: int, position: int) -> np.ndarray:
        return (noise_uniforms(of_seed, position, 200_000) * 16).astype(int)

    here = bins(seed, 7)
    assert false_alarm_rate(np.bincount(here, minlength=16), np.full(16, 1 / 16)) > FALSE_ALARM
    for there in (np.roll(here, 1), bins(seed, 8), bins(seed ^ 1, 7), bins(seed ^ 1 << 63, 7)):
        assert pair_rate(here, there, 16) > FALSE_ALARM
    assert pair_rate(here, here, 16) < FALSE_ALARM


@pytest.mark.parametrize(("seed_step", "position_step"), [(0, 1), (1, 0), (1, -1)])
def test_tokens_are_independent(seed_step: int, position_step: int) -> None:
    """Catches a seed and position that are merged, so that two of them give one draw."""
    row = torch.tensor([0.3, 0.0, -0.4, 0.2])

    def draws(seed: int, position: int) -> list[int]:
        return sample_ids(row.expand(NUM_DRAWS, 4), position, SamplingParams(1.0, seed=seed))

    first, second = draws(SEED, 5), draws(SEED + seed_step, 5 + position_step)
    assert pair_rate(first, second, 4) > FALSE_ALARM


def parse(**changes) -> SamplingParams:
    wire = {"temperature": "0.7", "top_k": 40, "top_p": "0.95", "seed": "00000000000000ff"}
    return SamplingParams.parse(**{**wire, **changes})


def test_parse_reads_what_the_wire_carries() -> None:
    """Catches a field in another's place and bounds that exclude themselves."""
    assert parse() == SamplingParams(0.7, 40, 0.95, 255)
    assert parse(temperature="0", top_k=0, top_p="1", seed="0" * 16) == SamplingParams()
    assert parse(temperature="100", top_k=100, seed="f" * 16).seed == 2**64 - 1
    assert parse(top_p="0.00000000000000001").top_p == 1e-17


def test_a_top_k_beyond_the_vocabulary_is_no_limit() -> None:
    """The coordinator does not know the vocabulary, so the limit cannot be checked against it."""
    rows = torch.randn(8, 50, generator=torch.Generator().manual_seed(3))
    free = sample_ids(rows, 1, SamplingParams(1.0, seed=SEED))
    assert sample_ids(rows, 1, SamplingParams(1.0, top_k=51, seed=SEED)) == free


NOT_PLAIN = ["", "-1", "nan", "inf", "1e1", "1_0", " 1", "1\n", ".5", "1.", "²", "٠.٥"]
NOT_SIXTEEN_DIGITS = ["", "0" * 15, "0" * 17, "0x" + "0" * 14, "F" * 16, "-" + "0" * 15, "0_" * 8]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", text) for text in [*NOT_PLAIN, "100.1", "0." + "0" * 17 + "1"]),
        *(("top_p", text) for text in [*NOT_PLAIN, "0", "0.0", "1.01", "2"]),
        *(("top_k", count) for count in (-1,)),
        *(("seed", text) for text in NOT_SIXTEEN_DIGITS),
    ],
)
def test_parse_refuses(field: str, value) -> None:
    """Catches a value that would be read as something else, and a message without its name."""
    with pytest.raises(ConfigError, match=rf"^{field} .*must be"):
        parse(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (math.nan, -0.1, 100.5)),
        *(("top_p", value) for value in (math.nan, 0.0, 1.5)),
        *(("seed", value) for value in (-1, 2**64)),
        ("top_k", -1),
    ],
)
def test_params_refuse_what_is_out_of_range(field: str, value) -> None:
    """Catches parameters built without `parse` that escape its ranges."""
    with pytest.raises(ConfigError, match=f"^{field} "):
        SamplingParams(**{field: value})
