"""Survival of drafted tokens: buckets, shifts of texts, curves, and the shipped prior."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cells import load_cells
from bench.receipt import receipt_id
from engine.coordinator.records import FrameRecord
from engine.coordinator.survival import (
    KINDS,
    MATCH_EDGES,
    PRIOR_PATH,
    SHIFTS,
    UNKNOWN,
    SourcePrior,
    Survival,
    bucket_of,
    chances,
    kind_of,
    load_prior,
    verified_match,
)

ZERO = int(np.flatnonzero(SHIFTS == 0.0)[0])
NO_SHIFT = tuple(float(idx == ZERO) for idx in range(len(SHIFTS)))


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


def prior_of(chance_by_bucket: dict[int, float], weights: tuple[float, ...]) -> SourcePrior:
    """So many observations that what a bucket leans on does not matter."""
    rates = [chance_by_bucket.get(idx, 0.5) for idx in range(len(MATCH_EDGES))]
    many = 10**9
    return SourcePrior(
        accepted=tuple(round(rate * many) for rate in rates),
        tested=(many,) * len(MATCH_EDGES),
        weights=dict.fromkeys(KINDS, weights),
    )


def test_buckets_are_half_open_and_complete() -> None:
    """Catches an edge that falls into the bucket below it: every edge, and all values around."""
    assert list(MATCH_EDGES) == sorted(set(MATCH_EDGES)) and MATCH_EDGES[0] == 0
    for value in range(200):
        expected = max(idx for idx, edge in enumerate(MATCH_EDGES) if edge <= value)
        assert bucket_of(value) == expected


@given(st.integers(0, 80), st.integers(0, 80))
def test_a_verified_match_lies_in_committed_text(match_len: int, unverified_len: int) -> None:
    """Catches a match that is taken to be as long as the drafts it was found behind."""
    found = verified_match(match_len, unverified_len)
    assert found == (max(1, match_len - unverified_len) if match_len else 0)


def test_a_curve_is_the_product_of_its_tokens_chances() -> None:
    """Catches a chance looked up by the match alone: the drafts between count as matched too."""
    rates = {idx: 0.5 + 0.02 * idx for idx in range(len(MATCH_EDGES))}
    known = Survival({"ngram": prior_of(rates, NO_SHIFT)})
    for match_len in (1, 2, 7, 40, 96):
        curve = known.curve("ngram", match_len, 120)
        product = 1.0
        for distance in range(120):
            product *= rates[bucket_of(match_len + distance)]
            assert curve[distance] == pytest.approx(product, rel=1e-6)


def test_a_bucket_nobody_saw_leans_on_the_shorter_match() -> None:
    """Catches long copies that are given up because no recorded text was that long."""
    seen = [0] * len(MATCH_EDGES)
    seen[5] = 1000
    prior = SourcePrior(tuple(int(0.98 * count) for count in seen), tuple(seen), {})
    odds = prior.odds()
    assert 1 / (1 + math.exp(-odds[0])) == pytest.approx(UNKNOWN)
    assert np.allclose(odds[5:], odds[5]) and odds[5] > 3.5
    assert np.isfinite(SourcePrior().odds()).all()


@settings(max_examples=100)
@given(
    match_len=st.integers(0, 120),
    horizon=st.integers(1, 300),
    rounds=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 9)), max_size=12
    ),
)
def test_curves_fall_and_stay_chances(
    match_len: int, horizon: int, rounds: list[tuple[int, int, int]]
) -> None:
    """Catches weights that leave 1, a curve that rises, and a number that is no chance."""
    known = Survival(load_prior())
    for draft_len, accepted_len, unverified_len in rounds:
        known.observe(
            round_of(draft_len, min(draft_len, accepted_len), unverified_len=unverified_len)
        )
    curve = known.curve("ngram", match_len, horizon)
    assert curve.shape == (horizon,) and 0 < curve[0] < 1 and (curve >= 0).all()
    assert all(later <= earlier for earlier, later in pairwise(curve))


def test_rounds_move_their_own_kind_of_token_only() -> None:
    """Catches first tokens that are believed because later ones held, and the other way round."""
    before = Survival(load_prior()).curve("ngram", 3, 2)
    held = Survival(load_prior())
    held.observe(round_of(30, 30, unverified_len=8))  # none of them the first behind the frontier
    after = held.curve("ngram", 3, 2)
    assert after[0] == pytest.approx(before[0]) and after[1] > before[1]
    refused = Survival(load_prior())
    for _ in range(5):
        refused.observe(round_of(8, 0))
    worse = refused.curve("ngram", 3, 2)
    assert worse[0] < before[0]
    assert worse[1] / worse[0] == pytest.approx(before[1] / before[0])


def test_a_long_copy_makes_the_next_one_likelier_to_be_long() -> None:
    """Catches an average text that is taken for every text: the tail must grow the most."""
    fresh, copying = Survival(load_prior()), Survival(load_prior())
    copying.observe(round_of(64, 64, match_len=8))
    before, after = fresh.curve("ngram", 2, 200), copying.curve("ngram", 2, 200)
    gains = after / before
    assert gains[150] > gains[20] > gains[1] > 1


def by_kind(**chances_by_kind: float) -> Survival:
    """Even odds everywhere, and one certain shift a kind: its chance is the kind's own."""
    weights = {
        kind: tuple(float(idx == shift_idx) for idx in range(len(SHIFTS)))
        for kind, shift_idx in chances_by_kind.items()
    }
    many = 10**9
    known = SourcePrior(
        accepted=(many // 2,) * len(MATCH_EDGES), tested=(many,) * len(MATCH_EDGES), weights=weights
    )
    return Survival({"ngram": known})


def test_a_text_opens_under_weights_of_its_own() -> None:
    """Catches an opening that is taken for any other run, and one that never ends."""
    last = len(SHIFTS) - 1
    known = by_kind(first=ZERO, opening=last, later=0)
    likely, unlikely = chances(0.0)[last], chances(0.0)[0]

    def later_chance() -> float:
        curve = known.curve("ngram", 4, 2)
        return float(curve[1] / curve[0])

    assert later_chance() == pytest.approx(likely)
    known.observe(round_of(8, 0))  # the first draft was refused: nothing has opened yet
    known.observe(round_of(8, 8, unverified_len=0))
    assert later_chance() == pytest.approx(likely)
    known.observe(round_of(8, 3))  # refused behind right ones
    assert later_chance() == pytest.approx(unlikely, rel=0.05)
    known.observe(round_of(8, 8))
    assert later_chance() < 0.5, "it opens once"


@pytest.mark.parametrize(
    ("distance", "is_opening", "kind"),
    [(0, True, "first"), (0, False, "first"), (1, True, "opening"), (9, False, "later")],
)
def test_a_tokens_kind(distance: int, is_opening: bool, kind: str) -> None:
    assert kind_of(distance, is_opening) == kind and kind in KINDS


def test_what_is_not_tested_tells_nothing() -> None:
    """Catches drafts behind the first refused one that count as refused."""
    one, two = Survival(load_prior()), Survival(load_prior())
    one.observe(round_of(40, 3))
    two.observe(round_of(4, 3))
    assert one.curve("ngram", 5, 50) == pytest.approx(two.curve("ngram", 5, 50))
    none = Survival(load_prior())
    none.observe(round_of(8, 0, tested_len=0))
    assert none.curve("ngram", 5, 50) == pytest.approx(Survival(load_prior()).curve("ngram", 5, 50))


def test_an_unknown_source_is_even_odds_and_learns() -> None:
    """Catches a new drafter that breaks the planner, or that nothing is ever learned of."""
    known = Survival({})
    assert known.curve("eagle", 0, 1)[0] == pytest.approx(0.5)
    for _ in range(4):
        known.observe(round_of(4, 0, source="eagle", match_len=0))
    assert known.curve("eagle", 0, 1)[0] < 0.3
    assert known.curve("ngram", 3, 1)[0] == pytest.approx(0.5)


def test_the_shipped_prior_is_complete() -> None:
    """Catches a prior of other edges or shifts than the code's, or that names no receipts."""
    tree = json.loads(PRIOR_PATH.read_text(encoding="utf-8"))
    assert tree["match_edges"] == list(MATCH_EDGES) and tree["shifts"] == SHIFTS.tolist()
    assert len(tree["receipts"]) == len(set(tree["receipts"])) >= 100
    for source in load_prior().values():
        assert len(source.accepted) == len(source.tested) == len(MATCH_EDGES)
        assert all(a <= t for a, t in zip(source.accepted, source.tested, strict=True))
        for kind in KINDS:
            assert sum(source.weights[kind]) == pytest.approx(1.0, abs=1e-9)
            assert min(source.weights[kind]) >= 0


def test_its_receipts_are_committed_and_are_not_of_the_bench_cells() -> None:
    """Catches a planner that was fitted on the texts it is measured on."""
    folder = Path(__file__).resolve().parents[2] / "receipts" / "acceptance" / "receipts"
    bodies = [path.read_bytes() for path in folder.glob("[0-9][0-9][0-9][0-9].json")]
    cells = {receipt_id(body): json.loads(body)["position"]["cell"] for body in bodies}
    fitted_on = json.loads(PRIOR_PATH.read_text(encoding="utf-8"))["receipts"]
    assert set(fitted_on) <= set(cells)
    assert not {cells[identifier] for identifier in fitted_on} & set(load_cells())


@given(st.floats(-8, 8))
def test_chances_rise_with_the_shift(odds: float) -> None:
    """Catches a shift of the wrong sign."""
    found = chances(odds)
    assert all(lower < higher for lower, higher in pairwise(found))
    assert found[ZERO] == pytest.approx(1 / (1 + math.exp(-odds)))
