"""What a receipt says of frames and bytes on the wire, and of its links, must add up.

Guarantees: a rule yields (rule name, detail) for each contradiction and goes on; version 1 has
totals only and is held to those. Separate from the code that counts, on purpose. Must never know
plans, files, keys or signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import UNSET

from bench.schema import FrameRow, HopRow, Receipt

Found = Iterator[tuple[str, str]]


def check_wire(receipt: Receipt) -> Found:
    """A finished job's frames and bytes: N verify frames and a reply for an answered traversal."""
    frames, counters = receipt.frames, receipt.counters
    num_hops = receipt.ring.num_stages + 1
    num_answered = sum(_is_answered(frame) for frame in frames)
    # A traversal that was overtaken may end early; it took its first hop at least.
    least = num_answered * num_hops + len(frames) - num_answered
    most = len(frames) * num_hops
    if not least <= counters.frames_on_wire <= most:
        found = counters.frames_on_wire
        yield "counters", f"frames_on_wire {found}; its traversals make {least} to {most}"
    if counters.hops is UNSET or counters.bytes_on_wire is UNSET:
        return
    senders = ["coordinator", *(f"stage-{idx}" for idx in range(receipt.ring.num_stages))]
    stated = [hop.sender for hop in counters.hops]
    if stated != senders:
        yield "wire", f"hops of {stated} instead of {senders}"
        return
    for name, total in (("frames", counters.frames_on_wire), ("bytes", counters.bytes_on_wire)):
        added = sum(getattr(hop, name) for hop in counters.hops)
        if added != total:
            yield "wire", f"{name}_on_wire {total}; its hops add up to {added}"
    for detail in _check_hops(counters.hops, frames, num_answered):
        yield "wire", detail
    for detail in _check_noops(counters.hops, receipt):
        yield "wire", detail


def _is_answered(frame: FrameRow) -> bool:
    return frame.outcome in ("prefill", "applied")


def _check_hops(
    hops: Sequence[HopRow], frames: Sequence[FrameRow], num_answered: int
) -> Iterator[str]:
    first, last = hops[0], hops[-1]
    sent_bytes = sum(frame.sent_bytes for frame in frames)
    if (first.frames, first.bytes) != (len(frames), sent_bytes):
        rows = f"{len(frames)} frames, {sent_bytes} bytes"
        yield f"the coordinator wrote {first.frames} frames, {first.bytes} bytes; its rows: {rows}"
    most = first.frames
    for hop in hops[1:]:
        # With nothing overtaken both bounds are the number of traversals: exactly one frame each.
        if not num_answered <= hop.frames <= most:
            yield f"{hop.sender} wrote {hop.frames} frames of {num_answered} to {most}"
        most = hop.frames
    for hop in hops:
        if hop.bytes < hop.frames:  # a frame has a header at least
            yield f"{hop.sender} wrote {hop.frames} frames in {hop.bytes} bytes"
    received_bytes = sum(frame.received_bytes for frame in frames)
    complete = num_answered == len(frames)
    if last.bytes < received_bytes or (complete and last.bytes != received_bytes):
        yield f"{last.sender} wrote {last.bytes} bytes of replies; {received_bytes} were received"


def _check_noops(hops: Sequence[HopRow], receipt: Receipt) -> Iterator[str]:
    """None where none was asked for, and no more than one after each silence."""
    config = receipt.observed or receipt.requested
    interval_ns = config.keepwarm_ms * 1_000_000
    most = 1 + receipt.timing.end_ns // interval_ns if interval_ns else 0
    for hop in hops:
        if hop.noops is not UNSET and hop.noops > most:
            yield f"{hop.sender} sent {hop.noops} noops; keepwarm_ms {config.keepwarm_ms}: {most}"


def check_links(receipt: Receipt) -> Found:
    """Every link of the ring was measured, each kind of probe as often as on the others."""
    links = receipt.links
    if any(link.payload_rtt_ns is UNSET for link in links):
        return  # version 1, or a version defect
    num_links = receipt.ring.num_stages + 1
    if len(links) != num_links:
        yield "links", f"{len(links)} links of {num_links} were measured"
    hosts = ["coordinator", *map(str, range(receipt.ring.num_stages)), "coordinator"]
    names = [f"{source}->{sink}" for source, sink in pairwise(hosts)]
    if [link.name for link in links] != names[: len(links)]:
        yield "links", f"links {[link.name for link in links]} instead of {names}"
    probes = {(len(link.rtt_ns), len(link.payload_rtt_ns), link.payload_bytes) for link in links}
    if len(probes) > 1 or any(0 in counts for counts in probes):
        yield "links", f"probes (empty, with payload, its bytes) differ or lack: {sorted(probes)}"
    for link in links:
        if min([*link.rtt_ns, *link.payload_rtt_ns, link.idle_payload_rtt_ns], default=0) == 0:
            yield "links", f"link {link.name}: a round trip of no time"
        # The profile's delay stands on both directions of a link.
        if link.rtt_ns and min(link.rtt_ns) < 2 * link.one_way_ns:
            fastest = min(link.rtt_ns)
            yield "links", f"link {link.name}: {fastest} ns both ways, {link.one_way_ns} one way"
