"""The rings of one run, one for each combination of ring levers, kept up side by side.

Guarantees: a ring is handed out only after it was looked at and its links were measured; a lost
ring is replaced, the others stay as they are; a ring without a job sends nothing; none outlives
this object's context. Must never know jobs, arms or receipts' contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from bench.link_check import link_faults
from bench.schema import LinkRow, RingConfig
from bench.wan.emulator import RelayedLinks
from bench.wan.netns import NamespacedLinks
from bench.wan.profile import LinkProfile, LinkShape
from engine.cluster.launch import LocalRing, RingSpec
from engine.coordinator.session import Session
from engine.errors import LinkClosedError, RemoteProtocolError
from engine.model.linear import weights_of_kernel
from engine.model.weights import ModelFiles
from engine.transport.probe import LinkProbe

NUM_PROBES = 5  # round trips of each kind, by link
PROBE_PAYLOAD_BYTES = 120_000  # a frame of some fifty positions in f32
PROBE_IDLE_MS = 1000  # long enough for TCP to forget how fast it was
MAX_MEASUREMENTS = 3  # of one ring's links, until they are as the profile says
MAX_RING_STARTS = 3  # of one ring, in a row, without a finished job between them

Links = RelayedLinks | NamespacedLinks

# the ring levers in which arms of one run differ: stages, suite, kernel (which tells the weights)
RingKey = tuple[int, str, str]


def ring_key(config: RingConfig) -> RingKey:
    """What tells the rings of one run apart."""
    return config.num_stages, config.suite, config.kernel


@dataclass(frozen=True, slots=True)
class RingRecipe:
    """How to bring a ring up, again if need be.

    Attributes:
        seed: of the links' jitter, loss and reordering.
        nice: of the stages.
    """

    profile: LinkProfile
    seed: int
    nice: int

    def emulator(self, config: RingConfig) -> Links:
        """What stands behind the links of one ring; not started yet."""
        kind = NamespacedLinks if config.links == "netns" else RelayedLinks
        return kind(self.profile, self.seed)

    def make(self, config: RingConfig, links: Links) -> LocalRing:
        """A ring that is not started yet."""
        spec = RingSpec(
            num_stages=config.num_stages,
            threads_per_stage=config.threads_per_stage,
            suite=config.suite,
            nice=self.nice,
            weights=weights_of_kernel(config.kernel),
            signs=bool(config.signers),
        )
        return LocalRing(spec, links)


@dataclass(frozen=True, slots=True)
class WarmRing:
    """A ring that can take a job."""

    session: Session
    files: ModelFiles
    emulator: Links
    links: tuple[LinkRow, ...]  # measured before its first job
    link_fault: str | None  # what of them is not as the profile says
    closing: contextlib.ExitStack


class RingSet:
    """The rings of a run; a context manager that takes them all down.

    Args:
        log: called as `ExperimentStore.log` with what happens to rings.
    """

    def __init__(self, recipe: RingRecipe, log: Callable[..., None]) -> None:
        self._recipe = recipe
        self._log = log
        self._warm: dict[RingKey, WarmRing] = {}
        self._num_starts: dict[RingKey, int] = {}  # since the ring's last finished job

    def __enter__(self) -> RingSet:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._warm):
            self._take_down(key)

    def bring_up(self, configs: Iterable[RingConfig]) -> None:
        """Start every ring of a run, so that all of its jobs meet the same neighbours.

        Raises:
            LinkClosedError: one of them broke again and again.
        """
        for config in configs:
            self.ready(config)

    def ready(self, config: RingConfig) -> WarmRing:
        """The ring of this configuration, looked at just now; a new one if it was lost.

        Raises:
            LinkClosedError: it broke again and again.
        """
        key = ring_key(config)
        while (warm := self._checked(config)) is None:
            num_starts = self._num_starts.get(key, 0)
            if num_starts >= MAX_RING_STARTS:
                raise LinkClosedError(
                    f"the ring of {key[0]} stages, {key[1]}, {key[2]}, broke {num_starts} times in "
                    "a row; the log and the receipts say how; run the same command again to go on"
                )
            self._num_starts[key] = num_starts + 1
            try:
                self._warm[key] = self._start(config)
            except (LinkClosedError, RemoteProtocolError) as error:
                self._log_lost(key, str(error))
        return warm

    def note_finished(self, config: RingConfig) -> None:
        """A job ended well on this ring: what broke it before is over."""
        self._num_starts[ring_key(config)] = 0

    def _checked(self, config: RingConfig) -> WarmRing | None:
        """A ring that is up and whole; one that is not is taken down."""
        key = ring_key(config)
        warm = self._warm.get(key)
        if warm is None:
            return None
        try:
            if not warm.session.usable:
                raise LinkClosedError("a job lost it")
            warm.emulator.check()
            warm.session.check()  # a stage lost between jobs costs none of them
            if warm.link_fault is not None:  # perhaps it was a busy minute, not a wrong delay
                links, fault = self._sound_links(warm.session, config, attempts=1)
                warm = self._warm[key] = replace(warm, links=links, link_fault=fault)
        except (LinkClosedError, RemoteProtocolError) as error:
            self._take_down(key)
            self._log_lost(key, str(error))
            return None
        return warm

    def _start(self, config: RingConfig) -> WarmRing:
        with contextlib.ExitStack() as opened:
            emulator = self._recipe.emulator(config)
            opened.callback(self._log_packets, emulator)  # once the ring is down
            ring = opened.enter_context(self._recipe.make(config, emulator))
            session = opened.enter_context(ring.session())
            links, fault = self._sound_links(session, config, MAX_MEASUREMENTS)
            return WarmRing(session, ring.files, emulator, links, fault, opened.pop_all())

    def _sound_links(
        self, session: Session, config: RingConfig, attempts: int
    ) -> tuple[tuple[LinkRow, ...], str | None]:
        """Measured links, again if they look wrong: a busy moment is no wrong delay."""
        for _ in range(attempts):
            links = self._measured_links(session, config)
            faults = link_faults(self._recipe.profile, links)
            if not faults:
                return links, None
            self._log("link_mismatch", detail="; ".join(faults))
        return links, "; ".join(faults)

    def _measured_links(self, session: Session, config: RingConfig) -> tuple[LinkRow, ...]:
        probes = session.measure_links(NUM_PROBES, PROBE_PAYLOAD_BYTES, PROBE_IDLE_MS)
        rtt_ns: Sequence[list[int]] = [list(probe.rtt_ns) for probe in probes]
        num_stages, suite, kernel = ring_key(config)
        self._log("ring", num_stages=num_stages, suite=suite, kernel=kernel, rtt_ns=rtt_ns)
        shapes = self._recipe.profile.links(num_stages)
        return tuple(_link_row(*pair) for pair in zip(shapes, probes, strict=True))

    def _take_down(self, key: RingKey) -> None:
        self._warm.pop(key).closing.close()

    def _log_packets(self, emulator: Links) -> None:
        """What became of the packets of a ring that is down, where there were packets."""
        if not isinstance(emulator, NamespacedLinks):
            return
        for direction in emulator.report.directions:
            facts = msgspec.structs.asdict(direction)
            self._log("packets", link=facts.pop("name"), **facts)

    def _log_lost(self, key: RingKey, detail: str) -> None:
        num_stages, suite, kernel = key
        self._log("ring_lost", num_stages=num_stages, suite=suite, kernel=kernel, detail=detail)


def _link_row(shape: LinkShape, probe: LinkProbe) -> LinkRow:
    """One link: as the profile asks for it, and as it was measured."""
    asked = msgspec.structs.asdict(shape)
    return LinkRow(
        **asked,
        rtt_ns=list(probe.rtt_ns),
        payload_bytes=probe.payload_bytes,
        payload_rtt_ns=list(probe.payload_rtt_ns),
        idle_payload_rtt_ns=probe.idle_payload_rtt_ns,
    )
