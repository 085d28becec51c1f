"""Fits the planner's prior on recorded texts: `python -m bench prior RECEIPTS…`.

Every recorded text is replayed with long drafts, one frame in flight and several; each tested
draft is counted under the key that the planner looks it up by. The file that is written names the
receipts it was made from. Guarantees: equal receipts give equal bytes. Must never know speeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.replay import replay
from bench.ring_model import RingShape
from bench.traces import Trace, fit_ring, load_recorded
from engine.coordinator.policy import FixedK
from engine.coordinator.records import FrameRecord
from engine.coordinator.survival import Counts, Key, key_of, verified_match
from engine.defaults import MIN_MATCH_LEN
from engine.draft.registry import make_drafter
from engine.trust.identity import PublicIdentity

SHAPES = ((64, 1), (16, 4))  # (draft length, depth) of the replays that are counted


class _Counter:
    """Counts tested drafts of one job by key."""

    def __init__(self, counts: dict[Key, list[float]]) -> None:
        self._counts = counts
        self._run_len = 0

    def add(self, record: FrameRecord) -> None:
        match_len = verified_match(record.match_len, record.unverified_len)
        for idx in range(record.tested_len):
            accepted = idx < record.accepted_len
            key = key_of(record.source, match_len, self._run_len, record.unverified_len + idx)
            total = self._counts.setdefault(key, [0.0, 0.0])
            total[0] += accepted
            total[1] += 1
            self._run_len = self._run_len + 1 if accepted else 0


def fit(traces: Iterable[Trace], shape: RingShape, min_match_len: int) -> dict[Key, Counts]:
    """Accepted and tested drafts by key over all texts."""
    counts: dict[Key, list[float]] = {}
    for trace in traces:
        for draft_len, depth in SHAPES:
            drafter = make_drafter("ngram", min_match_len)
            counter = _Counter(counts)
            for record in replay(trace, shape, FixedK(draft_len), drafter, depth).records:
                counter.add(record)
    return {key: Counts(*total) for key, total in counts.items()}


def fit_folders(folders: Sequence[Path], keys: dict[str, PublicIdentity]) -> str:
    """The file's text, from the receipts of whole experiments.

    Raises:
        ReceiptError: one of them cannot be read.
    """
    traces: list[Trace] = []
    shape = None
    for folder in folders:
        recorded = load_recorded(folder, keys)
        traces += recorded.traces()
        shape = shape or fit_ring([receipt for _, receipt in recorded.receipts], overlap=1.0)
    assert shape is not None, "the command takes at least one folder"
    prior = fit(traces, shape, MIN_MATCH_LEN)
    return prior_json(prior, [trace.receipt_id for trace in traces])


def prior_json(prior: dict[Key, Counts], receipt_ids: Sequence[str]) -> str:
    """The file's text, sorted, one key a line."""
    keys = {
        "/".join(map(str, key)): [int(counts.accepted), int(counts.tested)]
        for key, counts in sorted(prior.items())
    }
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(pair)}" for name, pair in keys.items())
    ids = ",\n".join(f"    {json.dumps(identifier)}" for identifier in sorted(receipt_ids))
    return f'{{\n  "keys": {{\n{lines}\n  }},\n  "receipts": [\n{ids}\n  ]\n}}\n'
