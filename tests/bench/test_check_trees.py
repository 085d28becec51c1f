"""Defects of trees, planted one by one in the receipt of a job that drafted trees and chains."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from bench.check_rules import check_receipt
from bench.schema import Receipt
from engine.coordinator.policies import make_policy
from engine.coordinator.records import Arrival, RequestDraft, SendFrame
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import NO_DRAFT, Draft
from tests.bench.receipt_builder import (
    EOS,
    MadeUpTarget,
    counters_of,
    frame_row,
    make_plan,
    make_receipt,
    timing_of,
)
from tests.coordinator.reference_rounds import Text, make_limits
from tests.coordinator.test_trees_exhaustive import answers

CHAIN_JOB = 6  # chain-k4 of the block whose text ends with EOS
PARENTS = (-1, 0, 1, 0, -1)


def make_tree_receipt() -> Receipt:
    """True rows: trees that are right two deep, then a chain, by turns."""
    plan = make_plan()
    receipt = make_receipt(plan, "0" * 64, plan.jobs[CHAIN_JOB], None)
    target = MadeUpTarget(receipt.position.cell)
    config = receipt.requested
    text = Text(tuple(target.prompt), tuple(target.output))
    limits = make_limits(config.max_new_tokens, config.depth, prefill_chunk=config.prefill_chunk)
    policy = make_policy(config.policy, config.draft_len, config.policy_params)
    machine = RoundMachine(target.prompt, limits, policy)
    wire: list[SendFrame] = []
    turns = 0
    now_ns = 0

    def carry_out(actions: list) -> None:
        nonlocal turns
        for action in actions:
            if isinstance(action, SendFrame):
                wire.append(action)
            elif isinstance(action, RequestDraft):
                turns += action.is_idle
                at = machine.frontier + len(action.speculative)
                draft = NO_DRAFT
                if action.is_idle and turns % 2:
                    ids = (target.token(at), target.token(at + 1), 7, 8, 9)
                    draft = Draft(ids, "tree", 0, (), PARENTS)
                elif action.is_idle:
                    draft = Draft((target.token(at), 501)[: action.max_len], "ngram", 2)
                carry_out(machine.on_draft(action.request_id, draft, now_ns))

    carry_out(machine.start(now_ns))
    while wire:
        frame = wire.pop(0)
        now_ns += 1000
        ids = answers(text, frame) if frame.answer_from < frame.start + len(frame.ids) else []
        carry_out(machine.on_reply(frame.epoch, frame.start, ids, Arrival(now_ns, 50)))
    assert machine.output_ids == target.output and EOS in target.output
    rows = [
        msgspec.structs.replace(frame_row(record), parents=list(record.parents))
        for record in machine.records()
    ]
    return msgspec.structs.replace(
        receipt,
        frames=rows,
        timing=timing_of(rows, now_ns),
        counters=counters_of(machine, rows, receipt.ring.num_stages),
        output_ids=machine.output_ids,
    )


@pytest.fixture(scope="module")
def tree_receipt() -> Receipt:
    return make_tree_receipt()


def findings(receipt: Receipt) -> list[tuple[str, str]]:
    return list(check_receipt(receipt))


def test_true_trees_are_clean(tree_receipt: Receipt) -> None:
    """Catches a rule that refuses what the round machine does."""
    assert findings(tree_receipt) == []
    sources = [frame.source for frame in tree_receipt.frames]
    assert sources.count("tree") >= 3 and sources.count("ngram") >= 3
    assert any(frame.accepted_len == 2 for frame in tree_receipt.frames if frame.source == "tree")


def trees(receipt: Receipt) -> list[int]:
    return [idx for idx, frame in enumerate(receipt.frames) if frame.source == "tree"]


def with_frame(receipt: Receipt, idx: int, **changes: object) -> Receipt:
    frames = list(receipt.frames)
    frames[idx] = msgspec.structs.replace(frames[idx], **changes)
    return msgspec.structs.replace(receipt, frames=frames)


def tree(**changes: object) -> Callable[[Receipt], Receipt]:
    """The first tree changed."""
    return lambda receipt: with_frame(receipt, trees(receipt)[0], **changes)


def following(**changes: int) -> Callable[[Receipt], Receipt]:
    """Numbers of the frame behind the first tree changed by so much."""

    def change(receipt: Receipt) -> Receipt:
        idx = trees(receipt)[0] + 1
        frame = receipt.frames[idx]
        return with_frame(
            receipt, idx, **{name: getattr(frame, name) + by for name, by in changes.items()}
        )

    return change


def without_epochs(receipt: Receipt) -> Receipt:
    """As if a tree that was right left the epoch as it is."""
    frames = list(receipt.frames)
    first = trees(receipt)[0]
    for idx in range(first + 1, len(frames)):
        frames[idx] = msgspec.structs.replace(frames[idx], epoch=frames[idx].epoch - 1)
    return msgspec.structs.replace(receipt, frames=frames)


PLANTED: dict[str, tuple[Callable[[Receipt], Receipt], str]] = {
    "a parent less": (tree(parents=[-1, 0, 1, 0]), "4 parents of 5 nodes"),
    "no parents": (tree(parents=[]), "0 parents of 5 nodes"),
    "a parent that comes later": (tree(parents=[-1, 2, 1, 0, -1]), "depth first"),
    "a parent of its own": (tree(parents=[-1, 1, 1, 0, -1]), "depth first"),
    "a parent below the root": (tree(parents=[-2, 0, 1, 0, -1]), "depth first"),
    "a branch left and taken up again": (tree(parents=[-1, 0, -1, 0, -1]), "depth first"),
    "in flight with others": (tree(in_flight=2), "among 2 frames"),
    "k that is not its nodes": (tree(draft_len=4), "k = 4 of 5 nodes"),
    "a deeper path than the tree": (
        tree(accepted_len=4, tested_len=4, committed_len=5),
        "a = 4 in a tree 3 deep",
    ),
    "more tested than one behind": (tree(tested_len=5), "tested_len 5"),
    "a bonus that is not committed": (tree(committed_len=2), "commits 2 with a = 2"),
    "two bonuses": (tree(committed_len=4), "commits 4 with a = 2"),
    "a tree that is refuted": (
        tree(outcome="refuted", accepted_len=0, tested_len=1, committed_len=0),
        "a tree that is refuted",
    ),
    "a tree that hangs elsewhere": (tree(frontier=21), "its root stands at"),
    "a chain with parents": (
        lambda receipt: with_frame(receipt, trees(receipt)[0] + 1, parents=[-1]),
        "1 parents in no tree",
    ),
    "a tree called a chain": (tree(source="ngram"), "5 parents in no tree"),
    "a path that is not carried anew": (following(start=1, positions_len=-1), "behind the root"),
    "half a path": (following(positions_len=-1), "committed tokens, not 3"),
    "the epoch goes on": (without_epochs, "not 1"),
    "two epochs at once": (following(epoch=1), "is of epoch 2"),
    "a tree of another time": (
        lambda receipt: msgspec.structs.replace(receipt, schema="longhaul-receipt/6"),
        "a tree in a receipt of version 6",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(tree_receipt: Receipt, name: str) -> None:
    """Catches a rule about trees that is missing."""
    change, detail = PLANTED[name]
    found = [text for _, text in findings(change(tree_receipt))]
    assert any(detail in text for text in found), found


def test_only_the_end_may_lie_on_the_path(tree_receipt: Receipt) -> None:
    """Catches a check that refuses EOS in a tree, or takes it anywhere."""
    receipt = tree_receipt
    last = max(trees(receipt))
    frames = receipt.frames[: last + 1]
    frame = frames[-1]
    cut = msgspec.structs.replace(frame, accepted_len=2, tested_len=2, committed_len=2)
    ended = msgspec.structs.replace(receipt, frames=[*frames[:-1], cut])
    assert not [text for rule, text in findings(ended) if rule == "trees"]
    assert findings(with_frame(receipt, trees(receipt)[0], committed_len=2))
