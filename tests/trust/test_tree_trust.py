"""Trees under attestation: answers walked from the root, frames replayed with their parents.

Mutations that were tried and are caught here: a tree taken for a chain; answers that do not fit the
nodes; a replica that is not told the parents, or not asked to check them; ids compared at the
positions of rows; taps read with the states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch

from bench.peers.transformers_stage import PeerStage
from bench.studies.spot_job import SpotFrame, SpotJob, root, run_job
from engine.coordinator.attested import account_of
from engine.coordinator.records import FrameRecord
from engine.model.decoder import Decoder
from engine.model.sampling import SamplingParams
from engine.model.weights import prepare_model
from engine.stage.executor import DecoderExecutor
from engine.transport.codec import encode_message_frame
from engine.transport.frame import HEADER_LEN
from engine.transport.hidden_wire import pack_states
from engine.transport.taps import pack_taps
from engine.trust.attestation import Answer
from engine.trust.challenge import Compared, Terms, sketch_payload, spot_check
from engine.trust.frame_digests import RECEIVED, SENT, FrameDigests
from engine.trust.frame_payload import states_of, verify_of
from engine.trust.limits import LIMITS
from engine.trust.verify import AttestationError, SentTree, verify_job
from tests.model.tiny_models import INT4_CASES, make_peer, write_gguf
from tests.trust.honest_job import HonestJob, make_job

# -- the output against the statement ------------------------------------------------------------

# Behind the prompt at 0..5 a root at 6; nodes 0 and 3 follow it, 1 and 2 node 0.
PARENTS, NODE_IDS = (-1, 0, 0, -1), (41, 8, 42, 9)
# 40 by the prompt's last row; the root says 41, node 0 says 42, node 2 says 43.
ANSWERS = (41, 42, 0, 43, 7)
TREE_KEY, TREE_FRAME = (0, 6), (0, 6, 5)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> HonestJob:
    """The honest job, with a tree for its last frames."""
    honest = make_job(tmp_path_factory.mktemp("keys"))
    return answering(honest, ANSWERS).knowing(
        frames=[*honest.expected.frames[:2], TREE_FRAME],
        output_ids=(40, 41, 42, 43),
        trees={TREE_KEY: SentTree(PARENTS, NODE_IDS)},
    )


def answering(job: HonestJob, ids: tuple[int, ...]) -> HonestJob:
    for idx in range(3):
        job = job.lying(idx, frames=3, positions=4 + 2 + 5)
    answers = job.statements[2].answers
    assert answers is not None
    return job.lying(2, answers=(*answers[:2], Answer(0, 6, 6, ids)))


def test_output_is_held_against_the_path_that_was_answered(job: HonestJob) -> None:
    assert verify_job(job.signed(), job.expected)
    shorter = job.knowing(output_ids=(40, 41, 42))
    assert verify_job(shorter.signed(), shorter.expected), "an output may end in a tree"


@pytest.mark.parametrize(
    "output_ids",
    [
        (40, 41, 42, 0),  # the sibling's answer, which as a chain would stand at that position
        (40, 41, 42, 7),
        (40, 9, 7),  # a node that the root's answer does not lead to
        (40, 41, 8),
        (40, 41, 42, 43, 7),  # beyond the path's end
    ],
)
def test_another_path_is_not_the_output(job: HonestJob, output_ids: tuple[int, ...]) -> None:
    other = job.knowing(output_ids=output_ids)
    with pytest.raises(AttestationError, match="answers") as caught:
        verify_job(other.signed(), other.expected)
    assert caught.value.stage_idx == 2


def test_a_tree_taken_for_a_chain_fails(job: HonestJob) -> None:
    """Catches a verifier that was not told of the nodes and believes row by row."""
    blind = job.knowing(trees={})
    with pytest.raises(AttestationError, match="position 9"):
        verify_job(blind.signed(), blind.expected)


@pytest.mark.parametrize(
    ("ids", "tree"),
    [
        (ANSWERS[:-1], SentTree(PARENTS, NODE_IDS)),
        ((*ANSWERS, 1), SentTree(PARENTS, NODE_IDS)),
        ((), SentTree(PARENTS, NODE_IDS)),
        (ANSWERS, SentTree(PARENTS, NODE_IDS[:-1])),  # a record that kept no tokens
        (ANSWERS, SentTree(PARENTS, ())),
    ],
)
def test_answers_that_do_not_fit_the_nodes_fail(
    job: HonestJob, ids: tuple[int, ...], tree: SentTree
) -> None:
    """Fails closed, and as a fault of the account, not of the program."""
    odd = answering(job, ids).knowing(trees={TREE_KEY: tree})
    with pytest.raises(AttestationError, match="it had a root and 4 nodes"):
        verify_job(odd.signed(), odd.expected)


def test_the_coordinators_account_knows_its_trees() -> None:
    """Catches a tree that its own record lost, and one of a frame that was never applied."""
    digests = FrameDigests()
    digests.begin(1)
    records = []
    for start, outcome, parents in (
        (0, "prefill", ()),
        (6, "applied", PARENTS),
        (9, "stale", (-1,)),
    ):
        for side in (SENT, RECEIVED):
            digests.note(1, side, (0, start), 4, b"frame")
        records.append(record(start, outcome, parents, NODE_IDS[: len(parents)]))
    account = account_of(records, digests)
    assert account.trees == {TREE_KEY: SentTree(PARENTS, NODE_IDS)}
    assert account.frames == ((0, 0, 5), (0, 6, 5))


def record(
    start: int, outcome: str, parents: tuple[int, ...], node_ids: tuple[int, ...]
) -> FrameRecord:
    values = dict.fromkeys(FrameRecord.__dataclass_fields__, 0)
    told = {
        "start": start,
        "outcome": outcome,
        "positions_len": 5,
        "received_ns": 1,
        "parents": parents,
        "node_ids": node_ids,
    }
    return FrameRecord(**{**values, **told})  # type: ignore[arg-type]


# -- spot recompute -------------------------------------------------------------------------------

SPANS = ((0, 1), (1, 2), (2, 3))
SEED = bytes(range(32))
IDS = torch.randint(3, 320, (200,), generator=torch.Generator().manual_seed(5)).tolist()
TREE = (-1, 0, 1, 0, -1, 4)
# A prompt, a chain, a tree, the path to node 3 sent anew with its own next tree, a chain.
FRAMES = (
    SpotFrame(0, 0, tuple(IDS[:20]), 19),
    SpotFrame(0, 20, tuple(IDS[20:24]), 20),
    SpotFrame(0, 24, tuple(IDS[24:32]), 25, TREE),
    SpotFrame(1, 26, (IDS[26], IDS[29], *IDS[40:43]), 27, (-1, 0, -1)),
    SpotFrame(2, 28, tuple(IDS[50:54]), 28),
)  # fmt: skip
SAMPLED = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=11)
TERMS = Terms("f32", SamplingParams(), LIMITS["f32"], num_frames=len(FRAMES))
Stages = Callable[[], list[DecoderExecutor]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stages, list[PeerStage]]:
    """Makers of a model's stages: the engine's, and the library's."""
    case = INT4_CASES["int4-llama"]
    peer = make_peer(case)
    files = prepare_model(write_gguf(peer, case, tmp_path_factory.mktemp("spot") / "tiny.gguf"))

    def stages() -> list[DecoderExecutor]:
        return [DecoderExecutor(Decoder.load(files, *span), "0" * 64) for span in SPANS]

    return stages, [PeerStage(peer, span) for span in SPANS]


def check(job: SpotJob, idx: int, replica: object, terms: Terms = TERMS) -> list[Compared]:
    return spot_check(job.statements, job.evidence, idx, replica, SEED, terms)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
@pytest.mark.parametrize("wire", ["f32", "fp8"])
def test_a_replica_replays_trees_to_the_bit(
    tiny: tuple[Stages, list[PeerStage]], wire: str, sampling: SamplingParams
) -> None:
    """Catches a replay without parents, with nodes left in its cache, or ids compared by row."""
    stages, _ = tiny
    job = run_job(stages(), FRAMES, SEED, wire, sampling)
    terms = replace(TERMS, wire=wire, sampling=sampling, limits=LIMITS[wire])
    for idx, replica in enumerate(stages()):
        compared = check(job, idx, replica, terms)
        assert [item.key for item in compared] == [it.key for it in FRAMES]
        assert all((item.errors == 0).all() for item in compared)


def test_another_hands_replica_replays_trees_too(tiny: tuple[Stages, list[PeerStage]]) -> None:
    """Chains alone are enough: a tree is its runs, one after the other."""
    stages, peers = tiny
    job = run_job(stages(), FRAMES, SEED)
    for idx, peer in enumerate(peers):
        errors = [item.errors for item in check(job, idx, peer)]
        assert idx == 2 or max(error.max() for error in errors) > 0


def test_a_stage_that_runs_a_tree_as_a_chain_is_caught(
    tiny: tuple[Stages, list[PeerStage]],
) -> None:
    stages, _ = tiny
    cheat = stages()
    forward = cheat[1].forward
    job = run_job(
        cheat, FRAMES, SEED, forwards={1: lambda hidden, start, *_: forward(hidden, start)}
    )
    with pytest.raises(AttestationError, match=r"epoch 0, start 24\).*position") as caught:
        check(job, 1, stages()[1])
    assert (caught.value.code, caught.value.stage_idx) == ("recompute", 1)


def test_a_made_up_answer_of_a_node_is_caught(tiny: tuple[Stages, list[PeerStage]]) -> None:
    stages, _ = tiny
    job = run_job(stages(), FRAMES, SEED)
    answers = list(job.answers)
    ids = answers[2].ids
    assert len(ids) == 1 + len(TREE)
    other = next(token for token in range(3, 320) if token not in ids)
    answers[2] = msgspec.structs.replace(answers[2], ids=(*ids[:4], other, *ids[5:]))
    lying = msgspec.structs.replace(job.statements[-1], answers=tuple(answers))
    told = replace(job, statements=[*job.statements[:-1], lying])
    with pytest.raises(AttestationError, match=f"position 28 with {other}"):  # node 3 is at 27
        check(told, 2, stages()[-1])


@pytest.mark.parametrize(
    "changes", [{"parents": (-1, 0, -1, 1, -1, 4)}, {"answer_from": 26}, {"parents": (-5,) * 6}]
)
def test_a_frame_that_is_no_tree_is_no_evidence(
    tiny: tuple[Stages, list[PeerStage]], changes: dict[str, object]
) -> None:
    """Catches a verifier that computes on what every stage refuses, or falls over it."""
    stages, peers = tiny
    job = run_job(stages(), FRAMES, SEED)
    verify, tensors = verify_of(job.sent[2][2])
    job.sent[2][2] = payload_of(msgspec.structs.replace(verify, **changes), tensors)
    statement = msgspec.structs.replace(job.statements[2], in_root=root(job.sent[2]))
    told = replace(job, statements=[*job.statements[:2], statement])
    for replica in (stages()[2], peers[2]):
        with pytest.raises(AttestationError, match=r"evidence: .*bad_tree") as caught:
            check(told, 2, replica)
        assert caught.value.stage_idx == 2


def payload_of(message: object, tensors: dict[str, torch.Tensor]) -> bytes:
    _, buffer, num_bytes = encode_message_frame(message, tensors)  # type: ignore[arg-type]
    return bytes(buffer[HEADER_LEN : HEADER_LEN + num_bytes])


def test_taps_on_another_wire_are_left_out_of_a_check(tiny: tuple[Stages, list[PeerStage]]) -> None:
    """Catches taps that are read on the wire of hidden states, or sketched with them."""
    stages, _ = tiny
    job = run_job(stages(), FRAMES, SEED)
    verify, tensors = verify_of(job.sent[1][0])
    taps = pack_taps({0: torch.randn(20, 64)}, "fp8")
    tapped = payload_of(verify, {**pack_states({"hidden": tensors["hidden"]}, "f32"), **taps})
    assert torch.equal(states_of(tapped, "f32")[1], tensors["hidden"])
    assert (
        sketch_payload(tapped, "f32", SEED, 0) == sketch_payload(job.sent[1][0], "f32", SEED, 0)
    ).all()
