"""The schema's own kinds of values, and its rows about links (see `bench.schema`).

Guarantees: as there. Who reads receipts imports these through `bench.schema`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$")]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Decimal = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]+(\.[0-9]+)?$")]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every struct in a receipt: strict, immutable."""


class LinkRow(Record, frozen=True, kw_only=True):
    """One directed link: what the profile asks for and what was measured before the first job."""

    name: str
    one_way_ns: Count
    jitter_ns: Count
    rate_bytes_per_s: Count  # 0: unlimited
    rtt_ns: list[Count]  # of empty probes, measured by the sending end of the link
    payload_bytes: Count | UnsetType = UNSET  # what the payload probes carried
    payload_rtt_ns: list[Count] | UnsetType = UNSET  # payload out, nothing back; back to back
    idle_payload_rtt_ns: Count | UnsetType = UNSET  # one more, after a silence
    jitter_distribution: str | UnsetType = UNSET  # "none", "uniform" or "exponential"
    queue_bytes: Count | UnsetType = UNSET  # what may wait for the rate; 0: unlimited
    loss_ppm: Count | UnsetType = UNSET
    reorder_ppm: Count | UnsetType = UNSET
    congestion_control: str | UnsetType = UNSET  # of TCP on it; "": the kernel's default
    stall_ns: Count | UnsetType = UNSET  # how long it stands still; 0: never
    stall_every_ns: Count | UnsetType = UNSET  # from the end of one stall to the next, on average


class LinkTest(Record, frozen=True, kw_only=True):
    """How much later than asked the relay delivered, beside as many busy processes as stages."""

    link: str  # that was tried, before the run
    num_messages: Count
    num_busy: Count
    median_excess_ns: Count
    p99_excess_ns: Count
