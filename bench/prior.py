"""Fits the planner's prior on recorded texts: `python -m bench prior RECEIPTS…`.

Every recorded text is replayed with the longest drafts, one frame in flight. Counted is how often a
drafted token is accepted by how much matched text is before it; then, by expectation maximisation
over texts, how much each of a few shifts weighs. The file that is written names the receipts it was
made from. Guarantees: equal receipts give equal bytes. Must never know speeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.replay import replay
from bench.ring_fit import fit_ring
from bench.ring_model import RingShape
from bench.traces import Trace, load_recorded
from engine.coordinator.policy import FixedK
from engine.coordinator.survival import (
    KINDS,
    MATCH_EDGES,
    SHIFTS,
    Floats,
    SourcePrior,
    bucket_of,
    chances,
    kind_of,
    verified_match,
)
from engine.defaults import DRAFT_LEN_MAX, MIN_MATCH_LEN
from engine.draft.registry import make_drafter
from engine.trust.identity import PublicIdentity

NUM_STEPS = 60  # of expectation maximisation; the weights move by less than 1e-3 after 40
SOURCE = "ngram"


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """One drafted token whose fate was decided."""

    kind: str
    bucket: int
    accepted: bool


def tested_tokens(trace: Trace, shape: RingShape, min_match_len: int) -> list[DraftedToken]:
    """Every tested draft of one recorded text, in order."""
    drafter = make_drafter(SOURCE, min_match_len)
    found, is_opening = [], True
    for record in replay(trace, shape, FixedK(DRAFT_LEN_MAX), drafter, depth=1).records:
        match_len = verified_match(record.match_len, record.unverified_len)
        for idx in range(record.tested_len):
            distance = record.unverified_len + idx
            bucket, kind = bucket_of(match_len + distance), kind_of(distance, is_opening)
            accepted = idx < record.accepted_len
            found.append(DraftedToken(kind, bucket, accepted))
            is_opening = is_opening and (accepted or not distance)
    return found


def fit(texts: Sequence[Sequence[DraftedToken]]) -> SourcePrior:
    """Chances by bucket and weights of the shifts, each text having one shift a kind."""
    tokens = [token for text in texts for token in text]
    buckets = range(len(MATCH_EDGES))
    counted = SourcePrior(
        accepted=tuple(
            sum(t.accepted and t.bucket == bucket for t in tokens) for bucket in buckets
        ),
        tested=tuple(sum(t.bucket == bucket for t in tokens) for bucket in buckets),
    )
    odds = counted.odds()
    return replace(counted, weights={kind: _weights(texts, kind, odds) for kind in KINDS})


def _weights(texts: Iterable[Sequence[DraftedToken]], kind: str, odds: Floats) -> tuple[float, ...]:
    likelihoods = []
    for text in texts:
        total = np.zeros(len(SHIFTS))
        for token in text:
            if token.kind == kind:
                right = chances(float(odds[token.bucket]))
                total += np.log(right if token.accepted else 1.0 - right)
        likelihoods.append(np.exp(total - total.max()))
    by_text = np.array(likelihoods)
    weights = np.full(len(SHIFTS), 1.0 / len(SHIFTS))
    for _ in range(NUM_STEPS):
        shares = weights * by_text
        weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
    return tuple(float(weight) for weight in weights)


def fit_folders(folders: Sequence[Path], keys: dict[str, PublicIdentity]) -> str:
    """The file's text, from the receipts of whole experiments.

    Raises:
        ReceiptError: one of them cannot be read.
    """
    texts, receipt_ids = [], []
    for folder in folders:
        recorded = load_recorded(folder, keys)
        shape = fit_ring([receipt for _, receipt in recorded.receipts], overlap=1.0)
        for trace in recorded.traces():
            texts.append(tested_tokens(trace, shape, MIN_MATCH_LEN))
            receipt_ids.append(trace.receipt_id)
    return prior_json({SOURCE: fit(texts)}, receipt_ids)


def prior_json(prior: dict[str, SourcePrior], receipt_ids: Sequence[str]) -> str:
    """The file's text; weights to four digits, the largest one takes what rounding leaves."""
    sources = {
        source: {
            "accepted": list(fitted.accepted),
            "tested": list(fitted.tested),
            "weights": {kind: _rounded(fitted.weights[kind]) for kind in KINDS},
        }
        for source, fitted in sorted(prior.items())
    }
    tree = {"match_edges": list(MATCH_EDGES), "shifts": SHIFTS.tolist(), "sources": sources}
    return json.dumps({**tree, "receipts": sorted(receipt_ids)}, indent=1) + "\n"


def _rounded(weights: Sequence[float]) -> list[float]:
    rounded = [round(weight, 4) for weight in weights]
    largest = rounded.index(max(rounded))
    rounded[largest] = round(rounded[largest] + 1.0 - sum(rounded), 4)
    return rounded
