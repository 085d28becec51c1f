"""The coordinator's side of a challenge: what stages handed over, held against replicas.

Guarantees: evidence that does not have the form of the message is the stage's fault, and named.
Must never know links.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from engine.errors import ConfigError
from engine.model.sampling import SamplingParams
from engine.numeric import NUMERIC_CONFIGS
from engine.transport.connection import Received
from engine.transport.message import EvidenceReport, Levers
from engine.trust.attestation import open_envelope, parse_statement
from engine.trust.challenge import Compared, Evidence, Replica, Terms, spot_check
from engine.trust.limits import LIMITS, Limits, grouped
from engine.trust.sketch import NUM_SIGNS
from engine.trust.verify import AttestationError


def terms_of(levers: Levers, num_frames: int) -> Terms:
    """What a job with these levers is challenged under.

    Raises:
        ConfigError: nobody calibrated its numeric configuration, no frame is to be drawn, or the
            sampling is malformed.
    """
    if num_frames < 1:
        raise ConfigError(f"a challenge of {num_frames} frames; allowed: 1 or more")
    name = levers.numeric_config
    if name not in LIMITS:
        raise ConfigError(
            f"numeric configuration {name!r} has no calibrated limits to be challenged under; "
            f"valid: {', '.join(sorted(NUMERIC_CONFIGS.keys() & LIMITS))}"
        )
    asked = levers.sampling
    sampling = SamplingParams.parse(asked.temperature, asked.top_k, asked.top_p, asked.seed)
    config = NUMERIC_CONFIGS[name]
    return Terms(config.wire, sampling, LIMITS[name], num_frames)


def check_replicas(
    signed: Sequence[str],
    reports: Sequence[Received],
    replicas: Sequence[Replica],
    seed: bytes,
    terms: Terms,
) -> list[list[Compared]]:
    """Recompute drawn frames of every stage.

    Args:
        signed: the stages' statements, as `verify_job` passed them.
        reports: `EvidenceReport`s, in ring order.
        replicas: in ring order.

    Raises:
        AttestationError: the first fault, and the stage whose it is.
    """
    statements = [parse_statement(open_envelope(text)[1]) for text in signed]
    evidence = {idx: _evidence_of(idx, report) for idx, report in enumerate(reports)}
    return [
        spot_check(statements, evidence, idx, replica, seed, terms)
        for idx, replica in enumerate(replicas)
    ]


def findings(compared: Sequence[Sequence[Compared]], terms: Terms) -> list[str]:
    """What was seen of every stage that passed, for a person; in ring order."""
    return [_finding(frames, terms.limits) for frames in compared]


def _finding(frames: Sequence[Compared], limits: Limits) -> str:
    errors = np.concatenate([np.zeros(0), *(frame.errors for frame in frames)])
    recomputed = f"{len(frames)} frames recomputed"
    if not errors.size:
        return f"{recomputed}, ids hold"
    seen = f"{recomputed}, off by at most {errors.max():.1e} of {limits.position:.1e}"
    medians = [np.median(group) for _, group in grouped([frame.errors for frame in frames])]
    if not medians:
        return f"{seen}; {errors.size} positions, too few to judge a median: draw more frames"
    most = f"{max(medians):.1e} of {limits.median:.1e}"
    return f"{seen}, at the medians of {len(medians)} groups by at most {most}"


def _evidence_of(stage_idx: int, received: Received) -> Evidence:
    """Take a report apart."""
    report = received.message
    assert isinstance(report, EvidenceReport), "nothing else is waited for"
    if report.refused:
        raise AttestationError("evidence", report.refused, stage_idx)
    rows = [num for _, _, num in report.sketched]
    blob = received.tensors.get("received", torch.zeros(0, dtype=torch.uint8))
    sketches = received.tensors.get("sketches", torch.zeros(0, NUM_SIGNS))
    if (
        min((*report.received_lens, *rows), default=0) < 0
        or blob.dtype != torch.uint8
        or blob.shape != (sum(report.received_lens),)
        or sketches.dtype != torch.float32
        or sketches.shape != (sum(rows), NUM_SIGNS)
    ):
        raise AttestationError("evidence", "its report's tensors are not those it names", stage_idx)
    payload, ends = bytes(blob.numpy()), np.cumsum([0, *report.received_lens])
    tops = np.cumsum([0, *rows])
    return Evidence(
        received=[payload[start:end] for start, end in pairwise(ends)],
        sketches={
            (epoch, start): sketches[top:bottom].double().numpy()
            for (epoch, start, _), (top, bottom) in zip(
                report.sketched, pairwise(tops), strict=True
            )
        },
    )
