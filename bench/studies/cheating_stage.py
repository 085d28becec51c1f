"""A stage process that cheats in one way: `python -m bench.studies.cheating_stage CHEAT`.

It is the engine's own stage with one thing replaced before it starts, so everything else it says
and does is what an honest one would. Guarantees: nothing of it reaches another process but by what
it sends. Started by `bench.studies.attacks`; must never know how it is caught.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.model.decoder import Decoder, Passed
from engine.model.layer import PackedLayer
from engine.model.linear import kernel_for
from engine.model.weights import ModelFiles
from engine.stage import account, evidence, job, service
from engine.stage.account import JobAccount, StageFacts
from engine.stage.executor import DecoderExecutor
from engine.transport.message import Verify
from engine.trust.attestation import FrameKey, StageStatement
from engine.trust.identity import Identity

Layers = tuple[PackedLayer, ...]


def computes_other_layers(choose: Callable[[Layers], Layers]) -> None:
    """Other layers than its own, once they are loaded."""
    take = Decoder._take

    def other(self: Decoder, weights: Any) -> None:
        take(self, weights)
        self._layers = choose(self._layers)

    Decoder._take = other


def without_middle(layers: Layers) -> Layers:
    middle = len(layers) // 2
    return layers[:middle] + layers[middle + 1 :]


def middle_swapped(layers: Layers) -> Layers:
    middle = len(layers) // 2
    before, one, other, behind = (
        layers[: middle - 1],
        layers[middle - 1],
        layers[middle],
        layers[middle + 1 :],
    )
    return (*before, other, one, *behind)


def holds_coarse_weights() -> None:
    """4-bit weights, said to be float32 ones."""
    load = Decoder.load.__func__

    def coarse(
        cls: type[Decoder], files: ModelFiles, start: int, end: int, weights: str
    ) -> Decoder:
        decoder: Decoder = load(cls, files, start, end, "int4")
        decoder.weights, decoder.kernel = weights, kernel_for(weights)
        return decoder

    Decoder.load = classmethod(coarse)


def sends(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Other states than its layers made."""
    run = DecoderExecutor.run

    def other(self: DecoderExecutor, *words: Any) -> Passed:
        passed = run(self, *words)
        return replace(passed, hidden=change(passed.hidden))

    DecoderExecutor.run = other


def one_coordinate_off(hidden: torch.Tensor) -> torch.Tensor:
    sent = hidden.clone()
    sent[0, 0] += 1e-3 * sent[0].norm()
    return sent


def signs(change: Callable[[StageStatement, Identity], tuple[StageStatement, Identity]]) -> None:
    """Another statement than its account makes, or with another key."""
    sign = account.sign_statement
    account.sign_statement = lambda statement, identity: sign(*change(statement, identity))


def states(**changes: Any) -> Callable[[], None]:
    return lambda: signs(
        lambda statement, identity: (msgspec.structs.replace(statement, **changes), identity)
    )


def claims_its_neighbours_layers() -> None:
    def change(statement: StageStatement, identity: Identity) -> tuple[StageStatement, Identity]:
        num = statement.layer_end - statement.layer_start
        moved = {"layer_start": statement.layer_start - num, "layer_end": statement.layer_start}
        return msgspec.structs.replace(statement, **moved), identity

    signs(change)


def signs_with_a_strangers_key() -> None:
    stranger = Identity.load_or_create(Path(tempfile.mkdtemp()) / "stranger.key")
    signs(lambda statement, _: (statement, stranger))


def replays_its_first_statement() -> None:
    signed, kept = JobAccount.signed, list[str]()

    def old(self: JobAccount, keys: Sequence[FrameKey], facts: StageFacts) -> str:
        kept.append(signed(self, keys, facts))
        return kept[0]

    JobAccount.signed = old


def leaves_a_frame_out() -> None:
    signed = JobAccount.signed

    def fewer(self: JobAccount, keys: Sequence[FrameKey], facts: StageFacts) -> str:
        return signed(self, keys[:-1], facts)

    JobAccount.signed = fewer


def states_other_ids_than_it_answers() -> None:
    note = JobAccount.note

    def other(self: JobAccount, verify: Verify, ids: Sequence[int], compute_ns: int) -> None:
        note(self, verify, [token + 1 for token in ids], compute_ns)

    JobAccount.note = other


def answers_made_up_ids() -> None:
    """Made up before they are answered and stated, so that answer and statement agree."""
    choose = job.sample_ids

    def other(logits: torch.Tensor, *rest: Any) -> list[int]:
        return [(token + 1) % logits.shape[1] for token in choose(logits, *rest)]

    job.sample_ids = other


def forges_its_sketch() -> None:
    sketch = evidence.sketch_payload
    evidence.sketch_payload = lambda *words: sketch(*words) * (1 + 1e-3)


CHEATS: Mapping[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "skips a layer": lambda: computes_other_layers(without_middle),
    "swaps two layers": lambda: computes_other_layers(middle_swapped),
    "holds 4-bit weights": holds_coarse_weights,
    "sends bfloat16 states": lambda: sends(lambda hidden: hidden.bfloat16().float()),
    "alters one coordinate": lambda: sends(one_coordinate_off),
    "forges its sketch": forges_its_sketch,
    "replays its first statement": replays_its_first_statement,
    "claims its neighbour's layers": claims_its_neighbours_layers,
    "signs with a stranger's key": signs_with_a_strangers_key,
    "leaves a frame out": leaves_a_frame_out,
    "states that it received others": states(in_root="1" * 64),
    "states that it sent others": states(out_root="1" * 64),
    "states no work": states(compute_ns=0),
    "states other ids than it answers": states_other_ids_than_it_answers,
    "answers made-up ids": answers_made_up_ids,
}


def main() -> None:
    """Plant the cheat, then be a stage."""
    # Ctrl-C reaches the whole process group; the launcher decides when stages end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    CHEATS[sys.argv[1]]()
    service.main()


if __name__ == "__main__":
    main()
