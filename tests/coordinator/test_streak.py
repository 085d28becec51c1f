"""The streak policy: its transition table, its cap, and that overrides reach it."""

from __future__ import annotations

import random

import pytest

from engine.coordinator.policies import make_policy, resolve_policy_params
from engine.coordinator.policy import DraftPolicy, Streak
from engine.defaults import DRAFT_LEN_MAX
from tests.coordinator.test_policy import SITUATION, round_of


def length_after(policy: DraftPolicy, *rounds: tuple[int, int]) -> int:
    """The next length once these (k, a) were observed."""
    for draft_len, accepted_len in rounds:
        policy.observe(round_of(draft_len, accepted_len))
    return policy.next_len(SITUATION)


@pytest.mark.parametrize(
    ("draft_len", "accepted_len", "from_8", "from_32", "from_64"),
    [
        (8, 8, 16, 64, 64),  # full: doubles, up to the cap
        (1, 1, 16, 64, 64),  # short, yet full
        (64, 64, 16, 64, 64),
        (8, 7, 8, 32, 64),  # at least `up`, not full: stays
        (8, 6, 8, 32, 64),
        (64, 6, 8, 32, 64),
        (64, 63, 8, 32, 64),
        (8, 5, 8, 8, 8),  # below `up`: back to base
        (64, 5, 8, 8, 8),
        (2, 1, 8, 8, 8),
        (8, 0, 8, 8, 8),
        (0, 0, 8, 8, 8),  # no drafts: no streak
    ],
)
def test_transitions(
    draft_len: int, accepted_len: int, from_8: int, from_32: int, from_64: int
) -> None:
    """Catches a trigger off by one, a wrong factor, and a state that survives a bad round."""
    for num_full, expected in ((0, from_8), (2, from_32), (3, from_64)):
        policy = make_policy("streak", 8, {})
        assert length_after(policy, *[(8, 8)] * num_full) == 8 * 2**num_full
        assert length_after(policy, (draft_len, accepted_len)) == expected
        assert policy.next_len(SITUATION) == expected, "asking changed the state"


def test_a_round_that_keeps_the_length_does_not_end_the_streak() -> None:
    """Catches a count of full rounds that is kept apart from the length and cleared too early."""
    policy = make_policy("streak", 4, {})
    assert length_after(policy, (4, 4), (8, 8)) == 16
    assert length_after(policy, (16, 9)) == 16
    assert length_after(policy, (16, 16)) == 32
    assert length_after(policy, (32, 0)) == 4
    assert length_after(policy, (4, 4)) == 8, "a streak begins anew at base"


@pytest.mark.parametrize("base", [1, 3, 5, 8, 48, 63, 64])
@pytest.mark.parametrize("cap", [1, 7, 20, 64])
def test_the_cap_holds_whatever_happens(base: int, cap: int) -> None:
    """Catches a doubling that steps over a cap which is no power of two times base."""
    policy = make_policy("streak", base, {"cap": cap})
    reached = [length_after(policy, (8, 8)) for _ in range(9)]
    assert reached[-1] == max(base, cap), "base is what the caller asked for, even above the cap"
    assert reached == sorted(reached)
    assert max(reached) <= DRAFT_LEN_MAX


def test_overrides_reach_the_policy() -> None:
    """Catches a parameter that is accepted and ignored."""
    policy = make_policy("streak", 4, {"cap": 10, "up": 2})
    assert length_after(policy, (4, 4)) == 8
    assert length_after(policy, (8, 8)) == 10
    assert length_after(policy, (10, 2)) == 10, "with up 2, two are enough to stay"
    assert length_after(policy, (10, 1)) == 4
    assert length_after(make_policy("streak", 4, {"up": 7}), (4, 4), (8, 6)) == 4


def test_defaults_and_registry() -> None:
    """Catches a receipt that echoes other parameters than those in force."""
    assert resolve_policy_params("streak", {}) == {"cap": DRAFT_LEN_MAX, "up": 6}
    assert resolve_policy_params("streak", {"cap": 9}) == {"cap": 9, "up": 6}
    policy = make_policy("streak", 8, {})
    assert isinstance(policy, Streak)
    assert policy.name == "streak"


def test_random_rounds_follow_the_rule() -> None:
    """Catches a transition that the table missed: 300 random histories against the plain rule."""
    rng = random.Random(6)
    for _ in range(300):
        base, cap, up = rng.randrange(1, 20), rng.randrange(1, 65), rng.randrange(1, 20)
        policy = make_policy("streak", base, {"cap": cap, "up": up})
        expected = base
        for _ in range(20):
            draft_len = rng.randrange(0, 65)
            accepted_len = rng.choice((draft_len, rng.randrange(0, draft_len + 1)))
            if draft_len and accepted_len == draft_len:
                expected = min(2 * expected, max(base, cap))
            elif accepted_len < up:
                expected = base
            assert length_after(policy, (draft_len, accepted_len)) == expected
