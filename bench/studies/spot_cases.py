"""Ways to compute a stage, honest and cheating: what `bench.studies.challenge` puts to the check.

Guarantees: a case changes one stage and nothing else; honest cases differ in kernels, chunking,
threads or width only. The packaged model's weights are 4-bit ones, so 4-bit products have the right
weights; what they are coarse in is activations, in bfloat16. Must never know what the check makes
of any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.peers.transformers_speed import build_peer
from bench.peers.transformers_stage import PeerStage, in_dtype
from bench.studies.spot_job import Forward
from engine.model.decoder import Decoder
from engine.model.row_invariance import on_threads
from engine.model.weights import ModelFiles
from engine.stage.executor import DecoderExecutor
from engine.transport.hidden_wire import pack_states, unpack_states

SPANS = ((0, 8), (8, 15), (15, 23), (23, 30))
SHORT_FRAME_LEN = 9  # of 8 drafts
Scores = Callable[[torch.Tensor], torch.Tensor]
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


@dataclass(frozen=True, slots=True)
class Case:
    """One way to compute a stage.

    Attributes:
        group: whose limits hold, a key of `LIMITS`.
        wire: of the job.
        scores: how it scores what its last layers made; None: not measured.
    """

    name: str
    group: str
    is_honest: bool
    wire: str
    forward: Callable[[Bench, int], Forward]
    scores: Callable[[Bench], Scores] | None = None


class Bench:
    """The model as the engine and as the transformers library compute it."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self.replicas = self.executors("f32")
        self.stages = self.executors("f32")
        self.coarse = self.executors("int4")
        peer: Any = build_peer(files)
        self._peers = {dtype: in_dtype(peer, dtype) for dtype in (BF16, F32, F64)}

    def executors(self, weights: str) -> list[DecoderExecutor]:
        return [
            DecoderExecutor(Decoder.load(self.files, *span, weights), "0" * 64) for span in SPANS
        ]

    def answered(self, prompt: Sequence[int], num: int) -> list[int]:
        """The first `num` ids of a prompt and the model's greedy answer to it."""
        ids, done = list(prompt[:num]), 0
        for replica in self.replicas:
            replica.reset()
        while len(ids) < num:
            hidden = self.replicas[0].embed(ids[done:])
            for replica in self.replicas:
                hidden = replica.forward(hidden, done)
            done = len(ids)
            ids.append(int(self.replicas[-1].logits(hidden[-1:]).argmax()))
        return ids

    def peer(self, idx: int, dtype: torch.dtype) -> Forward:
        return PeerStage(self._peers[dtype], SPANS[idx]).forward

    def peer_scores(self, dtype: torch.dtype) -> Scores:
        return PeerStage(self._peers[dtype], SPANS[-1]).logits

    def skipping(self, idx: int, dtype: torch.dtype) -> Forward:
        """All of the stage's layers but its middle one."""
        middle = sum(SPANS[idx]) // 2
        order = [layer_idx for layer_idx in range(*SPANS[idx]) if layer_idx != middle]
        return PeerStage(self._peers[dtype], SPANS[idx], order).forward

    def swapping(self, idx: int, dtype: torch.dtype) -> Forward:
        """The middle layer and the one before it in each other's place."""
        order, at = list(range(*SPANS[idx])), (SPANS[idx][1] - SPANS[idx][0]) // 2
        order[at - 1], order[at] = order[at], order[at - 1]
        return PeerStage(self._peers[dtype], SPANS[idx], order).forward


def received(hidden: torch.Tensor, start: int) -> torch.Tensor:
    """A stage that hands on what it got."""
    return hidden


def one_by_one(forward: Forward) -> Forward:
    """Every position in a call of its own."""
    return lambda hidden, start: torch.cat(
        [forward(row[None], start + idx) for idx, row in enumerate(hidden)]
    )


def through(forward: Forward, wire: str) -> Forward:
    """States that went through a coarser wire than the job's."""

    def coarse(hidden: torch.Tensor, start: int) -> torch.Tensor:
        packed = pack_states({"hidden": forward(hidden, start)}, wire)
        return unpack_states(packed, wire)["hidden"]

    return coarse


def rounded(forward: Forward) -> Forward:
    return lambda hidden, start: forward(hidden, start).to(BF16).float()


class Remembered:
    """A stage that computes each frame once, for cases that share what comes before theirs."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._sent: dict[tuple[int, int], torch.Tensor] = {}

    def __call__(self, hidden: torch.Tensor, start: int) -> torch.Tensor:
        key = (start, len(hidden))
        if key not in self._sent:
            self._sent[key] = self._forward(hidden, start)
        return self._sent[key]


def other_threads(forward: Forward) -> Forward:
    def run(hidden: torch.Tensor, start: int) -> torch.Tensor:
        with on_threads(torch.get_num_threads() + 1):
            return forward(hidden, start)

    return run


def only_drafts(coarse: Forward, honest: Forward) -> Forward:
    """Coarse where frames are short: every chunk of the prompt is computed as it should be."""

    def run(hidden: torch.Tensor, start: int) -> torch.Tensor:
        sent, own = honest(hidden, start), coarse(hidden, start)
        return own if len(hidden) <= SHORT_FRAME_LEN else sent

    return run


def altered(forward: Forward) -> Forward:
    """One coordinate of the first position, by a thousandth of its length."""

    def run(hidden: torch.Tensor, start: int) -> torch.Tensor:
        sent = forward(hidden, start).clone()
        sent[0, 0] += 1e-3 * sent[0].norm()
        return sent

    return run


CASES = (
    Case("same engine", "f32", True, "f32", lambda b, i: b.stages[i].forward),
    Case("positions one by one", "f32", True, "f32", lambda b, i: one_by_one(b.stages[i].forward)),
    Case("another thread", "f32", True, "f32", lambda b, i: other_threads(b.stages[i].forward)),
    Case(
        "transformers, float32", "f32", True, "f32",
        lambda b, i: b.peer(i, F32), lambda b: b.peer_scores(F32),
    ),
    Case(
        "transformers, float64", "f32", True, "f32",
        lambda b, i: b.peer(i, F64), lambda b: b.peer_scores(F64),
    ),
    Case("one coordinate altered", "f32", False, "f32", lambda b, i: altered(b.stages[i].forward)),
    Case("bfloat16 states", "f32", False, "f32", lambda b, i: rounded(b.stages[i].forward)),
    Case("bfloat16 computing", "f32", False, "f32", lambda b, i: b.peer(i, BF16)),
    Case("fp8 states", "f32", False, "f32", lambda b, i: through(b.stages[i].forward, "fp8")),
    Case("4-bit products", "f32", False, "f32", lambda b, i: b.coarse[i].forward),
    Case("a layer skipped", "f32", False, "f32", lambda b, i: b.skipping(i, F32)),
    Case("layers swapped", "f32", False, "f32", lambda b, i: b.swapping(i, F32)),
    Case(
        "transformers, bfloat16", "bf16", True, "f32",
        lambda b, i: b.peer(i, BF16), lambda b: b.peer_scores(BF16),
    ),
    Case("fp8 instead of bf16", "bf16", False, "f32", lambda b, i: through(b.peer(i, BF16), "fp8")),
    Case("a layer skipped", "bf16", False, "f32", lambda b, i: b.skipping(i, BF16)),
    Case("layers swapped", "bf16", False, "f32", lambda b, i: b.swapping(i, BF16)),
    Case("same engine", "fp8", True, "fp8", lambda b, i: b.stages[i].forward),
    Case(
        "transformers, float64", "fp8", True, "fp8",
        lambda b, i: b.peer(i, F64), lambda b: b.peer_scores(F64),
    ),
    Case("4-bit products", "fp8", False, "fp8", lambda b, i: b.coarse[i].forward),
    Case(
        "4-bit products for drafts only",
        "fp8",
        False,
        "fp8",
        lambda b, i: only_drafts(b.coarse[i].forward, b.stages[i].forward),
    ),
    Case("a layer skipped", "fp8", False, "fp8", lambda b, i: b.skipping(i, F32)),
    Case("layers swapped", "fp8", False, "fp8", lambda b, i: b.swapping(i, F32)),
)  # fmt: skip
