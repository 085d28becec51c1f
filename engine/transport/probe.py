"""Measures one link, outside jobs: round trip, throughput, and what silence costs.

Guarantees: a probe is answered on the same connection by whoever reads it; late or foreign answers
are ignored. Must never know what the link is used for.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass

import torch

from engine.errors import ConfigError, LinkClosedError
from engine.transport.link import Link
from engine.transport.message import Probe

PROBE_TIMEOUT_S = 10.0
# What one measurement may ask for; a stage measures on the word of its coordinator.
MAX_PROBES = 1000
MAX_PROBE_BYTES = 16 * 2**20
MAX_IDLE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to measure.

    Attributes:
        count: round trips of an empty probe, and then as many with the payload.
        payload_bytes: size of the payload; its extra time over an empty probe is one transfer.
        idle_ms: silence before one more payload, whose extra time is the price of idling.
    """

    count: int
    payload_bytes: int
    idle_ms: int

    def __post_init__(self) -> None:
        """Refuse what would allocate or sleep without measure.

        Raises:
            ConfigError: naming the value and its range.
        """
        for name, value, low, high in (
            ("count", self.count, 1, MAX_PROBES),
            ("payload_bytes", self.payload_bytes, 0, MAX_PROBE_BYTES),
            ("idle_ms", self.idle_ms, 0, MAX_IDLE_MS),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name} of a link probe is {value}; allowed: {low}..{high}")

    def longest_s(self) -> float:
        """When to give up on whoever measures."""
        return PROBE_TIMEOUT_S * (2 * self.count + 1) + self.idle_ms / 1000


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """What was measured, in order; round trips in ns as the sending end saw them."""

    rtt_ns: tuple[int, ...]
    payload_bytes: int
    payload_rtt_ns: tuple[int, ...]
    idle_payload_rtt_ns: int


class Prober:
    """Measures from one thread while the link's reader thread feeds `on_ack`."""

    def __init__(self) -> None:
        self._acks: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._seq = 0

    def on_ack(self, seq: int, read_ns: int) -> None:
        """An answer, as read by the reader thread (monotonic ns)."""
        self._acks.put((seq, read_ns))

    def measure(self, link: Link, plan: ProbePlan) -> LinkProbe:
        """Send probes one after another.

        Raises:
            LinkClosedError: the link is gone or silent for `PROBE_TIMEOUT_S`.
        """
        payload = torch.zeros(plan.payload_bytes, dtype=torch.uint8)
        rtt_ns = tuple(self._one(link, payload[:0]) for _ in range(plan.count))
        payload_rtt_ns = tuple(self._one(link, payload) for _ in range(plan.count))
        time.sleep(plan.idle_ms / 1000)
        return LinkProbe(rtt_ns, plan.payload_bytes, payload_rtt_ns, self._one(link, payload))

    def _one(self, link: Link, payload: torch.Tensor) -> int:
        self._seq += 1
        sent_ns = time.monotonic_ns()
        link.send(Probe(seq=self._seq), {"payload": payload})
        while True:
            try:
                seq, read_ns = self._acks.get(timeout=PROBE_TIMEOUT_S)
            except queue.Empty:
                raise LinkClosedError(
                    f"{link.peer} did not answer a probe for {PROBE_TIMEOUT_S:.0f} s"
                ) from None
            if seq == self._seq:
                return read_ns - sent_ns
