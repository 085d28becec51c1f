"""The learned drafter: pairing of taps and tokens, batches, scratch.

Catches an off-by-one between taps and tokens, a prompt of which only the last chunk is seen, slots
that differ by how they were batched, a draft that leaves something in the head's store, and a
tree whose nodes see each other.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.drafter import NO_DRAFT
from engine.draft.eagle import EagleDrafter
from engine.draft.head import EagleHead
from engine.draft.head_file import load_head, read_facts
from engine.draft.tree import TreeLimits
from engine.errors import ModelError
from tests.draft import tiny_head
from tests.draft.tiny_head import VOCAB_SIZE, taps_of

LIMITS = TreeLimits(num_nodes=9, num_children=3, depth=4)
TEXT = [3, 17, 42, 5, 5, 9, 30, 31, 2, 8, 44, 3, 17]
TOLERANCE = 1e-4  # batches round differently; drafts may, output may not


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    return tiny_head.tiny_head(tmp_path_factory.mktemp("head"))


def drafter_of(head: EagleHead, shape: str = "tree") -> EagleDrafter:
    return EagleDrafter(head, "tree" if shape == "tree" else "chain", LIMITS)


def fed(drafter: EagleDrafter, ids: list[int], chunks: list[int]) -> EagleDrafter:
    """Give a drafter a text: prompt all but the last token, its taps chunk by chunk."""
    drafter.begin(ids[:-1])
    drafter.extend(ids[-1:])
    at = 0
    for length in [*chunks, len(ids)]:
        end = min(at + length, len(ids) - 1)
        if end > at:
            drafter.feed(at, {key: rows[at:end] for key, rows in taps_of(ids).items()})
        at = end
    return drafter


def first_log_probs(head: EagleHead, ids: list[int]) -> torch.Tensor:
    """What the head says behind a text, slot by slot, from its definition."""
    head.reset()
    taps = taps_of(ids)
    for position in range(len(ids) - 1):
        rows = torch.stack([taps[layer][position : position + 1] for layer in taps], dim=1)
        last = head.extend(head.fuse(rows), torch.tensor(ids[position + 1 : position + 2]))
    return head.log_probs(last)[0]


@settings(deadline=None, max_examples=25)
@given(
    ids=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=2, max_size=24),
    chunks=st.lists(st.integers(1, 9), max_size=4),
)
def test_any_chunks_give_the_same_slots(head: EagleHead, ids: list[int], chunks: list[int]) -> None:
    wanted = first_log_probs(head, ids)
    tree = fed(drafter_of(head), ids, chunks).grow(4)
    assert head.num_slots == len(ids) - 1
    best = int(wanted.argmax())
    assert tree.ids[0] == int(head.vocab_ids[best])
    assert abs(tree.log_probs[0] - float(wanted[best])) < TOLERANCE


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_off_by_one_is_seen(head: EagleHead, shift: int) -> None:
    """The mutation: taps of the neighbouring position give other drafts."""
    right = fed(drafter_of(head), TEXT, []).grow(4)
    drafter = drafter_of(head)
    drafter.begin(TEXT[:-1])
    drafter.extend(TEXT[-1:])
    drafter.feed(0, {key: rows.roll(shift, 0)[:-1] for key, rows in taps_of(TEXT).items()})
    wrong = drafter.grow(4)
    assert abs(wrong.log_probs[0] - right.log_probs[0]) > 10 * TOLERANCE


def test_swapped_layers_are_seen(head: EagleHead) -> None:
    right = fed(drafter_of(head), TEXT, []).grow(4)
    taps = taps_of(TEXT)
    drafter = drafter_of(head)
    drafter.begin(TEXT[:-1])
    drafter.extend(TEXT[-1:])
    drafter.feed(0, {0: taps[2][:-1], 2: taps[0][:-1], 3: taps[3][:-1]})
    assert abs(drafter.grow(4).log_probs[0] - right.log_probs[0]) > 10 * TOLERANCE


def test_scratch_never_stays(head: EagleHead) -> None:
    """Drafting again, after other drafts, gives the same; the store holds verified slots only."""
    drafter = fed(drafter_of(head), TEXT, [])
    before = drafter.grow(4)
    assert head.num_slots == len(TEXT) - 1
    for _ in range(3):
        assert drafter.grow(4) == before
    drafter.extend([7])
    taps = taps_of([*TEXT, 7])
    drafter.feed(len(TEXT) - 1, {key: rows[-2:-1] for key, rows in taps.items()})
    after = drafter.grow(4)
    fresh = fed(drafter_of(head), [*TEXT, 7], []).grow(4)
    assert after.ids == fresh.ids
    assert torch.allclose(
        torch.tensor(after.log_probs), torch.tensor(fresh.log_probs), atol=TOLERANCE
    )


def test_a_node_is_as_likely_as_its_path_drafted_alone(head: EagleHead) -> None:
    """Catches a mask through which siblings see each other, and a wrong rotary position."""
    tree = fed(drafter_of(head), TEXT, []).grow(4)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert max(len(path) for path in paths) > 2
    index_of = {int(token): idx for idx, token in enumerate(head.vocab_ids)}
    for path, found in zip(paths, tree.log_probs, strict=True):
        fed(drafter_of(head), TEXT, [])._catch_up()
        taps = taps_of(TEXT)
        rows = torch.stack([taps[layer][-2:-1] for layer in taps], dim=1)
        head.num_slots -= 1
        output = head.extend(head.fuse(rows), torch.tensor(TEXT[-1:]))
        total, scratch = 0.0, None
        for depth, token in enumerate(path, start=1):
            total += float(head.log_probs(output)[0, index_of[token]])
            hidden = torch.zeros(1, depth, dtype=torch.bool)
            slots = head.draft(output, torch.tensor([token]), depth, scratch, hidden)
            output = slots.outputs
            parts = [slots.keys_values] if scratch is None else [scratch, slots.keys_values]
            scratch = torch.cat(parts, dim=2)
        assert abs(total - found) < TOLERANCE


def test_a_chain_is_the_greedy_path(head: EagleHead) -> None:
    chain = fed(drafter_of(head, "chain"), TEXT, []).draft((), 5, is_idle=True)
    assert chain.source == "eagle" and not chain.parents and len(chain.ids) == 5
    single = TreeLimits(5, 1, 5)
    alike = fed(EagleDrafter(head, "tree", single), TEXT, []).draft((), 5, is_idle=True)
    assert alike.ids == chain.ids and alike.parents == (-1, 0, 1, 2, 3)


def test_nothing_is_drafted_while_frames_are_in_flight(head: EagleHead) -> None:
    drafter = fed(drafter_of(head), TEXT, [])
    assert drafter.draft((), 4, is_idle=False) == NO_DRAFT
    assert drafter.draft((1,), 4, is_idle=True) == NO_DRAFT
    assert drafter.draft((), 0, is_idle=True) == NO_DRAFT


def test_what_is_done_while_waiting_changes_no_draft(head: EagleHead) -> None:
    """Catches taps that are fused twice or lost, and work for tokens that are not committed."""
    wanted = fed(drafter_of(head), TEXT, []).grow(4)
    drafter = drafter_of(head)
    drafter.begin(TEXT[:-3])
    drafter.prepare(())
    taps = taps_of(TEXT)
    for start, end in ((0, 4), (4, 9), (9, len(TEXT) - 1)):
        drafter.feed(start, {key: rows[start:end] for key, rows in taps.items()})
        drafter.prepare(())
        assert head.num_slots == min(end, len(TEXT) - 4)
    drafter.extend(TEXT[-3:])
    drafter.prepare(())
    assert head.num_slots == len(TEXT) - 1
    found = drafter.grow(4)
    assert found.ids == wanted.ids
    assert torch.allclose(
        torch.tensor(found.log_probs), torch.tensor(wanted.log_probs), atol=TOLERANCE
    )


def test_missing_taps_are_named(head: EagleHead) -> None:
    drafter = drafter_of(head)
    drafter.begin(TEXT[:-1])
    drafter.extend(TEXT[-1:])
    taps = {key: rows[:3] for key, rows in taps_of(TEXT).items()}
    drafter.feed(0, taps)
    with pytest.raises(ModelError, match="taps of positions 3 to 11 were never fed"):
        drafter.grow(4)
    with pytest.raises(ModelError, match="from position 5 on, but those from 3 on lack"):
        drafter.feed(5, taps)
    with pytest.raises(ModelError, match=r"taps of layers \[0\]; the head fuses \[0, 2, 3\]"):
        drafter.feed(0, {0: taps[0]})


def test_taps_that_come_again_change_nothing(head: EagleHead) -> None:
    drafter = fed(drafter_of(head), TEXT, [])
    before = drafter.grow(4)
    drafter.feed(4, {key: rows[4:-1] for key, rows in taps_of(TEXT).items()})
    assert drafter.grow(4) == before


def test_a_job_begins_anew(head: EagleHead) -> None:
    drafter = fed(drafter_of(head), TEXT[::-1], [])
    drafter.grow(4)
    assert fed(drafter, TEXT, []).grow(4) == fed(drafter_of(head), TEXT, []).grow(4)


def test_more_slots_than_the_first_store(head: EagleHead) -> None:
    ids = [(7 * idx) % VOCAB_SIZE for idx in range(1100)]
    fed(drafter_of(head), ids, [300]).grow(2)
    assert head.num_slots == 1099


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no drafter's weights at .* python -m bench\.train"):
        read_facts(tmp_path / "none.safetensors")
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    with pytest.raises(ModelError, match="is no drafter's file"):
        read_facts(garbage)
    newer = tiny_head.write_head(tmp_path / "newer.safetensors", facts=tiny_head.other_format())
    with pytest.raises(ModelError, match="format 2; this engine reads 1"):
        read_facts(newer)
    path = tiny_head.write_head(tmp_path / "head.safetensors")
    assert load_head(path).digest == load_head(path).digest
