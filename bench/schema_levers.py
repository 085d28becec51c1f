"""Job levers as receipts and plans write them.

Guarantees: as `bench.schema`, whose part it is.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from bench.schema_links import Count, Decimal, Hex, Record


class SamplingRow(Record, frozen=True, kw_only=True):
    """How tokens are chosen; temperature 0 is greedy."""

    temperature: Decimal
    top_k: Count  # 0: no limit
    top_p: Decimal
    seed: Hex


class JobConfig(Record, frozen=True, kw_only=True):
    """Every job lever, as requested or as one process observed it."""

    arm: str
    policy: str
    policy_params: dict[str, Count]
    draft_len: Count
    depth: Count
    drafter: str
    min_match_len: Count
    prefill_chunk: Count
    max_new_tokens: Count
    numeric_config: str
    attestation: bool
    keepwarm_ms: Count
    reply: Literal["ids", "logits"] | UnsetType = UNSET  # what the last stage answers with
    sampling: SamplingRow | UnsetType = UNSET
    drafter_params: dict[str, Count] | UnsetType = UNSET
    tap_layers: list[Count] | UnsetType = UNSET  # outputs that ride to the coordinator
    tap_wire: str | UnsetType = UNSET
