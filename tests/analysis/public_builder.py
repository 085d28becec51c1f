"""Invented files in the form of the public receipts, small, with known answers.

`honest()` is a set of files under which every published claim that files can decide holds; tests
change one thing of it. Must never know how the audit computes.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.public.files import MATRIX, PAPER_OFF, PAPER_ON, REAL_RING, TREE_TRIAL

Entry = dict[str, Any]
NOVEL = ("reason-math", "reason-logic", "open-chat", "agentic-tool")
SHORT = (*NOVEL, "code-edit", "rag-quote")
LONG = ("ctx-8k-summarize", "ctx-8k-quote")
ONCE = ("ctx-30k-summarize", "ctx-30k-quote")  # run in one repetition only
AR_CELLS = ("reason-math", "open-chat", "rag-quote", "ctx-8k-quote")
PROMPTS = {"agentic-tool": 202, "open-chat": 58}
REPS = 3
ORDERS = (("ar", "chain", "hybrid"), ("chain", "hybrid", "ar"), ("hybrid", "ar", "chain"))
STAGE_COMPUTE = {"0": 20.0, "1": 40.0, "2": 10.0, "3": 30.0}  # ms; the slowest is fourfold
GAP_OFF, SHARE = 1.0, 0.004  # ms between compute and send; what signing adds to it, of compute


def job(arm: str, cell: str, rep: int = 1, **changes: object) -> Entry:
    """One record; 10 rounds of 400 ms, 60 % of them transport."""
    tok_s = {"ar": 4.9, "chain": 12.5, "hybrid": 12.5}[arm]
    if cell.startswith("ctx-8k-") and arm != "ar":
        tok_s = 10.0
    if cell.startswith("ctx-30k-"):
        tok_s = 6.0
    is_ar = arm == "ar"
    record = {
        "arm": arm,
        "cell": cell,
        "rep": rep,
        "prompt_tokens": PROMPTS.get(cell, 67),
        "new_tokens": 96,
        "tok_s": tok_s,
        "g": 1.0 if is_ar else 3.0,
        "accept": 0.0 if is_ar else 2.5,
        "rounds": 10,
        "wasted": 0 if is_ar else 3,
        "prefill_s": 30.0,
        "decode_s": 96 / tok_s,
        "traversal_s": 4.0,
        "transport_s": 2.4,
        "stage_s": 1.6,
        "per_stage_ms": stage_times(SHARE),
        "receipts_ok": True,
        "answer_head": "not read",
    }
    return {**record, **changes}


def stage_times(signing: float) -> dict[str, list[float]]:
    """Span and compute by stage; signing takes this share of computing between them."""
    return {
        stage: [compute + GAP_OFF + signing * compute, compute]
        for stage, compute in STAGE_COMPUTE.items()
    }


def unsigned(record: Entry, slower: float = 1.1) -> Entry:
    """The same job without receipts: faster, and nothing but the usual gap before a send."""
    return {
        **record,
        "tok_s": record["tok_s"] * slower,
        "decode_s": record["decode_s"] / slower,
        "per_stage_ms": stage_times(0.0),
        "receipts_ok": None,
    }


def bench() -> Iterator[Entry]:
    """64 jobs, the arms of a cell back to back, their order turning with the repetition."""
    for rep in range(1, REPS + 1):
        for cell in (*SHORT, *LONG, *(ONCE if rep == 1 else ())):
            for arm in ORDERS[rep - 1]:
                if arm != "ar" or cell in AR_CELLS:
                    yield job(arm, cell, rep)


def stage_receipt(idx: int, start: int, end: int, **changes: object) -> Entry:
    """What one stage signed; roots chain by their index."""
    record = {
        "swarm_id": "swarm",
        "layer_start": start,
        "layer_end": end,
        "nonce": "6910",
        "schema": "shard-receipt/1",
        "n_chunks": 637,
        "in_root": f"{idx:064x}",
        "out_root": f"{idx + 1:064x}",
        "pubkey": f"key {idx}",
        "sig": "not read",
    }
    return {**record, **changes}


def matrix_row(**changes: object) -> Entry:
    """A row whose best repetition is also its median."""
    record = {
        "workload": "math",
        "ctx_tokens": 0,
        "dspark_best_tok_s": 16.0,
        "dspark_median_tok_s": 16.0,
        "dspark_reps": 3,
        "greedy_tok_s": 10.0,
        "speedup_vs_greedy": 1.6,
        "lossless_vs_greedy": True,
        "receipts_ok": True,
    }
    return {**record, **changes}


def tree_cell(chain: float, tree: float) -> Entry:
    return {"chain": [chain, 2.0], "tree_eagle_only": [chain, 2.0], "tree_hybrid": [tree, 3.0]}


@dataclass(slots=True)
class PublicSet:
    """Contents of the five files, to be changed and written."""

    on: list[Entry] = field(default_factory=lambda: list(bench()))
    off: list[Entry] = field(default_factory=list)
    real_ring: Entry = field(default_factory=dict)
    tree: Entry = field(default_factory=dict)
    matrix: Entry = field(default_factory=dict)

    def named(self) -> dict[str, object]:
        """The files in the order of the pins."""
        return {
            PAPER_ON: self.on,
            PAPER_OFF: self.off,
            REAL_RING: self.real_ring,
            TREE_TRIAL: self.tree,
            MATRIX: self.matrix,
        }

    def write(self, folder: Path) -> dict[str, str]:
        """Write the files; returns their digests, to be used as pins."""
        folder.mkdir(parents=True, exist_ok=True)
        digests = {}
        for name, content in self.named().items():
            body = json.dumps(content).encode()
            (folder / name).write_bytes(body)
            digests[name] = hashlib.sha256(body).hexdigest()
        return digests

    def changed(self, change: Callable[[PublicSet], None]) -> PublicSet:
        """A copy with one change."""
        own = copy.deepcopy(self)
        change(own)
        return own


def honest() -> PublicSet:
    """Files that bear every claim that they can decide."""
    on = list(bench())
    return PublicSet(
        on=on,
        off=[unsigned(record) for record in on if record["arm"] != "ar"],
        real_ring={
            "receipts": [
                stage_receipt(idx, *layers)
                for idx, layers in enumerate([(0, 10), (10, 36), (36, 62)])
            ],
            "receipts_ok": True,
        },
        tree={
            "results_tok_s_and_g": {
                "reason-math": tree_cell(4.0, 5.0),
                "reason-logic": tree_cell(3.0, 4.7),
                "code-edit": tree_cell(5.0, 6.8),
                "decode_weighted_mean": {
                    "chain": 4.0,
                    "tree_eagle_only": 4.0,
                    "tree_hybrid": 4.72,
                },
            }
        },
        matrix={
            "ring": {
                "topology": "Poland[0:8) -> Estonia[8:16) -> Denmark[16:24) -> Czechia[24:43)"
            },
            "headline": {"median_tok_s": 30.0, "reps": [19.0, 29.0, 30.0, 31.0]},
            "control_by_rep": {"1": 20.0, "2": 13.0, "3": 11.0},
            "matrix": [
                matrix_row(),
                matrix_row(dspark_best_tok_s=52.0, dspark_median_tok_s=52.0, speedup_vs_greedy=5.2),
            ],
            "integrity": {
                "dspark_cells": 9,
                "lossless_cells": 9,
                "receipts_verified": 11,
                "total_jobs": 11,
            },
        },
    )
