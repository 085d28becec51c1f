"""The bounds by small tables: what they know, what they keep, what they draft."""

from __future__ import annotations

import msgspec
import pytest

from bench.bounds import CLAIRVOYANT, ORACLE, Clairvoyant, KnownOutlook, OracleDrafter, knowing
from engine.coordinator.job import DraftMeans, JobRequest, make_levers
from engine.coordinator.planner import HORIZON
from engine.coordinator.policies import POLICIES
from engine.coordinator.policy import Situation
from engine.coordinator.ring_cost import CostPrior, RingCost
from engine.draft.drafter import NO_DRAFT, Draft
from engine.draft.registry import DRAFTERS

OUTPUT = (10, 11, 12, 13, 14, 15, 16, 17)
LONG_RING = CostPrior(
    compute_frame_ns=1.0,
    compute_position_ns=0.001,
    transit_frame_ns=10_000.0,
    transit_position_ns=0.0,
    overlap=0.0,
)


def situation(committed_len: int, unverified_len: int = 0, in_flight: int = 0) -> Situation:
    """At most eight tokens of output, as `OUTPUT` has."""
    return Situation(
        committed_len=committed_len,
        remaining_len=len(OUTPUT) - committed_len,
        in_flight=in_flight,
        unverified_len=unverified_len,
        anchor_len=0 if in_flight else 1,
    )


def draft_of(*ids: int) -> Draft:
    return Draft(ids, "ngram", 3)


ACCEPTED = [
    (situation(1), (11, 12, 13), 3),
    (situation(1), (11, 12, 99), 2),
    (situation(1), (99, 12, 13), 0),
    (situation(1), (12, 13, 14), 0),  # right tokens, one place off
    (situation(1), (11, 99, 13), 1),  # what comes behind the first wrong one does not count
    (situation(1, unverified_len=2), (13, 14), 2),
    (situation(1, unverified_len=2), (11, 12), 0),
    (situation(6), (16, 17), 2),
    (situation(6), (16, 17, 18, 19), 2),  # behind the end nothing is accepted
    (situation(7), (17,), 1),
    (situation(7, unverified_len=1), (18,), 0),
    (situation(1), (), 0),
]


@pytest.mark.parametrize(("now", "ids", "accepted_len"), ACCEPTED)
def test_known_outlook_counts_accepted_drafts(
    now: Situation, ids: tuple[int, ...], accepted_len: int
) -> None:
    """Catches a comparison that begins at the wrong token or goes on behind a wrong one."""
    assert KnownOutlook(OUTPUT).accepted_len(now, draft_of(*ids)) == accepted_len


@pytest.mark.parametrize(
    ("now", "ids", "expected"),
    [
        (situation(1), (11, 12, 99), [1, 1, 0, 0, 0, 0]),
        (situation(1), (99,), [0, 0, 0, 0, 0, 0]),
        (situation(1), (11, 12, 13), [1, 1, 1, 1, 1, 1]),  # not told further
        (situation(1, unverified_len=2), (13, 99), [1, 1, 1, 0, 0, 0]),
        (situation(1, unverified_len=2), (99, 14), [1, 1, 0, 0, 0, 0]),
        (situation(6), (16, 99), [1]),
        (situation(7), (99,), [0]),  # never empty
    ],
)
def test_known_outlook_survival(now: Situation, ids: tuple[int, ...], expected: list[int]) -> None:
    """Catches survival that leaves out what is on its way, or does not fall to nothing."""
    outlook = KnownOutlook(OUTPUT)
    assert outlook.survival(now, draft_of(*ids)).tolist() == expected


def test_known_outlook_ends_at_the_horizon() -> None:
    """Catches an outlook as long as the output: planning would take as long as decoding."""
    now = Situation(
        committed_len=1, remaining_len=4 * HORIZON, in_flight=0, unverified_len=0, anchor_len=1
    )
    assert len(KnownOutlook(range(4 * HORIZON)).survival(now, draft_of(1, 2))) == HORIZON


@pytest.mark.parametrize(("now", "ids", "accepted_len"), ACCEPTED)
@pytest.mark.parametrize("prior", [CostPrior(), LONG_RING], ids=["default", "long"])
def test_clairvoyant_keeps_no_wrong_draft(
    now: Situation, ids: tuple[int, ...], accepted_len: int, prior: CostPrior
) -> None:
    """Catches a bound that sends what it knows to be wrong."""
    policy = Clairvoyant(OUTPUT, RingCost(prior), 8, 8)
    kept = policy.keep_len(now, draft_of(*ids))
    assert 0 <= kept <= accepted_len


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        ((11, 12, 13, 14, 15, 16), 6),  # the last token is never drafted: six are all there are
        ((11, 12, 13, 99, 15, 16), 3),
        ((11, 99, 13, 14, 15, 16), 1),
        ((99, 12, 13, 14, 15, 16), 0),
        ((11, 12), 2),
    ],
)
def test_clairvoyant_keeps_all_that_is_right_where_loops_are_long(
    ids: tuple[int, ...], kept: int
) -> None:
    """Catches a bound that leaves right drafts unsent although nothing could cost less."""
    policy = Clairvoyant(OUTPUT, RingCost(LONG_RING), 8, 1)
    assert policy.keep_len(situation(1), draft_of(*ids)) == kept
    assert policy.name == CLAIRVOYANT
    assert policy.next_len(situation(1)) == 8


def test_oracle_drafts_what_comes_next() -> None:
    """Catches perfect drafts that forget what is on its way, or run over the end."""
    drafter = OracleDrafter(OUTPUT)
    drafter.begin([1, 2, 3])
    assert drafter.draft((), 3) == Draft((10, 11, 12), ORACLE, 0)
    drafter.extend([10])
    for speculative, max_len, expected in (
        ((), 3, (11, 12, 13)),
        ((11, 12), 2, (13, 14)),
        ((11, 12, 13, 14), 64, (15, 16, 17)),
        ((), 1, (11,)),
    ):
        assert drafter.draft(speculative, max_len) == Draft(expected, ORACLE, 0)
    for speculative, max_len in ((OUTPUT[1:], 4), ((), 0), (OUTPUT, 4)):
        assert drafter.draft(speculative, max_len) == NO_DRAFT
    drafter.extend(OUTPUT[1:7])
    assert drafter.draft((), 4).ids == (17,)
    drafter.begin([1])
    assert drafter.draft((), 1).ids == (10,), "a new job starts at the first token"
    assert (drafter.name, drafter.goes_on) == (ORACLE, False)


def test_bounds_are_not_in_the_engines_registries() -> None:
    """Catches a bound that a user could choose, and that would then be taken for a claim."""
    assert CLAIRVOYANT not in POLICIES
    assert ORACLE not in DRAFTERS


@pytest.mark.parametrize("policy", ["fixed-k", CLAIRVOYANT])
@pytest.mark.parametrize("drafter", ["ngram", ORACLE])
def test_the_answer_goes_to_what_asks_for_it_and_nowhere_else(policy: str, drafter: str) -> None:
    """Catches an arm that is told the answer unasked, or a bound that is not told."""
    levers = msgspec.structs.replace(
        make_levers(draft_len=5, depth=3), policy=policy, drafter=drafter
    )
    request = JobRequest((1, 2), levers, frozenset(), "00")
    told = knowing(request, OUTPUT)
    cost = RingCost(LONG_RING)
    made = told.make_policy(levers, cost)
    assert isinstance(made, Clairvoyant) == (policy == CLAIRVOYANT)
    assert made.next_len(situation(1)) == 5
    maker = told.make_drafter(levers, DraftMeans(cost))
    assert isinstance(maker, OracleDrafter) == (drafter == ORACLE)
    assert (told.levers, told.prompt_ids) == (levers, (1, 2))
    if (policy, drafter) == ("fixed-k", "ngram"):
        assert told == request
