"""Survival of drafted tokens: keys, counts, falling back to coarser keys, and the shipped prior."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.coordinator.records import FrameRecord
from engine.coordinator.survival import (
    DISTANCE_EDGES,
    FORGET,
    MATCH_EDGES,
    PRIOR_PATH,
    RUN_EDGES,
    SHIFT_RATE,
    Counts,
    Survival,
    bucket,
    key_of,
    load_prior,
    verified_match,
)

ALL_EDGES = (MATCH_EDGES, RUN_EDGES, DISTANCE_EDGES)


def round_of(
    draft_len: int,
    accepted_len: int,
    *,
    match_len: int = 4,
    unverified_len: int = 0,
    source: str = "ngram",
    tested_len: int | None = None,
) -> FrameRecord:
    """A round whose drafts began this many unverified tokens beyond the frontier."""
    record = FrameRecord(
        epoch=0,
        start=50,
        positions_len=draft_len + 1,
        sent_len=draft_len,
        draft_len=draft_len,
        accepted_len=accepted_len,
        tested_len=min(draft_len, accepted_len + 1) if tested_len is None else tested_len,
        committed_len=accepted_len + 1,
        outcome="applied",
        source=source,
        match_len=match_len,
        in_flight=1,
        frontier=51 - unverified_len,
        sent_ns=0,
        received_ns=1,
    )
    assert record.unverified_len == unverified_len
    return record


def logistic(odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-odds))


def logit(chance: float) -> float:
    return math.log(chance / (1.0 - chance))


def test_buckets_are_half_open_and_complete() -> None:
    """Catches an edge that falls into the bucket below it: every edge, and all values around."""
    for edges in ALL_EDGES:
        assert list(edges) == sorted(set(edges))
        for value in range(-3, 200):
            expected = 0
            for idx, edge in enumerate(edges):
                if value >= edge:
                    expected = idx
            assert bucket(edges, value) == expected, (edges, value)
        assert [bucket(edges, edge) for edge in edges] == list(range(len(edges)))


def test_keys_name_every_part() -> None:
    """Catches two parts of a key that changed places."""
    assert key_of("ngram", 1, 0, 0) == ("ngram", 0, 0, 0)
    assert key_of("ngram", 2, 4, 32) == ("ngram", 1, 2, 6)
    assert key_of("filler", 40, 1, 3) == ("filler", 7, 1, 2)
    assert key_of("ngram", 0, 0, 0) == ("ngram", 0, 0, 0), "no match shares the lowest bucket"


@pytest.mark.parametrize(
    ("match_len", "unverified_len", "expected"),
    [(0, 0, 0), (0, 9, 0), (5, 0, 5), (5, 2, 3), (5, 4, 1), (5, 5, 1), (5, 99, 1), (1, 0, 1)],
)
def test_verified_match(match_len: int, unverified_len: int, expected: int) -> None:
    """Catches trust in a match that lies in drafts, and a match out of nothing."""
    assert verified_match(match_len, unverified_len) == expected


ROUNDS = st.lists(
    st.builds(
        lambda tested, refused, match_len, unverified_len: round_of(
            tested + 3,
            max(0, tested - refused),
            match_len=match_len,
            unverified_len=unverified_len,
            tested_len=tested,
        ),
        tested=st.integers(0, 40),
        refused=st.integers(0, 1),
        match_len=st.integers(0, 40),
        unverified_len=st.integers(0, 40),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(ROUNDS)
def test_counts_equal_a_slow_recount(rounds: list[FrameRecord]) -> None:
    """Catches a draft counted under the wrong run or distance, or forgotten at a wrong rate."""
    survival = Survival({})
    expected: dict[tuple[str, int, int, int], list[float]] = {}
    run_len = 0
    for idx, record in enumerate(rounds):
        survival.observe(record)
        weight = FORGET ** (len(rounds) - 1 - idx)
        match_len = verified_match(record.match_len, record.unverified_len)
        for offset in range(record.tested_len):
            key = key_of("ngram", match_len, run_len, record.unverified_len + offset)
            total = expected.setdefault(key, [0.0, 0.0])
            total[1] += weight
            if offset < record.accepted_len:
                total[0] += weight
                run_len += 1
            else:
                run_len = 0
        assert survival.run_len == run_len
    assert survival._own.keys() == expected.keys()
    for key, total in expected.items():
        assert survival._own[key] == pytest.approx(total)


def test_steps_are_all_places_where_the_key_changes() -> None:
    """Catches a bucket of run or distance that a reader of steps would jump over."""
    survival = Survival({})
    for survival.run_len in range(40):
        for horizon in (1, 2, 7, 33, 80):
            steps = survival.steps(horizon)
            assert steps[0] == 0 and steps == sorted(set(steps)) and steps[-1] < horizon
            keys = [key_of("ngram", 3, survival.run_len + at, at) for at in range(horizon)]
            changes = {at for at in range(1, horizon) if keys[at] != keys[at - 1]}
            assert changes <= set(steps)


def test_untested_drafts_are_not_counted() -> None:
    """Catches drafts behind a refuted one that are taken for refuted themselves."""
    survival = Survival({})
    survival.observe(round_of(8, 2))
    assert sum(total for _, total in survival._own.values()) == 3
    assert survival.run_len == 0
    survival.observe(round_of(0, 0))
    assert survival.run_len == 0
    survival.observe(round_of(8, 8))
    survival.observe(round_of(3, 3))
    assert survival.run_len == 11, "a run goes on over frames"


@settings(max_examples=50)
@given(
    rounds=ROUNDS,
    keys=st.dictionaries(
        st.tuples(st.just("ngram"), st.integers(0, 7), st.integers(0, 4), st.integers(0, 6)),
        st.tuples(st.integers(0, 500), st.integers(1, 500)).map(
            lambda pair: Counts(min(pair), pair[1])
        ),
        max_size=12,
    ),
    match_len=st.integers(0, 60),
    distance=st.integers(0, 600),
)
def test_a_probability_lies_strictly_between_zero_and_one(
    rounds: list[FrameRecord],
    keys: dict[tuple[str, int, int, int], Counts],
    match_len: int,
    distance: int,
) -> None:
    """Catches a certainty, from which no observation leads back."""
    survival = Survival(keys)
    before = dict(keys)
    for record in [*rounds, *[round_of(64, 64)] * 3]:
        survival.observe(record)
        for source in ("ngram", "never seen"):
            assert 0.0 < survival.probability(source, match_len, distance) < 1.0
    assert keys == before, "the prior is shared by all jobs"


@settings(max_examples=60)
@given(
    rounds=ROUNDS,
    match_len=st.integers(1, 40),
    distance=st.integers(0, 40),
    prior=st.booleans(),
)
def test_it_rises_after_accepted_and_falls_after_refused_drafts(
    rounds: list[FrameRecord], match_len: int, distance: int, prior: bool
) -> None:
    """Catches a sign, or a draft whose own outcome does not count."""
    chances = {}
    for outcome in ("none", "accepted", "refused"):
        survival = Survival(load_prior() if prior else {})
        for record in rounds:
            survival.observe(record)
        run_len = survival.run_len
        if outcome != "none":
            accepted_len = int(outcome == "accepted")
            record = round_of(
                1, accepted_len, match_len=match_len + distance, unverified_len=distance
            )
            survival.run_len = run_len + distance  # the run that its draft belongs to
            survival.observe(record)
        survival.run_len = run_len  # asked under the same key
        chances[outcome] = survival.probability("ngram", match_len, distance)
    assert chances["refused"] < chances["none"] < chances["accepted"]


@pytest.mark.parametrize(("accepted", "sign"), [(8, 1), (0, -1)])
def test_many_like_rounds_move_it_steadily(accepted: int, sign: int) -> None:
    """Catches an estimate that swings back while all that is seen agrees."""
    survival = Survival({})
    survival.run_len = 100 if accepted else 0  # a run in the last bucket stays there
    chances = []
    for _ in range(30):
        chances.append(survival.probability("ngram", 4, 0))
        survival.observe(round_of(8, accepted))
    assert chances[0] == 0.5
    assert chances == sorted(chances, reverse=sign < 0)
    assert sign * (chances[-1] - 0.5) > 0.35


def test_an_unseen_key_falls_back_step_by_step() -> None:
    """Catches a key without observations that knows nothing: computed by hand."""
    survival = Survival({("ngram", 3, 0, 0): Counts(9, 10)})
    by_source = (2 * 0.5 + 9) / 12
    by_match = (2 * by_source + 9) / 12
    by_run = (2 * by_match + 9) / 12
    assert survival.probability("ngram", 4, 0) == pytest.approx(by_run)
    survival.run_len = 1
    assert survival.probability("ngram", 4, 0) == pytest.approx(by_match), "another run"
    assert survival.probability("ngram", 1, 0) == pytest.approx(by_source), "another match"
    assert survival.probability("ngram", 4, 1) == 0.5, "another distance"
    assert survival.probability("filler", 4, 0) == 0.5, "another source"


def test_a_much_seen_prior_key_is_worth_twelve_observations() -> None:
    """Catches a prior so heavy that a job never gets its say."""
    survival = Survival({("ngram", 3, 0, 0): Counts(0, 12_000)})
    estimate = 0.5
    for _ in range(3):
        estimate = 2 * estimate / 14
    assert survival.probability("ngram", 4, 0) == pytest.approx(estimate)
    shift = SHIFT_RATE * (1 - estimate)
    survival.observe(round_of(1, 1))
    survival.run_len = 0
    mixed = (12 * estimate + 1) / 13
    assert survival.probability("ngram", 4, 0) == pytest.approx(logistic(logit(mixed) + shift))


def test_margins_are_sums_over_what_they_leave_out() -> None:
    """Catches a margin that keeps only the last key it met."""
    keys = {("ngram", 3, run, 0): Counts(run, 2) for run in range(3)}  # 3 of 6 together
    survival = Survival({**keys, ("ngram", 5, 0, 0): Counts(6, 6)})
    survival.run_len = 40
    by_source = (2 * 0.5 + 9) / 14
    assert survival.probability("ngram", 4, 0) == pytest.approx((2 * by_source + 3) / 8)
    assert survival.probability("ngram", 9, 0) == pytest.approx((2 * by_source + 6) / 8)


def test_the_shipped_prior_has_the_right_form() -> None:
    """Catches a fit that names buckets which no draft can have, or counts that cannot be."""
    prior = load_prior()
    assert prior
    for (source, match, run, distance), counts in prior.items():
        assert source
        assert 0 <= match < len(MATCH_EDGES), source
        assert 0 <= run < len(RUN_EDGES)
        assert 0 <= distance < len(DISTANCE_EDGES)
        assert 0 <= counts.accepted <= counts.tested
        assert counts.tested > 0
    stored = json.loads(PRIOR_PATH.read_text(encoding="utf-8"))
    assert len(stored["keys"]) == len(prior)
    assert stored["receipts"] and all(isinstance(name, str) for name in stored["receipts"])


def test_any_file_of_that_form_is_read(tmp_path: Path) -> None:
    """Catches a reader that mixes up the parts of a name."""
    path = tmp_path / "prior.json"
    path.write_text('{"keys": {"ngram/1/2/3": [4, 5], "filler/0/0/0": [0, 2]}, "receipts": []}')
    assert load_prior(path) == {("ngram", 1, 2, 3): Counts(4, 5), ("filler", 0, 0, 0): Counts(0, 2)}
