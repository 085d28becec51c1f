"""What the probes say of each link of each ring, as measured before its first job.

Guarantees: a ring that was replaced has rows of its own; medians of the receipts' own round trips,
nothing fitted. Receipts of version 1 have no payload probes and give no row. Must never know jobs,
files or axes.
"""

from __future__ import annotations

from statistics import median

import pandas as pd
from msgspec import UNSET

from analysis.load import Experiment
from bench.schema import LinkRow, RingConfig

NS_PER_MS = 1_000_000
BYTES_PER_NS_IN_MB_PER_S = 1_000
LINK_COLUMNS = (
    "ring",
    "start",
    "link",
    "probes",
    "one_way_ms",
    "rtt_ms",
    "min_rtt_ms",
    "max_rtt_ms",
    "payload_bytes",
    "payload_rtt_ms",
    "min_payload_rtt_ms",
    "max_payload_rtt_ms",
    "mb_per_s",
    "idle_payload_rtt_ms",
    "idle_penalty_ms",
)


def links_frame(experiment: Experiment) -> pd.DataFrame:
    """One row per link of each ring, in order of the rings' first jobs; LINK_COLUMNS.

    `ring` names stages and suite, and the kernel where it is not the plan's default. `start` counts
    the times that a ring was brought up. `mb_per_s` = payload / (median payload round trip − median
    empty one), NaN unless every payload round trip took longer than every empty one: spreads that
    overlap resolve no rate. `idle_penalty_ms` = the payload round trip after a silence − the median
    one without.
    """
    measured: dict[str, list[list[LinkRow]]] = {}
    for receipt in experiment.receipts:
        if not receipt.links or any(link.payload_rtt_ns is UNSET for link in receipt.links):
            continue
        starts = measured.setdefault(ring_words(receipt.ring, experiment.plan.ring), [])
        if receipt.links not in starts:
            starts.append(receipt.links)
    rows = [
        {"ring": ring, "start": start, **_measures(link)}
        for ring, starts in measured.items()
        for start, links in enumerate(starts, start=1)
        for link in links
    ]
    return pd.DataFrame(rows, columns=list(LINK_COLUMNS))


def ring_words(ring: RingConfig, default: RingConfig) -> str:
    """A ring by the levers in which rings of one run differ; a kernel only if not the default."""
    words = f"{ring.num_stages} × {ring.suite}"
    return words if ring.kernel == default.kernel else f"{words}, {ring.kernel}"


def _measures(link: LinkRow) -> dict[str, object]:
    rtt_ns, payload_rtt_ns = median(link.rtt_ns), median(link.payload_rtt_ns)
    is_resolved = min(link.payload_rtt_ns) > max(link.rtt_ns)
    rate = link.payload_bytes / (payload_rtt_ns - rtt_ns) if is_resolved else float("nan")
    return {
        "link": link.name,
        "probes": len(link.rtt_ns),
        "one_way_ms": link.one_way_ns / NS_PER_MS,
        "rtt_ms": rtt_ns / NS_PER_MS,
        "min_rtt_ms": min(link.rtt_ns) / NS_PER_MS,
        "max_rtt_ms": max(link.rtt_ns) / NS_PER_MS,
        "payload_bytes": link.payload_bytes,
        "payload_rtt_ms": payload_rtt_ns / NS_PER_MS,
        "min_payload_rtt_ms": min(link.payload_rtt_ns) / NS_PER_MS,
        "max_payload_rtt_ms": max(link.payload_rtt_ns) / NS_PER_MS,
        "mb_per_s": rate * BYTES_PER_NS_IN_MB_PER_S,
        "idle_payload_rtt_ms": link.idle_payload_rtt_ns / NS_PER_MS,
        "idle_penalty_ms": (link.idle_payload_rtt_ns - payload_rtt_ns) / NS_PER_MS,
    }
