"""Trees enter tokens per round and nothing that tells of acceptance (DESIGN sections 5 and 14)."""

from __future__ import annotations

import msgspec
import pytest

from analysis.checks import check_identities
from analysis.curves import acceptance_by_distance, accepted_lengths, pooled_alpha
from analysis.determinism import drafts_with_fates
from analysis.load import Experiment, job_measures, jobs_frame, load_experiment, rounds_frame
from analysis.requests import requests_of
from bench.schema import Receipt
from engine.errors import ReceiptError
from tests.analysis.altered import changed
from tests.analysis.conftest import Invented

ARM = "chain-k8"


def as_trees(receipt: Receipt) -> Receipt:
    """As if every applied frame with drafts had been a tree of one branch."""
    frames = [
        msgspec.structs.replace(
            frame, source="tree", parents=list(range(-1, frame.sent_len - 1)), match_len=0
        )
        if frame.outcome == "applied" and frame.sent_len
        else frame
        for frame in receipt.frames
        if frame.outcome in ("prefill", "applied")
    ]
    return msgspec.structs.replace(receipt, frames=frames)


@pytest.fixture(scope="module")
def chains(decode_invented: Invented) -> Experiment:
    return load_experiment(decode_invented.folder, decode_invented.key_folders)


def test_trees_commit_and_tell_nothing_of_acceptance(chains: Experiment) -> None:
    """Catches a measure, curve, table or test that takes a tree's nodes for a chain's drafts."""
    trees = changed(chains, ARM, as_trees)
    before = jobs_frame(chains)
    after = jobs_frame(trees)
    mine, others = after[after["arm"] == ARM], after[after["arm"] != ARM]
    assert len(mine) and (mine[["sum_draft", "sum_accepted", "sum_tested"]] == 0).all(axis=None)
    assert mine[["acceptance_rate", "alpha_hat"]].isna().all(axis=None)
    assert (mine["tokens_per_round"] > 1).all()
    assert others.equals(before[before["arm"] != ARM])
    frames = rounds_frame(trees)
    frames = frames[frames["arm"] == ARM]
    assert "parents" not in frames.columns and (frames["source"] == "tree").any()
    assert acceptance_by_distance(frames, 8).empty
    assert accepted_lengths(frames).empty
    assert pooled_alpha(frames) != pooled_alpha(frames), "NaN: nothing was tested"
    assert ARM not in set(drafts_with_fates(trees)["arm"])
    assert ARM in set(drafts_with_fates(chains)["arm"])
    for request in requests_of(trees, ARM):
        assert request.bits == () and set(request.rounds) == {(0, 0, 0)}
        assert sum(request.committed_lens) == request.num_committed


def test_tokens_per_round_counts_trees(chains: Experiment) -> None:
    """Catches rounds that are left out where tokens are counted."""
    (receipt, *_) = [found for found, _ in chains.measured() if found.requested.arm == ARM]
    trees = as_trees(receipt)
    rounds = [frame for frame in trees.frames if frame.outcome == "applied"]
    found = job_measures(trees)
    assert found["rounds"] == len(rounds)
    expected = sum(frame.committed_len for frame in rounds) / len(rounds)
    assert found["tokens_per_round"] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted_len": 9, "tested_len": 9},
        {"accepted_len": 1, "tested_len": 3},
        {"draft_len": 2, "sent_len": 1, "accepted_len": 0, "tested_len": 0},
    ],
)
def test_a_trees_counts_are_held_to_what_can_be(
    chains: Experiment, changes: dict[str, int]
) -> None:
    """Catches trees that are waved through, and one that stops at a leaf taken for a defect."""
    receipt = as_trees(next(r for r, _ in chains.measured() if r.requested.arm == ARM))
    first = next(idx for idx, frame in enumerate(receipt.frames) if frame.source == "tree")
    frames = list(receipt.frames)
    whole = {"draft_len": 5, "sent_len": 5, "accepted_len": 2, "tested_len": 2}
    frames[first] = msgspec.structs.replace(frames[first], **whole)
    failed = msgspec.structs.replace(receipt, frames=frames, status="failed")
    check_identities(failed)  # a leaf: nothing was refuted
    frames[first] = msgspec.structs.replace(frames[first], **changes)
    with pytest.raises(ReceiptError):
        check_identities(msgspec.structs.replace(failed, frames=frames))
