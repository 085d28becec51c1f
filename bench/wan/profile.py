"""Link profiles: how far apart the hosts of a ring are, read from files.

Guarantees: a profile that loads is complete and inside its ranges; an unknown key, an unknown name
or a value out of range is refused with the file's name and what is allowed; the links of a loop
add up to the loop, to the nanosecond; equal link values have equal digests.
Must never know: how a link is emulated, what travels on it, any socket.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from bench.toml_file import read_named
from engine.defaults import PROFILE
from engine.errors import ConfigError, unknown_name

PROFILES_DIR = Path(__file__).resolve().parent.parent / "profiles"

NS_PER_MS = 1_000_000
BYTES_PER_S_PER_MBIT = 125_000
# Probes start and end in Python on a busy machine: 1.4 to 4.6 ms beside the delays were seen on two
# cores, behind relay and namespaces.
TOLERANCE_MS = 10.0

JitterDistribution = Literal["none", "uniform", "exponential"]
CongestionControl = Literal["", "cubic", "bbr", "reno"]  # "": the kernel's default

# Bounds wide enough for a satellite hop and tight enough to catch a value in the wrong unit.
DelayMs = Annotated[float, msgspec.Meta(ge=0.0, le=10_000.0)]
JitterMs = Annotated[float, msgspec.Meta(ge=0.0, le=1_000.0)]
RateMbit = Annotated[float, msgspec.Meta(ge=0.0, le=400_000.0)]
StallGapMs = Annotated[float, msgspec.Meta(ge=0.0, le=3_600_000.0)]
QueueBytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
Ppm = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]

# What only relays, or only packets have; no part of a digest at rest: older profiles keep theirs.
STALLS_AT_REST = {"stall_ns": 0, "stall_every_ns": 0}
PACKET_FIELDS_AT_REST = {
    "queue_bytes": 0,
    "loss_ppm": 0,
    "reorder_ppm": 0,
    "congestion_control": "",
}


class LinkShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one directed link does to bytes; its reverse direction has the same numbers.

    Attributes:
        name: `coordinator->0`, `0->1`, …, `<last>->coordinator`.
        one_way_ns: the least time from one end to the other.
        jitter_ns: added on top: the width of `uniform`, the mean of `exponential`.
        jitter_distribution: "none", "uniform" or "exponential".
        rate_bytes_per_s: serialisation rate; 0 is unlimited.
        stall_ns, stall_every_ns: how long it stands still, and how long it goes on average before
            it does again; 0 and 0: never.
        queue_bytes: what may wait for the rate, IP headers included; 0 is unlimited.
        loss_ppm, reorder_ppm: packets of a million that vanish, or that followers overtake.
        congestion_control: of TCP between the link's two ends; "" is the kernel's default.
    """

    name: str
    one_way_ns: int
    jitter_ns: int = 0
    jitter_distribution: JitterDistribution = "none"
    rate_bytes_per_s: int = 0
    stall_ns: int = 0
    stall_every_ns: int = 0
    queue_bytes: int = 0
    loss_ppm: int = 0
    reorder_ppm: int = 0
    congestion_control: CongestionControl = ""

    @property
    def is_transparent(self) -> bool:
        """True when the link changes nothing, so that no relay has to stand on it."""
        return (
            self.one_way_ns == 0
            and self.jitter_ns == 0
            and self.rate_bytes_per_s == 0
            and self.stall_ns == 0
            and not self.packet_fields
        )

    @property
    def packet_fields(self) -> list[str]:
        """Names of the fields in use that only `bench.wan.netns` can do, not a relay."""
        return [name for name, rest in PACKET_FIELDS_AT_REST.items() if getattr(self, name) != rest]


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[link]]` of a profile file that lists its links."""

    one_way_ms: DelayMs
    jitter_ms: JitterMs = 0.0
    jitter_distribution: JitterDistribution = "none"
    rate_mbit: RateMbit = 0.0
    stall_ms: DelayMs = 0.0
    stall_every_ms: StallGapMs = 0.0
    queue_bytes: QueueBytes = 0
    loss_ppm: Ppm = 0
    reorder_ppm: Ppm = 0
    congestion_control: CongestionControl = ""


class ProfileFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile file as written; `loop_ms` or `link`, never both."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    description: Annotated[str, msgspec.Meta(min_length=1)]
    provenance: str = ""
    tolerance_ms: Annotated[float, msgspec.Meta(gt=0.0, le=10_000.0)] = TOLERANCE_MS
    loop_ms: DelayMs | None = None
    jitter_ms: JitterMs = 0.0
    jitter_distribution: JitterDistribution = "none"
    rate_mbit: RateMbit = 0.0
    stall_ms: DelayMs = 0.0
    stall_every_ms: StallGapMs = 0.0
    queue_bytes: QueueBytes = 0
    loss_ppm: Ppm = 0
    reorder_ppm: Ppm = 0
    congestion_control: CongestionControl = ""
    link: tuple[LinkEntry, ...] = ()


class LinkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A validated profile, in nanoseconds and bytes.

    Attributes:
        loop_ns: total one-way delay around the ring; None where the file lists its links.
        jitter_ns and all that follows, but `listed`: of every link of a loop.
        listed: the links of a file that lists them, in ring order; else empty.
    """

    name: str
    description: str
    provenance: str  # where the numbers come from: measured where, published where, or assumed
    tolerance_ns: int  # what a measured round trip may take longer than the delays
    loop_ns: int | None
    jitter_ns: int
    jitter_distribution: JitterDistribution
    rate_bytes_per_s: int
    listed: tuple[LinkShape, ...]
    stall_ns: int = 0
    stall_every_ns: int = 0
    queue_bytes: int = 0
    loss_ppm: int = 0
    reorder_ppm: int = 0
    congestion_control: CongestionControl = ""

    def links(self, num_stages: int) -> list[LinkShape]:
        """Return the `num_stages + 1` directed links in ring order.

        A loop is divided evenly; what does not divide goes to the first links, one nanosecond each.

        Raises:
            ConfigError: the caller's stage count is below 1 or does not fit the listed links.
        """
        if num_stages < 1:
            raise ConfigError(f"profile {self.name!r}: a ring has at least 1 stage: {num_stages}")
        names = link_names(num_stages)
        if self.loop_ns is None:
            if len(self.listed) != len(names):
                raise ConfigError(
                    f"profile {self.name!r} lists {len(self.listed)} links, made for "
                    f"{len(self.listed) - 1} stages; {num_stages} stages need {len(names)}"
                )
            return [
                msgspec.structs.replace(shape, name=name)
                for shape, name in zip(self.listed, names, strict=True)
            ]
        share_ns, num_longer = divmod(self.loop_ns, len(names))
        return [
            LinkShape(
                name=name,
                one_way_ns=share_ns + (link_idx < num_longer),
                jitter_ns=self.jitter_ns,
                jitter_distribution=self.jitter_distribution,
                rate_bytes_per_s=self.rate_bytes_per_s,
                **{field: getattr(self, field) for field in STALLS_AT_REST | PACKET_FIELDS_AT_REST},
            )
            for link_idx, name in enumerate(names)
        ]

    @property
    def needs_relay(self) -> bool:
        """False when every link is transparent: the ring then dials its stages directly."""
        if self.loop_ns is None:
            return not all(shape.is_transparent for shape in self.listed)
        return not self.links(1)[0].is_transparent

    @property
    def digest(self) -> str:
        """SHA-256 over everything that changes a link."""
        content = msgspec.to_builtins(self)
        del content["description"], content["provenance"], content["tolerance_ns"]
        for shape in (content, *content["listed"]):
            for field, rest in (STALLS_AT_REST | PACKET_FIELDS_AT_REST).items():
                if shape[field] == rest:
                    del shape[field]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def link_names(num_stages: int) -> list[str]:
    """Name the directed links of a ring, in the order in which a frame crosses them."""
    hosts = ["coordinator", *(str(stage_idx) for stage_idx in range(num_stages)), "coordinator"]
    return [f"{source}->{sink}" for source, sink in pairwise(hosts)]


def profile_names() -> list[str]:
    """Return the names that `load_profile` knows, sorted."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.toml"))


def load_profile(name_or_path: str | Path = PROFILE) -> LinkProfile:
    """Load a profile by name, or from a file the caller wrote.

    Args:
        name_or_path: one of `profile_names()`, or a path that ends in `.toml`.

    Raises:
        ConfigError: the name is unknown, or the file is unreadable or invalid.
    """
    if str(name_or_path).endswith(".toml"):
        return _parse(Path(name_or_path))
    valid = profile_names()
    if str(name_or_path) not in valid:
        raise unknown_name("link profile", str(name_or_path), valid)
    return _parse(PROFILES_DIR / f"{name_or_path}.toml")


def _parse(path: Path) -> LinkProfile:
    written = read_named(path, ProfileFile, "link", LinkEntry)
    if (written.loop_ms is None) == (not written.link):
        raise ConfigError(f"{path.name}: give either loop_ms or a list of [[link]], one of the two")
    of_ring = (written.jitter_ms, written.rate_mbit, written.stall_ms, written.stall_every_ms)
    if written.link and (any(of_ring) or _packet_fields(written)):
        raise ConfigError(
            f"{path.name}: with [[link]], jitter, rate, stalls, queue, loss, reordering and "
            "congestion control belong to each link"
        )
    if len(written.link) == 1:
        raise ConfigError(f"{path.name}: a ring has at least 2 links, [[link]] lists 1")
    entries: tuple[ProfileFile | LinkEntry, ...] = (written, *written.link)
    for entry in entries:
        if (entry.jitter_distribution == "none") != (entry.jitter_ms == 0):
            raise ConfigError(
                f"{path.name}: jitter_ms {entry.jitter_ms} contradicts jitter_distribution "
                f"{entry.jitter_distribution!r}; 'none' goes with 0 and only with 0"
            )
        if bool(entry.stall_ms) != bool(entry.stall_every_ms):
            raise ConfigError(f"{path.name}: stall_ms and stall_every_ms go together, or are 0")
        if entry.queue_bytes and not entry.rate_mbit:
            raise ConfigError(
                f"{path.name}: queue_bytes {entry.queue_bytes} without rate_mbit: nothing waits "
                "on a link of unlimited rate"
            )
    return _in_ns(written)


def _packet_fields(entry: ProfileFile | LinkEntry) -> dict[str, Any]:
    """The fields in use that only packets have; empty when all are at rest."""
    written = {field: getattr(entry, field) for field in PACKET_FIELDS_AT_REST}
    return {field: value for field, value in written.items() if value}


def _later_fields(entry: ProfileFile | LinkEntry) -> dict[str, Any]:
    stalls = {"stall_ns": entry.stall_ms, "stall_every_ns": entry.stall_every_ms}
    in_ns = {field: round(ms * NS_PER_MS) for field, ms in stalls.items()}
    return {**in_ns, **_packet_fields(entry)}


def _in_ns(written: ProfileFile) -> LinkProfile:
    return LinkProfile(
        name=written.name,
        description=written.description,
        provenance=written.provenance,
        tolerance_ns=round(written.tolerance_ms * NS_PER_MS),
        loop_ns=None if written.loop_ms is None else round(written.loop_ms * NS_PER_MS),
        jitter_ns=round(written.jitter_ms * NS_PER_MS),
        jitter_distribution=written.jitter_distribution,
        rate_bytes_per_s=round(written.rate_mbit * BYTES_PER_S_PER_MBIT),
        **_later_fields(written),
        listed=tuple(
            LinkShape(
                name=f"link {link_idx}",
                one_way_ns=round(entry.one_way_ms * NS_PER_MS),
                jitter_ns=round(entry.jitter_ms * NS_PER_MS),
                jitter_distribution=entry.jitter_distribution,
                rate_bytes_per_s=round(entry.rate_mbit * BYTES_PER_S_PER_MBIT),
                **_later_fields(entry),
            )
            for link_idx, entry in enumerate(written.link)
        ),
    )
