"""Trees and taps through stages, message by message: what is answered, carried and refused.

The oracle's taps say of which layer, position and token they are, so a tap that is one off shows;
one test plants such an executor. Frames cross real codecs. Mutations that were tried and are caught
here: noise keyed by row; taps repacked; taps left out of replies without ids; parents not sent on;
each check of parents and taps in `take_frame` left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_ring import (
    HIDDEN_LEN,
    OracleExecutor,
    read_tap,
    repetitive_truth,
    tap_row,
)

from engine.coordinator.job import make_levers
from engine.defaults import TREE_NODES_MAX
from engine.model.decoder import Passed
from engine.stage.job import Forward, Report, StageIdentity, StageJob
from engine.transport.connection import Connection, Received
from engine.transport.message import JobErrorReport, Levers, Reply, Reset, Sampling, Verify
from engine.transport.taps import pack_taps, split_taps, tap_name, unpack_taps
from engine.transport.tensor import storage_view
from tests.model.tree_shapes import path_to, trees

TRUTH = repetitive_truth(alphabet=13, period=11)
NUM_STAGES = 3
TAPS = (0, 1)
PLAIN = make_levers(max_new_tokens=8)
TAPPED = msgspec.structs.replace(PLAIN, tap_layers=TAPS, tap_wire="fp8")
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
Tensors = dict[str, torch.Tensor]


def verify(start: int, ids: Sequence[int], answer_from: int, parents: Sequence[int] = ()) -> Verify:
    return Verify(
        job=7,
        epoch=0,
        start=start,
        positions_len=len(ids),
        answer_from=answer_from,
        ids=tuple(ids),
        parents=tuple(parents),
    )


class Stages:
    """A ring without sockets."""

    def __init__(self, levers: Levers = TAPPED, num_stages: int = NUM_STAGES) -> None:
        self.executors = [OracleExecutor(idx, num_stages, TRUTH) for idx in range(num_stages)]
        self.jobs = [
            StageJob(executor, StageIdentity(idx, "0" * 64, 1))
            for idx, executor in enumerate(self.executors)
        ]
        for job in self.jobs:
            job.on_reset(Reset(job=7, nonce="00", levers=levers))
        self.hops: list[Received] = []  # what each stage sent, of the last frame

    def send(self, message: Verify) -> tuple[Reply, Tensors]:
        """The reply to a frame, and its tensors."""
        received, self.hops = Received(message, {}, 0), []
        for job in self.jobs:
            (sent,) = feed(job, received.message, received.tensors)
            assert isinstance(sent, Forward), sent
            wire = Connection().send(sent.message, sent.tensors)
            (received,) = Connection().receive_data(bytes(wire))
            self.hops.append(received)
        assert isinstance(received.message, Reply)
        return received.message, received.tensors


def feed(job: StageJob, message: Any, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
    return job.on_verify(message, tensors, 0, lambda _: False)


def code_of(outgoing: Sequence[Forward | Report]) -> str:
    (report,) = outgoing
    assert isinstance(report, Report) and isinstance(report.message, JobErrorReport)
    assert report.message.detail
    return report.message.code


def wrong_taps(
    tensors: Tensors, layers: Sequence[int], positions: Sequence[int], ids: Sequence[int]
) -> list[object]:
    """Rows of a reply's taps that say something else than what was asked for."""
    taps = unpack_taps(split_taps(tensors)[1], layers, "fp8", len(ids))
    return [
        (layer, row)
        for layer in layers
        for row, (position, token) in enumerate(zip(positions, ids, strict=True))
        if read_tap(taps[layer][row]) != (layer, position, token)
    ]


@settings(max_examples=40, deadline=None)
@given(parents=trees(), seed=st.integers(0, 99), temperature=st.sampled_from(["0", "0.7"]))
def test_root_and_nodes_are_answered_by_path_and_position(
    parents: tuple[int, ...], seed: int, temperature: str
) -> None:
    """Catches answers of siblings, by row, or with another position's noise; taps of nodes too."""
    sampling = Sampling(temperature=temperature, seed=f"{seed:016x}")
    stages = Stages(msgspec.structs.replace(TAPPED, sampling=sampling))
    nodes = [(seed + 3 * idx) % 13 for idx in range(len(parents))]
    stages.send(verify(0, PROMPT[:6], 5))
    reply, tensors = stages.send(verify(6, (*PROMPT[6:], *nodes), 7, parents))
    assert len(reply.ids) == 1 + len(nodes)
    positions = [6, 7]
    for node in range(-1, len(nodes)):
        path = [nodes[idx] for idx in path_to(parents, node)]
        positions += [7 + len(path)] if node >= 0 else []
        chain, _ = Stages(msgspec.structs.replace(PLAIN, sampling=sampling)).send(
            verify(0, (*PROMPT, *path), 7 + len(path))
        )
        assert reply.ids[node + 1] == chain.ids[-1]
        if temperature == "0":
            assert reply.ids[node + 1] == TRUTH([*PROMPT, *path])
    assert wrong_taps(tensors, TAPS, positions, (*PROMPT[6:], *nodes)) == []


def test_the_next_frame_sends_the_path_anew() -> None:
    """Catches nodes that stay in a cache, or a frame that takes them for computed."""
    stages = Stages(PLAIN)
    stages.send(verify(0, (*PROMPT, 5, 6, 7), 7, (-1, 0, -1)))
    reply, _ = stages.send(verify(8, (7, 1), 8))
    assert reply.ids == (TRUTH([*PROMPT, 7]), TRUTH([*PROMPT, 7, 1]))
    stages.send(verify(10, (5, 6), 10, (-1,)))
    assert code_of(feed(stages.jobs[0], verify(12, (6,), 12), {})) == "kv_gap"


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_prefill_chunks_bring_taps_of_all_positions(chunk: int) -> None:
    """Catches taps that come with ids only: the whole prompt feeds the drafter."""
    stages = Stages()
    for start in range(0, len(PROMPT), chunk):
        ids = PROMPT[start : start + chunk]
        end = start + len(ids)
        answer_from = end - 1 if end == len(PROMPT) else end
        reply, tensors = stages.send(verify(start, ids, answer_from))
        assert len(reply.ids) == (end == len(PROMPT))
        assert wrong_taps(tensors, TAPS, range(start, end), ids) == []


@pytest.mark.parametrize(
    ("layer_shift", "position_shift", "token_shift"), [(1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1)]
)
def test_a_tap_that_is_one_off_shows(
    layer_shift: int, position_shift: int, token_shift: int
) -> None:
    """Mutation of the executor: taps must tell where they are from, or tests above are blind."""
    stages = Stages()
    executor = stages.executors[1]
    run = executor.run

    def shifted(*words: Any) -> Passed:
        passed = run(*words)
        rows = [read_tap(row) for row in passed.taps[1]]
        taps = {
            1: torch.stack(
                [
                    tap_row(
                        layer + layer_shift, max(position + position_shift, 0), token + token_shift
                    )
                    for layer, position, token in rows
                ]
            )
        }
        return replace(passed, taps=taps)

    executor.run = shifted  # type: ignore[method-assign]
    _, tensors = stages.send(verify(0, PROMPT, 7))
    assert wrong_taps(tensors, TAPS, range(8), PROMPT)


@pytest.mark.parametrize("wire", ["f32", "fp8"])
@pytest.mark.parametrize("config", ["f32", "fp8"])
def test_taps_change_neither_states_nor_ids(wire: str, config: str) -> None:
    """Catches hidden states that travel in the taps' wire, or the reverse."""
    plain = msgspec.structs.replace(PLAIN, numeric_config=config)
    tapped = msgspec.structs.replace(plain, tap_layers=(0, 2), tap_wire=wire)
    without, having = Stages(plain), Stages(tapped)
    frame = verify(0, (*PROMPT, 5, 6), 7, (-1, -1))
    assert without.send(frame)[0].ids == having.send(frame)[0].ids
    for bare, full in zip(without.hops[:-1], having.hops[:-1], strict=True):
        own, taps = split_taps(full.tensors)
        assert {name: bytes(storage_view(it)) for name, it in own.items()} == {
            name: bytes(storage_view(it)) for name, it in bare.tensors.items()
        }
        assert set(taps) == {tap_name(0)} | ({f"{tap_name(0)}.scale"} if wire == "fp8" else set())
    assert not split_taps(without.hops[-1].tensors)[1]
    assert set(unpack_taps(split_taps(having.hops[-1].tensors)[1], (0, 2), wire, 10)) == {0, 2}


def test_logits_and_taps_ride_in_one_reply() -> None:
    levers = msgspec.structs.replace(TAPPED, reply="logits")
    _, tensors = Stages(levers).send(verify(0, (*PROMPT, 5), 7, (-1,)))
    own, taps = split_taps(tensors)
    assert own["logits"].shape[0] == 2
    assert set(unpack_taps(taps, TAPS, "fp8", 9)) == set(TAPS)


def foreign(layers: Sequence[int] = (0,), num_rows: int = 3, width: int = HIDDEN_LEN) -> Tensors:
    """What a later stage receives of earlier ones."""
    rows = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(1))
    return pack_taps(dict.fromkeys(layers, rows), "fp8")


HIDDEN = {"hidden": torch.tensor([[1.0], [2.0], [3.0]]).repeat(1, HIDDEN_LEN)}
LATER = msgspec.structs.replace(verify(0, (1, 2, 3), 2), ids=None)


@pytest.mark.parametrize("stage_idx", [1, 2])
def test_foreign_taps_go_on_byte_for_byte(stage_idx: int) -> None:
    """Catches taps that are unpacked and packed again: a second rounding, and nobody's bytes."""
    due = tuple(layer for layer in TAPS if layer < stage_idx)
    taps = foreign(due)
    for tensor in taps.values():  # bytes that packing again would not give back: a lower scale
        if tensor.dtype == torch.float32:
            tensor *= 0.37
        else:
            tensor.view(torch.uint8).bitwise_and_(0xB7)
    (sent,) = feed(Stages().jobs[stage_idx], LATER, {**HIDDEN, **taps})
    for name, tensor in taps.items():
        assert bytes(storage_view(sent.tensors[name])) == bytes(storage_view(tensor))


BAD_TAPS: dict[str, tuple[int, Tensors]] = {
    "missing": (1, {}),
    "of its own layer": (1, foreign((0, 1))),
    "of a later layer": (1, foreign((0, 2))),
    "of another layer": (1, foreign((1,))),
    "one of two": (2, foreign((0,))),
    "none asked for": (2, foreign((0, 1, 2))),
    "too few rows": (1, foreign(num_rows=2)),
    "too many rows": (1, foreign(num_rows=4)),
    "another width": (1, foreign(width=HIDDEN_LEN - 1)),
    "another spelling": (1, {name.replace("0", "00"): it for name, it in foreign().items()}),
    "no scale": (1, {"tap.0": foreign()["tap.0"]}),
    "another wire": (1, {"tap.0": torch.zeros(3, HIDDEN_LEN)}),
    "no number": (1, {**foreign(), "tap.": torch.zeros(3, HIDDEN_LEN, dtype=torch.float8_e4m3fn)}),
    "another tensor": (1, {**foreign(), "more": torch.zeros(3, HIDDEN_LEN)}),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_TAPS)
def test_taps_that_are_not_due_fail_the_job(fault: str) -> None:
    """Catches a stage that fills in, ignores or passes on what should not be there."""
    stage_idx, taps = BAD_TAPS[fault]
    assert code_of(feed(Stages().jobs[stage_idx], LATER, {**HIDDEN, **taps})) == "bad_frame"


def test_a_first_stage_takes_no_states_and_no_taps() -> None:
    for tensors in (HIDDEN, foreign()):
        assert code_of(feed(Stages().jobs[0], verify(0, (1, 2, 3), 2), tensors)) == "bad_frame"


BAD_TREES: dict[str, dict[str, Any]] = {
    "off the path": {"parents": (-1, 0, -1, 0)},
    "no root": {"parents": (-1, 0, 1, 2, 3), "answer_from": 0},
    "a later node": {"parents": (-1, 2, 1)},
    "below the root": {"parents": (-2,), "answer_from": 3},
    "answered from a node": {"parents": (-1, 0), "answer_from": 3},
    "answered before the root": {"parents": (-1, 0), "answer_from": 1},
    "not answered": {"parents": (-1, 0), "answer_from": 5},
}


@pytest.mark.parametrize("fault", BAD_TREES)
@pytest.mark.parametrize("stage_idx", range(NUM_STAGES))
def test_what_is_no_tree_is_refused_before_it_is_computed(fault: str, stage_idx: int) -> None:
    """Catches one stage that trusts the ones before it."""
    stages = Stages(PLAIN)
    executor = stages.executors[stage_idx]
    executor.run = executor.embed = lambda *_: pytest.fail("computed")  # type: ignore[method-assign]
    changes = BAD_TREES[fault]
    root = 5 - len(changes["parents"]) - 1
    message = verify(0, PROMPT[:5], max(root, 0))
    hidden = {"hidden": torch.zeros(5, HIDDEN_LEN)} if stage_idx else {}
    message = msgspec.structs.replace(message, **changes, ids=None if stage_idx else message.ids)
    assert code_of(feed(stages.jobs[stage_idx], message, hidden)) == "bad_tree"


def test_too_many_nodes_are_refused() -> None:
    for num, fits in ((TREE_NODES_MAX, True), (TREE_NODES_MAX + 1, False)):
        (sent,) = feed(Stages().jobs[0], verify(0, [1] * (num + 1), 0, [-1] * num), {})
        assert isinstance(sent, Forward) == fits


@pytest.mark.parametrize(
    ("layers", "on_last", "on_others"),
    [
        ((0, 1, 2), "", ""),
        ((), "", ""),
        ((3,), "tap_layers", ""),  # only the last stage knows how many there are
        ((-1, 1), "tap_layers", "tap_layers"),
        ((1, 1), "tap_layers", "tap_layers"),
        ((2, 1), "tap_layers", "tap_layers"),
    ],
)
def test_tapped_layers_that_cannot_be_fail_the_job(
    layers: tuple[int, ...], on_last: str, on_others: str
) -> None:
    levers = msgspec.structs.replace(TAPPED, tap_layers=layers)
    for stage_idx, code in enumerate((on_others, on_others, on_last)):
        assert refusal(stage_idx, levers) == code


def test_an_unknown_wire_of_taps_fails_the_job_even_without_taps() -> None:
    levers = msgspec.structs.replace(PLAIN, tap_layers=(), tap_wire="f8")
    assert refusal(0, levers) == "tap_wire"


def refusal(stage_idx: int, levers: Levers) -> str:
    """Code with which a stage refuses these levers; empty if it does not."""
    job = StageJob(OracleExecutor(stage_idx, NUM_STAGES, TRUTH), StageIdentity(stage_idx, "0", 1))
    outgoing = job.on_reset(Reset(job=7, nonce="00", levers=levers))
    failed = [it for it in outgoing if isinstance(it.message, JobErrorReport)]
    return code_of(failed) if failed else ""
