"""A stage's answer to a challenge: the frames it received, and sketches of what it sent.

Guarantees: nothing is sketched under a seed that the job's nonce does not commit to; an answer that
cannot be given says why. Must never know sockets or layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from engine.errors import ConfigError, RemoteProtocolError
from engine.stage.account import Attested, StageFacts
from engine.transport.message import Challenge, EvidenceReport
from engine.trust.attestation import FrameKey
from engine.trust.challenge import commitment, drawn_frames, sketch_payload
from engine.trust.frame_digests import RECEIVED, SENT, MissingFrameError

Tensors = Mapping[str, torch.Tensor]


def answer_challenge(
    challenge: Challenge, job: int, attested: Attested | None, facts: StageFacts, wire: str
) -> tuple[EvidenceReport, Tensors]:
    """Answer it.

    Args:
        job: the stage's last one.
        attested: what it signed for; None: nothing.
        wire: of that job's hidden states.
    """
    try:
        if attested is None or challenge.job != job:
            raise ConfigError(f"job {challenge.job} is not the last one, or was not signed for")
        if challenge.num_frames < 1 or commitment(challenge.seed) != attested.nonce:
            raise ConfigError("draws no frame, or the job's nonce does not commit to its seed")
        return _evidence(challenge, attested, facts, wire)
    except (ConfigError, MissingFrameError, RemoteProtocolError) as error:
        return _report(challenge, facts, refused=str(error)), {}


def _evidence(
    challenge: Challenge, attested: Attested, facts: StageFacts, wire: str
) -> tuple[EvidenceReport, Tensors]:
    payloads = attested.frames.payloads(RECEIVED, attested.keys)
    received = torch.frombuffer(bytearray(b"".join(payloads)), dtype=torch.uint8)
    tensors = {"received": received}
    drawn: list[FrameKey] = []
    if not facts.is_last:
        seed, num = challenge.seed, challenge.num_frames
        drawn = drawn_frames(seed, facts.stage_idx, attested.keys, num)
        sketches = [
            sketch_payload(payload, wire, seed, facts.stage_idx)
            for payload in attested.frames.payloads(SENT, drawn)
        ]
        tensors["sketches"] = torch.from_numpy(np.concatenate(sketches)).float()
    report = _report(
        challenge,
        facts,
        received_lens=tuple(len(payload) for payload in payloads),
        sketched=tuple((*key, len(rows)) for key, rows in zip(drawn, sketches, strict=True))
        if drawn
        else (),
    )
    return report, tensors


def _report(
    challenge: Challenge,
    facts: StageFacts,
    received_lens: tuple[int, ...] = (),
    sketched: tuple[tuple[int, int, int], ...] = (),
    refused: str = "",
) -> EvidenceReport:
    return EvidenceReport(
        job=challenge.job,
        stage_idx=facts.stage_idx,
        received_lens=received_lens,
        sketched=sketched,
        refused=refused,
    )
