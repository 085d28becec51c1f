"""Test only: invented rings, links and counts of frames and bytes on the wire.

Guarantees: hops add up and agree with the frames, as those of a real receipt do. Must never be used
outside tests: nothing here was measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from bench.schema import Counters, FrameRow, HopRow, JobConfig, LinkRow, RingConfig

NUM_LAYERS = 30
FRAME_BYTES = 40  # header and tag
BYTES_PER_POSITION = {"f32": 2304, "fp8": 580, "int4": 2304}
BYTES_PER_ANSWER = {"ids": 4, "logits": 1000}
ONE_WAY_NS = 55_000_000
RTT_NS = 110_500_000
PAYLOAD_BYTES = 120_000
MOVING_NS = 24_000_000  # so 5 MB/s
IDLE_NS = 80_000_000
CODEC_NS = 90_000  # of a process and a frame
SEAL_NS = 30_000
SUITES = {"seal-chacha": "chacha20-poly1305", "seal-aes": "aes-256-gcm"}
FRAME_ARMS = tuple(f"{reply}-s{n}" for reply in ("ids", "logits") for n in (1, 2, 3, 4))


def digest_of(text: str) -> str:
    """A stand-in digest."""
    return hashlib.sha256(text.encode()).hexdigest()


RING = RingConfig(
    num_stages=4,
    layer_plan=[(0, 7), (7, 15), (15, 23), (23, NUM_LAYERS)],
    threads_per_stage=1,
    profile="wan-275",
    profile_digest=digest_of("profile"),
    suite="plain",
    kernel="invented",
    max_kv_size=0,
    links="relay",
    signers=[],
)


def config_of(arm: str) -> str:
    """An arm's numeric configuration."""
    return next((config for config in ("fp8", "int4") if arm.endswith(config)), "f32")


def ring_of(arm: str) -> RingConfig:
    """The ring that an arm's jobs run on."""
    if arm in SUITES:
        return msgspec.structs.replace(RING, suite=SUITES[arm])
    if config_of(arm) == "int4":
        return msgspec.structs.replace(RING, kernel="int4-invented")
    num_stages = int(arm[-1]) if arm in FRAME_ARMS else RING.num_stages
    if num_stages == RING.num_stages:
        return RING
    bounds = [idx * NUM_LAYERS // num_stages for idx in range(num_stages + 1)]
    return msgspec.structs.replace(RING, num_stages=num_stages, layer_plan=list(pairwise(bounds)))


def link_rows(num_stages: int) -> list[LinkRow]:
    """Every link alike, five probes of each kind."""
    hosts = ["coordinator", *map(str, range(num_stages)), "coordinator"]
    spread = (-200_000, 100_000, 0, -100_000, 300_000)
    return [
        LinkRow(
            name=f"{source}->{sink}",
            one_way_ns=ONE_WAY_NS,
            jitter_ns=0,
            rate_bytes_per_s=0,
            rtt_ns=[RTT_NS + more for more in spread],
            payload_bytes=PAYLOAD_BYTES,
            payload_rtt_ns=[RTT_NS + MOVING_NS + more for more in spread],
            idle_payload_rtt_ns=RTT_NS + MOVING_NS + IDLE_NS,
            jitter_distribution="none",
            queue_bytes=0,
            loss_ppm=0,
            reorder_ppm=0,
            congestion_control="",
            stall_ns=0,
            stall_every_ns=0,
        )
        for source, sink in pairwise(hosts)
    ]


def counters_of(frames: Sequence[FrameRow], config: JobConfig, num_stages: int) -> Counters:
    """Every stage forwards every frame; a stale frame's reply is written too, and dropped."""
    stale = [frame for frame in frames if frame.outcome == "stale"]
    per_position = BYTES_PER_POSITION[config.numeric_config]
    hidden = sum(FRAME_BYTES + per_position * frame.positions_len for frame in frames)
    answer = FRAME_BYTES + BYTES_PER_ANSWER[config.reply]
    sizes = [sum(frame.sent_bytes for frame in frames)]
    sizes += [hidden] * (num_stages - 1) + [answer * len(frames)]
    senders = ["coordinator", *(f"stage-{idx}" for idx in range(num_stages))]
    hops = [
        HopRow(
            sender=sender,
            frames=len(frames),
            bytes=size,
            codec_ns=CODEC_NS * len(frames),
            seal_ns=SEAL_NS * len(frames),
            noops=0,
        )
        for sender, size in zip(senders, sizes, strict=True)
    ]
    return Counters(
        stale_replies=0,
        stale_dropped=0,
        stale_computed=len(stale),
        uncorrelated=0,
        discarded_len=sum(frame.sent_len for frame in stale),
        frames_on_wire=sum(hop.frames for hop in hops),
        bytes_on_wire=sum(hop.bytes for hop in hops),
        hops=hops,
        stages_uncorrelated=0,
    )
