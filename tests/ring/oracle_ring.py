"""A ring of real stage services over real sockets whose model is an oracle.

The oracle's "hidden states" are the token ids themselves and its next token is a pure function of
the tokens before, so every position that the ring computes wrongly shows as a wrong id; its taps
say of which layer, position and token they are. Test-only.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import torch

from engine import defaults
from engine.cluster.ring_keys import deal_keys
from engine.coordinator.attested import Pinned
from engine.coordinator.ring_links import RingAddresses
from engine.coordinator.session import Session
from engine.errors import JobError
from engine.model.decoder import Passed
from engine.source import engine_source_digest
from engine.stage.config import StageConfig, Successor
from engine.stage.job import StageIdentity
from engine.stage.service import StageService
from engine.transport.credentials import Credentials
from engine.transport.link import Listener
from engine.trust.identity import Identity

CONTEXT_LEN = 400
VOCAB_SIZE = 32
HIDDEN_LEN = 64
TAP_BITS = 16  # each of layer, position and token
Truth = Callable[[Sequence[int]], int]


def repetitive_truth(alphabet: int, period: int) -> Truth:
    """Text that repeats with flaws: an n-gram drafter is often right and often wrong."""

    def truth(tokens: Sequence[int]) -> int:
        position = len(tokens)
        flaw = (position * 2654435761) % 7 == 0
        return (position % period + (tokens[-1] if flaw else 0)) % alphabet

    return truth


def continuation(
    truth: Truth, prompt: Sequence[int], max_new: int, eos: Sequence[int]
) -> list[int]:
    """What plain decoding gives."""
    output: list[int] = []
    while len(output) < max_new:
        output.append(truth([*prompt, *output]))
        if output[-1] in eos:
            break
    return output


class OracleExecutor:
    """Stands in for a layer range: checks what it is fed and answers by the truth."""

    model_digest = "0" * 64
    kernel = "oracle"
    weights = "f32"
    max_kv_size = 0

    def __init__(self, stage_idx: int, num_stages: int, truth: Truth, delay_s: float = 0.0) -> None:
        self.vocab_size = VOCAB_SIZE
        self.layer_start, self.layer_end = stage_idx, stage_idx + 1
        self.is_first = stage_idx == 0
        self.is_last = stage_idx == num_stages - 1
        self.fail_at: int | None = None  # the job fails when it computes this position
        self._truth = truth
        self._delay_s = delay_s
        self._random = random.Random(stage_idx)
        self._tokens: list[int] = []
        self._paths: list[list[int]] = []  # of the last frame's rows, each with its own token

    def reset(self) -> None:
        self._tokens = []

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.float32).reshape(-1, 1).expand(-1, HIDDEN_LEN)

    def run(
        self,
        hidden: torch.Tensor,
        start: int,
        parents: Sequence[int] = (),
        tap_layers: Sequence[int] = (),
    ) -> Passed:
        if start > len(self._tokens):
            raise JobError("kv_gap", f"start {start} is past {len(self._tokens)}")
        ids = [round(float(value)) for value in hidden[:, 0]]  # a lossy wire may be a little off
        if self.fail_at is not None and start <= self.fail_at < start + len(ids):
            raise JobError("planted", f"position {self.fail_at}")
        trunk_len = len(ids) - len(parents)
        self._tokens = [*self._tokens[:start], *ids[:trunk_len]]
        self._paths = [self._tokens[: start + idx + 1] for idx in range(trunk_len)]
        for parent, token in zip(parents, ids[trunk_len:], strict=True):
            self._paths.append([*self._paths[trunk_len + parent], token])
        if self._delay_s:
            time.sleep(self._random.random() * self._delay_s)
        taps = {
            layer: torch.stack([tap_row(layer, len(path) - 1, path[-1]) for path in self._paths])
            for layer in tap_layers
            if self.layer_start <= layer < self.layer_end
        }
        return Passed(hidden, taps)

    def forward(
        self, hidden: torch.Tensor, start: int, parents: Sequence[int] = ()
    ) -> torch.Tensor:
        return self.run(hidden, start, parents).hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(hidden.shape[0], self.vocab_size)
        for row, path in enumerate(self._paths[len(self._paths) - hidden.shape[0] :]):
            scores[row, self._truth(path)] = 1.0
        return scores


def tap_row(layer_idx: int, position: int, token: int) -> torch.Tensor:
    """A tap that says where it was taken: bits, which the fp8 wire brings back too; [H]."""
    word = layer_idx | position << TAP_BITS | token << 2 * TAP_BITS
    return torch.tensor([1.0 if word >> bit & 1 else -1.0 for bit in range(HIDDEN_LEN)])


def read_tap(row: torch.Tensor) -> tuple[int, int, int]:
    """Layer, position and token of a tap, off whatever wire."""
    word = sum(1 << bit for bit, value in enumerate(row.tolist()) if value > 0)
    return tuple(word >> TAP_BITS * idx & (1 << TAP_BITS) - 1 for idx in range(3))


class OracleRing:
    """N services on their own threads, with keys of their own; a context manager."""

    def __init__(
        self,
        num_stages: int,
        truth: Truth,
        delay_s: float = 0.0,
        suite: str = defaults.SUITE,
        signers: Sequence[Identity] = (),
    ) -> None:
        self._signers = signers
        self.keys = deal_keys(num_stages, suite, None)
        self.executors = [
            OracleExecutor(idx, num_stages, truth, delay_s) for idx in range(num_stages)
        ]
        listeners = [Listener() for _ in range(num_stages)]
        self.addresses = [listener.address for listener in listeners]
        self.services = [
            StageService(
                executor,
                StageIdentity(idx, engine_source_digest(), 1, num_stages),
                self.credentials(idx),
                self._successor(idx),
                listeners[idx],
                signers[idx] if signers else None,
            )
            for idx, executor in enumerate(self.executors)
        ]
        self._threads = [
            threading.Thread(target=service.run, daemon=True) for service in self.services
        ]

    def credentials(self, stage_idx: int) -> Credentials:
        """What the launcher would give this stage."""
        return StageConfig(
            stage_idx=stage_idx,
            num_stages=len(self.executors),
            layer_start=stage_idx,
            layer_end=stage_idx + 1,
            num_threads=1,
            nice=0,
            cluster_id=self.keys.cluster_id,
            suite=self.keys.suite,
            keys=self.keys.nodes[f"stage-{stage_idx}"],
            model=None,
            max_kv_size=0,
            weights="f32",
            listen_host="127.0.0.1",
        ).credentials()

    def _successor(self, stage_idx: int) -> Successor:
        if stage_idx + 1 == len(self.addresses):
            return Successor(node_id="coordinator", address=None)
        return Successor(node_id=f"stage-{stage_idx + 1}", address=self.addresses[stage_idx + 1])

    def __enter__(self) -> OracleRing:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for service in self.services:
            service.close()
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive(), "a stage's compute thread did not end"

    def session(self) -> Session:
        ring = RingAddresses(self.addresses[0], self.addresses[-1], tuple(self.addresses))
        return Session(ring, self.keys.coordinator(), CONTEXT_LEN, self.pinned())

    def pinned(self) -> Pinned | None:
        """Whom a coordinator that knows this ring believes."""
        if not self._signers:
            return None
        publics = tuple(signer.public for signer in self._signers)
        return Pinned(publics, len(self.executors), OracleExecutor.model_digest)
