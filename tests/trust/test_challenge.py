"""Spot recompute over real layers of a tiny model: who passes, who is caught, by which guard."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from bench.peers.transformers_stage import PeerStage, in_dtype
from bench.studies.spot_job import Forward, SpotFrame, SpotJob, root, run_job
from engine.errors import ConfigError
from engine.model.decoder import Decoder
from engine.model.row_invariance import on_threads
from engine.model.sampling import SamplingParams
from engine.model.weights import ModelFiles, prepare_model
from engine.stage.executor import DecoderExecutor
from engine.transport.hidden_wire import pack_states, unpack_states
from engine.trust.challenge import (
    Compared,
    Evidence,
    Terms,
    commitment,
    drawn_frames,
    spot_check,
)
from engine.trust.limits import LIMITS, Limits
from engine.trust.verify import AttestationError
from tests.model.tiny_models import INT4_CASES, make_peer, write_gguf

SPANS = ((0, 1), (1, 2), (2, 3))
MIDDLE = 1
ALL_PASS = Limits(np.inf, np.inf, np.inf)
SEED = bytes(range(32))
SAMPLED = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=11)
IDS = torch.randint(3, 320, (600,), generator=torch.Generator().manual_seed(5)).tolist()


def frame(epoch: int, start: int, num: int, answer_from: int) -> SpotFrame:
    return SpotFrame(epoch, start, tuple(IDS[start + epoch :][:num]), answer_from)


# A prompt in two chunks, then drafts, one of them refuted.
FRAMES = (frame(0, 0, 8, 8), frame(0, 8, 6, 13), frame(0, 14, 5, 14), frame(1, 17, 5, 17))
LONG_CHUNK = (frame(0, 0, 512, 511),)
TERMS = Terms("f32", SamplingParams(), LIMITS["f32"], num_frames=len(FRAMES))


class Model:
    """A tiny model as the engine and as the transformers library compute it."""

    def __init__(self, files: ModelFiles, peer: Any) -> None:
        self.files, self.peer = files, peer

    def stages(self, weights: str = "f32") -> list[DecoderExecutor]:
        return [
            DecoderExecutor(Decoder.load(self.files, *span, weights), "0" * 64) for span in SPANS
        ]

    def peers(self, dtype: torch.dtype) -> list[PeerStage]:
        peer = in_dtype(self.peer, dtype)
        return [PeerStage(peer, span) for span in SPANS]

    def cheating(self, *order: int) -> Forward:
        """The middle stage runs other layers than its own."""
        return PeerStage(self.peer, SPANS[MIDDLE], order).forward


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    case = INT4_CASES["int4-llama"]
    peer = make_peer(case)
    path = write_gguf(peer, case, tmp_path_factory.mktemp("spot") / "tiny.gguf")
    return Model(prepare_model(path), peer)


@pytest.fixture(scope="module")
def honest(model: Model) -> SpotJob:
    return run_job(model.stages(), FRAMES, SEED)


def check_all(
    job: SpotJob, replicas: Sequence[Any], terms: Terms = TERMS, seed: bytes = SEED
) -> list[list[Compared]]:
    return [
        spot_check(job.statements, job.evidence, idx, replica, seed, terms)
        for idx, replica in enumerate(replicas)
    ]


def code_of(check: Callable[[], object]) -> tuple[str, int | None]:
    with pytest.raises(AttestationError) as caught:
        check()
    return caught.value.code, caught.value.stage_idx


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
@pytest.mark.parametrize("wire", ["f32", "fp8"])
def test_the_same_engine_finds_the_same_bits(
    model: Model, wire: str, sampling: SamplingParams
) -> None:
    """Catches a replay that differs from the job: in truncation, in wire, in the draw of ids."""
    job = run_job(model.stages(), FRAMES, SEED, wire, sampling)
    for compared in check_all(job, model.stages(), replace(TERMS, wire=wire, sampling=sampling)):
        assert [item.key for item in compared] == [it.key for it in FRAMES]
        assert all((item.errors == 0).all() for item in compared)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_kernels_and_a_wider_dtype_pass(
    model: Model, honest: SpotJob, dtype: torch.dtype
) -> None:
    """Catches a limit that honest hardware does not meet; and one that nothing exceeds."""
    errors = [
        item.errors for compared in check_all(honest, model.peers(dtype)) for item in compared
    ]
    assert 0 < max(error.max() for error in errors if error.size) < TERMS.limits.position


def test_a_narrower_peer_leaves_the_others_as_they_were(model: Model) -> None:
    """Catches a conversion in place: a peer once narrow stays rounded in every dtype."""
    hidden = torch.randn(4, model.peer.config.hidden_size)
    wide = model.peers(torch.float32)[MIDDLE]
    before = wide.forward(hidden, 0)
    model.peers(torch.bfloat16)[MIDDLE].forward(hidden, 0)
    for stage in (wide, model.peers(torch.float32)[MIDDLE]):
        stage.reset()
        assert torch.equal(stage.forward(hidden, 0), before)


def test_another_chunking_passes(model: Model, honest: SpotJob) -> None:
    """Catches a verdict that hangs on how positions were grouped."""
    stages = model.stages()

    def one_by_one(hidden: torch.Tensor, start: int) -> torch.Tensor:
        rows = [stages[MIDDLE].forward(row[None], start + idx) for idx, row in enumerate(hidden)]
        return torch.cat(rows)

    job = run_job(stages, FRAMES, SEED, forwards={MIDDLE: one_by_one})
    check_all(job, model.stages())


def test_another_thread_count_passes(model: Model, honest: SpotJob) -> None:
    with on_threads(torch.get_num_threads() + 1):
        check_all(honest, model.stages())


def through_fp8(forward: Forward) -> Forward:
    def coarse(hidden: torch.Tensor, start: int) -> torch.Tensor:
        packed = pack_states({"hidden": forward(hidden, start)}, "fp8")
        return unpack_states(packed, "fp8")["hidden"]

    return coarse


def test_fp8_states_in_a_bf16_job_are_caught(model: Model) -> None:
    """Catches coarser states of which no position tells, while honest bf16 passes.

    How far bf16 goes hangs on the model: the limit is set on one text, and held on another.
    """
    stages, replica = model.peers(torch.bfloat16), model.stages()[MIDDLE]
    all_pass = replace(TERMS, limits=ALL_PASS)
    other_text = (SpotFrame(0, 0, tuple(IDS[-200:]), 199),)
    seen = spot_check_of(run_job(stages, other_text, SEED), replica, all_pass)()[0].errors
    limits = replace(LIMITS["bf16"], median=1.25 * float(np.median(seen)))
    terms = replace(TERMS, limits=limits)
    assert spot_check_of(run_job(stages, LONG_CHUNK, SEED), replica, terms)()
    coarse = {MIDDLE: through_fp8(stages[MIDDLE].forward)}
    job = run_job(stages, LONG_CHUNK, SEED, forwards=coarse)
    check = spot_check_of(job, replica, terms)
    with pytest.raises(AttestationError, match=r"epoch 0, start 0\) off by .* at its") as caught:
        check()
    assert (caught.value.code, caught.value.stage_idx) == ("recompute", MIDDLE)
    blind = replace(terms, limits=replace(limits, median=np.inf))
    assert spot_check_of(job, replica, blind)()


@pytest.mark.parametrize("drawn", [1, 2])
def test_coarse_products_in_drafts_alone_are_caught_on_the_fp8_wire(
    model: Model, drawn: int
) -> None:
    """Catches a median over honest chunks of the prompt and coarse drafts together."""
    frames = (frame(0, 0, 200, 199), frame(0, 200, 9, 200), frame(0, 209, 9, 209))
    stages, coarse = model.stages(), model.stages("int4")[MIDDLE]

    def for_drafts(hidden: torch.Tensor, start: int) -> torch.Tensor:
        honest, own = stages[MIDDLE].forward(hidden, start), coarse.forward(hidden, start)
        return own if len(hidden) == 9 else honest

    terms = replace(TERMS, wire="fp8", limits=LIMITS["fp8"], num_frames=len(frames))
    assert check_all(run_job(stages, frames, SEED, "fp8"), model.stages(), terms)
    job = run_job(stages, frames, SEED, "fp8", forwards={MIDDLE: for_drafts})
    check = spot_check_of(job, model.stages()[MIDDLE], terms)
    with pytest.raises(AttestationError, match="start 200"):
        check()
    keys = [it.key for it in frames]
    is_drawn = any(start >= 200 for _, start in drawn_frames(SEED, MIDDLE, keys, drawn))
    few = spot_check_of(job, model.stages()[MIDDLE], replace(terms, num_frames=drawn))
    if is_drawn:
        assert code_of(few) == ("recompute", MIDDLE)
    else:
        assert few()


def alters(forward: Forward, position: int, share: float) -> Forward:
    """One coordinate of one position, by a share of the position's length."""

    def altered(hidden: torch.Tensor, start: int) -> torch.Tensor:
        sent = forward(hidden, start).clone()
        if start <= position < start + len(sent):
            sent[position - start, 3] += share * sent[position - start].norm()
        return sent

    return altered


ATTACKS: dict[str, Callable[[Model, Forward], Forward]] = {
    "skips its layer": lambda model, forward: lambda hidden, start: hidden,
    "runs its neighbour's layer": lambda model, forward: model.cheating(2),
    "runs its layer twice": lambda model, forward: model.cheating(1, 1),
    "sends coarse states": lambda model, forward: through_fp8(forward),
    "computes in bfloat16": lambda model, forward: model.peers(torch.bfloat16)[MIDDLE].forward,
    "holds 4-bit weights": lambda model, forward: model.stages("int4")[MIDDLE].forward,
    "alters one position": lambda model, forward: alters(forward, 15, 1e-3),
    "sends nothing but zeros": lambda model, forward: lambda hidden, start: hidden * 0,
    "sends NaN": lambda model, forward: lambda hidden, start: hidden * float("nan"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stage_that_computes_something_else_is_caught(model: Model, attack: str) -> None:
    stages = model.stages()
    forward = ATTACKS[attack](model, stages[MIDDLE].forward)
    job = run_job(stages[: MIDDLE + 1], FRAMES, SEED, forwards={MIDDLE: forward})
    with_witness(job)
    replica = model.stages()[MIDDLE]
    check = spot_check_of(job, replica)
    assert code_of(check) == ("recompute", MIDDLE)


def with_witness(job: SpotJob) -> None:
    """The last stage hands over what it received; it need not have computed."""
    received = job.sent[MIDDLE + 1]
    statement = msgspec.structs.replace(job.statements[0], stage_idx=2, in_root=root(received))
    job.statements.append(statement)
    job.evidence[MIDDLE + 1] = Evidence(received, {})


def spot_check_of(
    job: SpotJob, replica: DecoderExecutor, terms: Terms = TERMS, seed: bytes = SEED
) -> Callable[[], list[Compared]]:
    """A check of the stage that the replica is of."""
    idx = SPANS.index((replica.layer_start, replica.layer_end))
    return lambda: spot_check(job.statements, job.evidence, idx, replica, seed, terms)


def test_one_altered_position_of_512_is_found(model: Model) -> None:
    """Catches a sample of coordinates or positions, which a small change slips through."""
    stages = model.stages()
    forward = alters(stages[MIDDLE].forward, 300, 1e-3)
    job = run_job(stages, LONG_CHUNK, SEED, forwards={MIDDLE: forward})
    with pytest.raises(AttestationError, match=r"position 300 is off by 1\.00e-03") as caught:
        spot_check_of(job, model.stages()[MIDDLE])()
    assert caught.value.stage_idx == MIDDLE
    check_all(run_job(stages, LONG_CHUNK, SEED), model.stages())


def test_a_forged_sketch_is_found_by_its_witness(model: Model, honest: SpotJob) -> None:
    """Catches a stage that cheats in the job and computes honestly when it is asked."""
    stages = model.stages()
    skips = {MIDDLE: ATTACKS["skips its layer"](model, stages[MIDDLE].forward)}
    job = run_job(stages, FRAMES, SEED, forwards=skips)
    job.evidence[MIDDLE] = replace(job.evidence[MIDDLE], sketches=honest.evidence[MIDDLE].sketches)
    assert code_of(spot_check_of(job, model.stages()[MIDDLE])) == ("forged", MIDDLE)


def test_yesterdays_seed_is_refused(model: Model, honest: SpotJob) -> None:
    """Catches a fixed seed: a stage that knows it can answer before it computes."""
    replica = model.stages()[MIDDLE]
    assert code_of(spot_check_of(honest, replica, seed=bytes(32))) == ("seed", MIDDLE)
    with pytest.raises(ConfigError, match="32"):
        spot_check_of(honest, replica, seed=b"short")()


def with_evidence(job: SpotJob, idx: int, **changes: object) -> SpotJob:
    changed = {**job.evidence, idx: replace(job.evidence[idx], **changes)}
    return replace(job, evidence=changed)


@pytest.mark.parametrize("whose", [MIDDLE, MIDDLE + 1])
def test_other_frames_than_attested_are_refused(model: Model, honest: SpotJob, whose: int) -> None:
    """Catches input that was made up to fit: an altered, a missing and a moved frame, and none."""
    first, *rest = honest.sent[whose]
    altered = bytearray(first)
    altered[-1] ^= 1
    for received in ([bytes(altered), *rest], rest, [*rest, first], []):
        job = with_evidence(honest, whose, received=received)
        assert code_of(spot_check_of(job, model.stages()[MIDDLE])) == ("evidence", whose)
    job = replace(honest, evidence={k: v for k, v in honest.evidence.items() if k != whose})
    assert code_of(spot_check_of(job, model.stages()[MIDDLE])) == ("evidence", whose)


def test_attested_frames_that_are_no_states_are_refused(model: Model, honest: SpotJob) -> None:
    """Catches a crash, or a pass, on bytes that were attested but mean nothing."""
    received = [b"\x00" * 40, *honest.sent[MIDDLE][1:]]
    job = with_evidence(honest, MIDDLE, received=received)
    statements = list(job.statements)
    statements[MIDDLE] = msgspec.structs.replace(statements[MIDDLE], in_root=root(received))
    job = replace(job, statements=statements)
    assert code_of(spot_check_of(job, model.stages()[MIDDLE])) == ("evidence", MIDDLE)


def test_a_sketch_that_is_lacking_or_malformed_is_refused(model: Model, honest: SpotJob) -> None:
    key, sketch = next(iter(honest.evidence[MIDDLE].sketches.items()))
    others = {k: v for k, v in honest.evidence[MIDDLE].sketches.items() if k != key}
    for sketches, code in (
        (others, "sketch"),
        ({**others, key: sketch[:, :5]}, "sketch"),
        ({**others, key: sketch[:-1]}, "forged"),
        ({**others, key: sketch * np.nan}, "forged"),
        ({**others, key: sketch * (1 + 2e-6)}, "forged"),
    ):
        job = with_evidence(honest, MIDDLE, sketches=sketches)
        assert code_of(spot_check_of(job, model.stages()[MIDDLE])) == (code, MIDDLE)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
def test_made_up_answers_are_caught(model: Model, sampling: SamplingParams) -> None:
    """Catches a last stage whose ids are not what its layers say: one altered, one left out."""
    job = run_job(model.stages(), FRAMES, SEED, sampling=sampling)
    terms = replace(TERMS, sampling=sampling)
    answers = list(job.answers)
    last = answers[-1]
    for ids, code in (
        ((*last.ids[:-1], last.ids[-1] + 1), "recompute"),
        ((*last.ids[:-1], 10**6), "recompute"),
        (last.ids[:-1], "answers"),
    ):
        answers[-1] = msgspec.structs.replace(last, ids=ids)
        lying = msgspec.structs.replace(job.statements[-1], answers=tuple(answers))
        told = replace(job, statements=[*job.statements[:-1], lying])
        assert code_of(spot_check_of(told, model.stages()[-1], terms)) == (code, 2)


def test_only_drawn_frames_are_compared(model: Model) -> None:
    """Catches a draw that is not followed: the one that cheats is caught if, and only if, drawn."""
    keys = [it.key for it in FRAMES]
    stages = model.stages()
    caught = set()
    for number in range(12):
        seed = bytes([number]) * 32
        forward = alters(stages[MIDDLE].forward, 15, 1e-2)  # in the third frame
        job = run_job(stages, FRAMES, seed, forwards={MIDDLE: forward})
        is_drawn = keys[2] in drawn_frames(seed, MIDDLE, keys, 1)
        check = spot_check_of(job, model.stages()[MIDDLE], replace(TERMS, num_frames=1), seed)
        if is_drawn:
            assert code_of(check) == ("recompute", MIDDLE)
        else:
            assert len(check()) == 1
        caught.add(is_drawn)
    assert caught == {True, False}


def test_a_wrong_replica_or_draw_is_a_mistake_of_the_verifiers(
    model: Model, honest: SpotJob
) -> None:
    first, second, _ = model.stages()
    with pytest.raises(ConfigError, match=r"layers 0\.\.1 for a stage of 1\.\.2"):
        spot_check(honest.statements, honest.evidence, 1, first, SEED, TERMS)
    with pytest.raises(ConfigError, match="num_frames 0"):
        spot_check_of(honest, second, replace(TERMS, num_frames=0))()


def test_draws_are_in_order_and_hang_on_seed_and_stage() -> None:
    keys = [(0, start) for start in range(200)]
    drawn = drawn_frames(SEED, 0, keys, 20)
    assert len(drawn) == 20 and drawn == sorted(drawn)
    assert drawn != drawn_frames(SEED, 1, keys, 20) != drawn_frames(bytes(32), 1, keys, 20)
    assert drawn_frames(SEED, 0, keys, 999) == keys


def test_draw_and_commitment_are_those_of_the_protocol_page() -> None:
    """Catches another order of fields: a stage of another hand would draw other frames."""
    keys = [(epoch, start) for epoch in range(3) for start in range(9)]
    ranks = {
        key: hashlib.sha256(
            b"longhaul-drawn-frames/1" + SEED + struct.pack(">IQQ", 5, *key)
        ).hexdigest()
        for key in keys
    }
    assert drawn_frames(SEED, 5, keys, 4) == sorted(sorted(keys, key=ranks.__getitem__)[:4])
    assert commitment(SEED) == hashlib.sha256(b"longhaul-challenge/1" + SEED).hexdigest()
