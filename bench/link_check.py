"""Whether the links that were measured are the ones that the profile asks for.

Guarantees: a delay that is missing or too long, or a rate that is not kept, is named with its link,
what was measured and what is allowed; a link that cannot be judged is not called wrong. How much
slower than its rate a link is hangs on TCP and is not judged. Must never know jobs or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.schema import LinkRow
from bench.wan.profile import LinkProfile, LinkShape

EARLY_NS = 500_000  # clocks of two ends of one machine agree; rounding of the emulator's timer
MEAN_JITTERS = 6  # of both ways together; the median of five is rarely beyond
NS_PER_MS = 1_000_000


def link_faults(profile: LinkProfile, links: Sequence[LinkRow]) -> list[str]:
    """What is wrong with the measured links of a ring, one sentence a link."""
    shapes = profile.links(len(links) - 1)
    return [
        fault
        for shape, row in zip(shapes, links, strict=True)
        if (fault := _fault(shape, row, profile.tolerance_ns)) is not None
    ]


def _fault(shape: LinkShape, row: LinkRow, tolerance_ns: int) -> str | None:
    least = 2 * shape.one_way_ns
    low = max(0, least - EARLY_NS)
    high = least + tolerance_ns + MEAN_JITTERS * shape.jitter_ns
    found = median(row.rtt_ns)
    if not low <= found <= high:
        return (
            f"{shape.name}: a round trip takes {_ms(found)}; the profile allows {_ms(low)} to "
            f"{_ms(high)}"
        )
    if shape.rate_bytes_per_s and isinstance(row.payload_bytes, int):
        needed = least + row.payload_bytes * 1_000_000_000 // shape.rate_bytes_per_s - EARLY_NS
        sent = median(row.payload_rtt_ns) if isinstance(row.payload_rtt_ns, list) else needed
        if sent < needed:
            return (
                f"{shape.name}: {row.payload_bytes} bytes go round in {_ms(sent)}; at the "
                f"profile's rate they need {_ms(needed)}"
            )
    return None


def _ms(ns: float) -> str:
    return f"{ns / NS_PER_MS:.1f} ms"
