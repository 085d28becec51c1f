"""Replay: recorded ids whatever the policy, times by closed form, bounds that are bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.bounds import Clairvoyant, OracleDrafter
from bench.replay import Replayed, replay
from bench.ring_model import RingShape, ServiceTime
from bench.traces import Trace
from engine.coordinator.policies import make_policy
from engine.coordinator.policy import DraftPolicy, FixedK
from engine.coordinator.records import FrameRecord
from engine.coordinator.ring_cost import RingCost
from engine.draft.drafter import Draft, Drafter, DraftFate, NoDrafter
from engine.draft.ngram import NgramDrafter
from engine.draft.registry import make_drafter
from engine.errors import LonghaulError

EOS = 2
SHAPE = RingShape(
    stages=(ServiceTime(4e6, 0.2e6, 1e3),) * 3,
    hosts=(0, 0, 1),
    one_way_ns=(20_000_000, 30_000_000, 20_000_000, 25_000_000),
    rate_bytes_per_s=(0, 10**7, 0, 0),
    hop_ns=0.1e6,
    head_ns=0.3e6,
    id_bytes=4,
    state_bytes=2304,
    overlap=0.4,
)
POLICIES: dict[str, Callable[[Trace, int], DraftPolicy]] = {
    "fixed-k": lambda trace, depth: make_policy("fixed-k", 8, {}, depth),
    "two-state": lambda trace, depth: make_policy("two-state", 4, {"high": 12}, depth),
    "streak": lambda trace, depth: make_policy("streak", 4, {}, depth),
    "planner": lambda trace, depth: make_policy("planner", 64, {}, depth),
    "clairvoyant": lambda trace, depth: Clairvoyant(trace.output_ids, RingCost(), 64, depth),
}
DRAFTERS: dict[str, Callable[[Trace], Drafter]] = {
    "none": lambda trace: NoDrafter(),
    "ngram": lambda trace: make_drafter("ngram", 2),
    "ngram-filled": lambda trace: make_drafter("ngram-filled", 2),
    "oracle": lambda trace: OracleDrafter(trace.output_ids),
}
ROUNDS = ("applied", "refuted", "closed")


def trace_of(seed: int, num_output: int = 60, by_eos: bool = False) -> Trace:
    """A text that copies from itself, with slips, so that drafts are sometimes right."""
    rng = random.Random(seed)
    text = [rng.randrange(10, 40) for _ in range(rng.randrange(1, 40))]
    prompt_len = len(text)
    while len(text) < prompt_len + num_output:
        begin = rng.randrange(len(text))
        text += text[begin : begin + rng.randrange(2, 25)]
        if rng.random() < 0.5:
            text.append(rng.randrange(10, 40))
    output = text[prompt_len : prompt_len + num_output]
    if by_eos:
        output[-1] = EOS
    return Trace(
        cell="made-up",
        kind="draftable",
        group="made-up",
        prompt_ids=tuple(text[:prompt_len]),
        output_ids=tuple(output),
        max_new_tokens=num_output + 40 * by_eos,
        ended_by_eos=by_eos,
        receipt_id=f"trace-{seed}",
    )


def rounds_of(replayed: Replayed) -> list[FrameRecord]:
    return [record for record in replayed.records if record.outcome in ROUNDS]


def check_replayed(trace: Trace, replayed: Replayed) -> None:
    """What holds of every replay."""
    assert replayed.num_output == len(trace.output_ids)
    assert sum(record.committed_len for record in replayed.records) == len(trace.output_ids)
    for record in rounds_of(replayed):
        assert record.accepted_len <= record.tested_len <= record.draft_len
    assert {record.outcome for record in replayed.records} <= {*ROUNDS, "prefill", "stale"}
    assert replayed.decode_ns > 0


class Branching(NgramDrafter):
    """A tree when the ring is idle: what n-grams say, and something else beside each token."""

    name = "tree"
    goes_on = False

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        found = super().draft(speculative, max_len, is_idle)
        if not is_idle or not found.ids:
            return found
        ids = [token for right in found.ids for token in (right, right + 50)]
        parents = [2 * (node // 2 - 1) if node > 1 else -1 for node in range(len(ids))]
        order = _preorder(parents)
        place = {-1: -1, **{node: idx for idx, node in enumerate(order)}}
        return Draft(
            tuple(ids[node] for node in order),
            "tree",
            found.match_len,
            (),
            tuple(place[parents[node]] for node in order),
        )


def _preorder(parents: list[int], node: int = -1) -> list[int]:
    below = [child for child, parent in enumerate(parents) if parent == node]
    own = [] if node < 0 else [node]
    return own + [found for child in below for found in _preorder(parents, child)]


@pytest.mark.parametrize("depth", [1, 4])
def test_a_tree_is_answered_as_the_target_would(depth: int) -> None:
    """Catches a replay that reads a tree as a chain, and fates that the drafter never hears of."""
    for seed, by_eos in ((1, False), (2, True)):
        trace = trace_of(seed, 40, by_eos)
        told: list[DraftFate] = []
        drafter = Branching(2)
        drafter.observe = told.append
        chain = replay(trace, SHAPE, FixedK(4), NgramDrafter(2), 1)
        replayed = replay(trace, SHAPE, FixedK(4), drafter, depth)
        check_replayed(trace, replayed)
        trees = [record for record in rounds_of(replayed) if record.source == "tree"]
        assert trees and max(record.accepted_len for record in trees) > 1
        assert all(record.sent_len == len(record.parents) for record in trees)
        assert [fate.accepted_len for fate in told if fate.source == "tree"] == [
            record.accepted_len for record in trees
        ]
        if depth == 1:  # the branches beside are never right: a tree commits what its chain does
            ours = [record.committed_len for record in rounds_of(replayed)]
            assert ours == [record.committed_len for record in rounds_of(chain)]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_every_policy_and_drafter_gives_the_recorded_ids(
    policy: str, drafter: str, depth: int
) -> None:
    """Catches a lever that reaches the text (a replay that differs raises), or does not finish."""
    for seed, by_eos in ((1, False), (2, True)):
        trace = trace_of(seed, 40, by_eos)
        first, second = (
            replay(trace, SHAPE, POLICIES[policy](trace, depth), DRAFTERS[drafter](trace), depth)
            for _ in range(2)
        )
        check_replayed(trace, first)
        assert first == second, "equal inputs, equal times"
        assert all(record.in_flight <= max(depth, 8) for record in first.records)
        decoding = [record for record in first.records if record.outcome != "prefill"]
        assert all(record.in_flight <= depth for record in decoding)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    num_output=st.integers(2, 50),
    by_eos=st.booleans(),
    policy=st.sampled_from(sorted(POLICIES)),
    drafter=st.sampled_from(sorted(DRAFTERS)),
    depth=st.integers(1, 8),
    prefill_chunk=st.sampled_from((1, 7, 256)),
)
def test_any_text_is_replayed(
    seed: int,
    num_output: int,
    by_eos: bool,
    policy: str,
    drafter: str,
    depth: int,
    prefill_chunk: int,
) -> None:
    """Catches a rare place of the end, a divergence or a prompt cut where it breaks."""
    trace = trace_of(seed, num_output, by_eos)
    replayed = replay(
        trace, SHAPE, POLICIES[policy](trace, depth), DRAFTERS[drafter](trace), depth, prefill_chunk
    )
    check_replayed(trace, replayed)


@given(
    services=st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**4)),
        min_size=1,
        max_size=4,
    ),
    one_way_ns=st.integers(0, 10**8),
    hop_ns=st.integers(0, 10**6),
    head_ns=st.integers(0, 10**6),
    num_output=st.integers(2, 12),
)
@settings(max_examples=40)
def test_plain_decoding_takes_its_closed_form(
    services: list[tuple[int, int, int]],
    one_way_ns: int,
    hop_ns: int,
    head_ns: int,
    num_output: int,
) -> None:
    """Catches a loop that is a hop short, a coordinator that is free, and drafts that were sent."""
    ring = RingShape(
        stages=tuple(ServiceTime(*service) for service in services),
        hosts=(0,) * len(services),
        one_way_ns=(one_way_ns,) * (len(services) + 1),
        rate_bytes_per_s=(10**6,) * (len(services) + 1),
        hop_ns=hop_ns,
        head_ns=head_ns,
        id_bytes=4,
        state_bytes=1000,
        overlap=1.0,  # one frame at a time: nothing to share
    )
    trace = trace_of(3, num_output)
    replayed = replay(trace, ring, FixedK(0), NoDrafter(), 1)
    expected = 0.0
    for end in range(len(trace.prompt_ids) + 1, len(trace.prompt_ids) + num_output):
        # 1 µs a byte: ids on two links, states on the others.
        wire_ns = 1000 * (2 * 4 + (len(services) - 1) * 1000)
        expected += head_ns + (len(services) + 1) * (hop_ns + one_way_ns) + wire_ns
        expected += sum(frame + each + context * end for frame, each, context in services)
    assert replayed.decode_ns == pytest.approx(expected)
    assert replayed.tok_per_s == pytest.approx((num_output - 1) / expected * 1e9)
    rounds = rounds_of(replayed)
    assert [(record.positions_len, record.committed_len) for record in rounds] == (
        [(1, 1)] * (num_output - 1)
    )


@pytest.mark.parametrize("drafter", ["ngram", "ngram-filled", "oracle"])
def test_clairvoyant_never_has_a_draft_refuted(drafter: str) -> None:
    """Catches a bound that does not know what it was told."""
    num_drafts = 0
    for seed in range(6):
        trace = trace_of(seed, 60, seed % 2 == 1)
        policy = Clairvoyant(trace.output_ids, RingCost(), 64, 8)
        replayed = replay(trace, SHAPE, policy, DRAFTERS[drafter](trace), 8)
        for record in rounds_of(replayed):
            assert record.outcome != "refuted"
            assert record.accepted_len == record.tested_len
            num_drafts += record.accepted_len
        assert {record.epoch for record in replayed.records} == {0}, "no divergence, ever"
        assert (replayed.num_dropped, replayed.num_stale_computed) == (0, 0)
    assert num_drafts > 30


@pytest.mark.parametrize("policy", POLICIES)
def test_the_oracles_drafts_are_all_accepted(policy: str) -> None:
    """Catches perfect drafts that are offset by one, at the start, the end or behind a frame."""
    for seed in range(4):
        trace = trace_of(seed, 60, seed % 2 == 1)
        replayed = replay(
            trace, SHAPE, POLICIES[policy](trace, 4), OracleDrafter(trace.output_ids), 4
        )
        rounds = rounds_of(replayed)
        assert all(record.accepted_len == record.draft_len for record in rounds)
        assert {record.epoch for record in replayed.records} == {0}
        if policy == "fixed-k":
            assert sum(record.accepted_len for record in rounds) > 40


def test_drafting_right_is_faster_and_wrong_is_counted() -> None:
    """Catches times that do not depend on what was drafted."""
    trace = trace_of(5, 60)
    plain = replay(trace, SHAPE, FixedK(0), NoDrafter(), 1)
    oracle = replay(trace, SHAPE, FixedK(8), OracleDrafter(trace.output_ids), 4)
    assert oracle.tok_per_s > 8 * plain.tok_per_s
    filled = replay(trace, SHAPE, FixedK(8), make_drafter("ngram-filled", 3), 4)
    stale = [record for record in filled.records if record.outcome == "stale"]
    assert stale
    assert filled.num_dropped + filled.num_stale_computed > 0


def alter(trace: Trace, **changes: object) -> Trace:
    return replace(trace, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "altered",
    [
        alter(trace_of(1, 40), max_new_tokens=39),  # the receipt claims a token too many
        alter(trace_of(1, 40), max_new_tokens=41),  # one is missing
        alter(trace_of(1, 40), output_ids=trace_of(1, 40).output_ids[:-1]),
        alter(trace_of(1, 40), output_ids=(*trace_of(1, 40).output_ids, 11)),
        alter(trace_of(2, 40, True), ended_by_eos=False),
        alter(trace_of(2, 40, True), output_ids=(*trace_of(2, 40, True).output_ids, EOS)),
        alter(trace_of(2, 40, True), output_ids=(EOS, *trace_of(2, 40, True).output_ids[1:])),
    ],
)
@pytest.mark.parametrize("depth", [1, 4])
def test_an_altered_trace_raises(altered: Trace, depth: int) -> None:
    """Catches a recorded text that no decode could have given, and is replayed all the same."""
    with pytest.raises(LonghaulError, match=r"trace-\d: the replay gave other ids"):
        replay(altered, SHAPE, FixedK(4), make_drafter("ngram", 2), depth)
