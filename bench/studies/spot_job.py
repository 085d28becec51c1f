"""A job of real layers in this process, recorded as a ring's stages would record it.

Guarantees: frames, wire and statements are those of a ring; only sockets and signatures are not
there. Any stage may compute in another way than the one that it states. Must never know models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from engine.model.sampling import SamplingParams, sample_ids
from engine.model.tree import answered_positions
from engine.transport.codec import encode_message_frame
from engine.transport.frame import HEADER_LEN, Kind
from engine.transport.hidden_wire import pack_states, unpack_states
from engine.transport.message import Verify
from engine.trust.attestation import Answer, FrameKey, StageStatement, frame_digest, root_of
from engine.trust.challenge import Evidence, Replica, commitment, drawn_frames, sketch_payload
from engine.trust.sketch import Floats

MODEL_DIGEST = "0" * 64
Forward = Callable[..., torch.Tensor]  # hidden, start, of a tree its parents
GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class SpotFrame:
    """One applied frame: what the first stage is sent."""

    epoch: int
    start: int
    ids: tuple[int, ...]
    answer_from: int
    parents: tuple[int, ...] = ()

    @property
    def key(self) -> FrameKey:
        return self.epoch, self.start


@dataclass(frozen=True)
class SpotJob:
    """What a ring leaves behind of one job.

    Attributes:
        sent: payloads by hop; hop i is what stage i received.
    """

    frames: tuple[SpotFrame, ...]
    wire: str
    seed: bytes
    sent: list[list[bytes]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    statements: list[StageStatement] = field(default_factory=list)
    evidence: dict[int, Evidence] = field(default_factory=dict)

    def sketches_of(self, stage_idx: int) -> dict[FrameKey, Floats]:
        """What an honest stage says that it sent, of every frame."""
        keys = drawn_frames(
            self.seed, stage_idx, [frame.key for frame in self.frames], len(self.frames)
        )
        payloads = self.sent[stage_idx + 1]
        return {
            key: sketch_payload(payload, self.wire, self.seed, stage_idx)
            for key, payload in zip(keys, payloads, strict=True)
        }


def run_job(
    stages: Sequence[Replica],
    frames: Sequence[SpotFrame],
    seed: bytes,
    wire: str = "f32",
    sampling: SamplingParams = GREEDY,
    forwards: Mapping[int, Forward] | None = None,
) -> SpotJob:
    """Run it.

    Args:
        stages: the first ones of a ring, or all; the ring's last one answers.
        forwards: by stage: how it computes instead of by its own layers.
    """
    job = SpotJob(tuple(frames), wire, seed, [[] for _ in range(len(stages) + 1)])
    for stage in stages:
        stage.reset()
    for frame in frames:
        _run_frame(job, stages, frame, sampling, forwards or {})
    for idx, stage in enumerate(stages):
        job.statements.append(_statement(job, idx, stage, len(stages)))
        own = {} if stage.is_last else job.sketches_of(idx)
        job.evidence[idx] = Evidence(job.sent[idx], own)
    return job


def _run_frame(
    job: SpotJob,
    stages: Sequence[Replica],
    frame: SpotFrame,
    sampling: SamplingParams,
    forwards: Mapping[int, Forward],
) -> None:
    verify = Verify(
        job=1,
        epoch=frame.epoch,
        start=frame.start,
        positions_len=len(frame.ids),
        answer_from=frame.answer_from,
        ids=frame.ids,
        parents=frame.parents,
    )
    job.sent[0].append(_payload(verify, {}))
    hidden = stages[0].embed(frame.ids)
    for idx, stage in enumerate(stages):
        # what computes in another way is asked as before: it knows no trees
        tree = (frame.parents,) if frame.parents else ()
        hidden = forwards.get(idx, stage.forward)(hidden, frame.start, *tree)
        if not stage.is_last:
            packed = pack_states({"hidden": hidden}, job.wire)
            job.sent[idx + 1].append(_payload(msgspec.structs.replace(verify, ids=None), packed))
            hidden = unpack_states(packed, job.wire)["hidden"]
    positions = answered_positions(frame.parents, frame.start, len(frame.ids), frame.answer_from)
    ids: list[int] = []
    if positions and stages[-1].is_last:
        logits = stages[-1].logits(hidden[-len(positions) :])
        ids = sample_ids(logits, positions, sampling)
    job.answers.append(Answer(frame.epoch, frame.start, frame.answer_from, tuple(ids)))


def _payload(verify: Verify, tensors: Mapping[str, torch.Tensor]) -> bytes:
    _, buffer, num_bytes = encode_message_frame(verify, tensors)
    return bytes(buffer[HEADER_LEN : HEADER_LEN + num_bytes])


def root(payloads: Sequence[bytes]) -> str:
    """Over verify frames in order."""
    return root_of([frame_digest(Kind.VERIFY, payload) for payload in payloads])


def _statement(job: SpotJob, idx: int, stage: Replica, num_stages: int) -> StageStatement:
    return StageStatement(
        job_nonce=commitment(job.seed),
        segment=0,
        stage_idx=idx,
        num_stages=num_stages,
        layer_start=stage.layer_start,
        layer_end=stage.layer_end,
        model_digest=MODEL_DIGEST,
        frames=len(job.frames),
        positions=sum(len(frame.ids) for frame in job.frames),
        in_root=root(job.sent[idx]),
        out_root=root(job.sent[idx + 1]),
        hash_ns=1,
        compute_ns=1,
        answers=tuple(job.answers) if stage.is_last else None,
    )
