"""Random projections: the same everywhere, and as sharp as the bounds say."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.trust.sketch import (
    NUM_SIGNS,
    false_alarm_bound,
    miss_bound,
    relative_errors,
    sketch,
)

SEED = bytes(range(32))
WIDTH = 40


def states(num: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num, WIDTH, generator=torch.Generator().manual_seed(seed))


def test_signs_are_those_of_the_protocol_page() -> None:
    """Catches another stream, bit order or scale: two verifiers would disagree with each other."""
    for coordinate in (0, 1, WIDTH - 1):
        one = torch.zeros(1, WIDTH)
        one[0, coordinate] = 1
        made = sketch(one, SEED, 2, 7)[0] * np.sqrt(NUM_SIGNS)
        stream = b"longhaul-sketch/1" + SEED + (2).to_bytes(4, "big") + (7).to_bytes(8, "big")
        blob = hashlib.shake_256(stream).digest(NUM_SIGNS * WIDTH // 8)
        bits = "".join(f"{byte:08b}" for byte in blob)
        named = [1 if bits[j * WIDTH + coordinate] == "1" else -1 for j in range(NUM_SIGNS)]
        assert made.round(9).tolist() == named


@given(cuts=st.lists(st.integers(1, 8), max_size=6), start=st.integers(0, 2**40))
def test_a_position_is_sketched_the_same_in_any_chunk(cuts: list[int], start: int) -> None:
    whole = states(9)
    pieces, at = [], 0
    for num in [*cuts, 9]:
        pieces.append(sketch(whole[at : at + num], SEED, 1, start + at))
        at += len(pieces[-1])
    assert np.array_equal(np.concatenate(pieces), sketch(whole, SEED, 1, start))


def test_signs_hang_on_seed_stage_and_position() -> None:
    one = states(1).repeat(2, 1)
    here = sketch(one, SEED, 1, 4)
    assert not np.allclose(here[0], here[1])
    assert not np.allclose(here, sketch(one, SEED, 2, 4))
    assert not np.allclose(here, sketch(one, bytes(32), 1, 4))


@given(st.integers(0, 2**32), st.integers(-8, 3), st.integers(1, WIDTH))
def test_an_error_is_seen_as_large_as_it_is(draw: int, exponent: int, num_coords: int) -> None:
    """Catches a lost factor, and coordinates that are not looked at."""
    own = states(1, draw)
    generator = torch.Generator().manual_seed(draw)
    changed = torch.randperm(WIDTH, generator=generator)[:num_coords]
    change = torch.zeros(1, WIDTH, dtype=torch.float64)
    change[:, changed] = torch.randn(num_coords, dtype=torch.float64, generator=generator)
    share = 10.0**exponent
    change *= share * own.double().norm() / change.norm()
    ours = sketch(own, SEED, 0, 0)
    theirs = sketch(own.double() + change, SEED, 0, 0)
    assert relative_errors(theirs, ours, own)[0] == pytest.approx(share, rel=0.4)


def test_states_without_length_and_claims_without_value() -> None:
    """Catches 0 / 0, which would let anything pass or nobody."""
    nothing = torch.zeros(2, WIDTH)
    ours = sketch(nothing, SEED, 0, 0)
    assert relative_errors(ours, ours, nothing).tolist() == [0, 0]
    assert (relative_errors(sketch(states(2), SEED, 0, 0), ours, nothing) > 1e100).all()
    assert np.isnan(relative_errors(ours * np.nan, ours, states(2))).all()


def test_bounds_hold_for_projections_that_were_drawn() -> None:
    """Catches a bound that is none; a worst case of two equal coordinates and a spread one."""
    for vector in (torch.tensor([[1.0, 1.0] + [0.0] * (WIDTH - 2)]), torch.ones(1, WIDTH)):
        seen = np.linalg.norm(sketch(vector.repeat(4000, 1), SEED, 0, 0), axis=1)
        ratios = seen / float(vector.norm())
        for ratio in (1.05, 1.1, 1.15, 1.2):
            assert (ratios >= ratio).mean() <= false_alarm_bound(ratio)
            assert (ratios <= 1 / ratio).mean() <= miss_bound(ratio)


def test_what_the_bounds_promise_at_the_limits() -> None:
    """Four times the honest error passes, four times the limit is found: almost surely."""
    assert false_alarm_bound(4) < 1e-300
    assert miss_bound(4) < 1e-8
    assert miss_bound(2) < 1e-4
    ratios = np.linspace(1.01, 50, 200)
    assert (np.diff([miss_bound(ratio) for ratio in ratios]) <= 0).all()
