"""Puts a link profile's relays in front of a local ring.

Guarantees: the N + 1 links of the ring, in order, have the profile's shapes; a transparent profile
starts no relay; a profile that asks for what only packets have is refused, never approximated.
Must never know jobs or models.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.wan.profile import LinkProfile
from bench.wan.relay import RelayProcess, link_to
from engine.cluster.launch import StagePlace
from engine.errors import ConfigError

Address = tuple[str, int]


class RelayedLinks:
    """The engine's `LinkEmulator` for a profile.

    Args:
        seed: of the jitter.
    """

    def __init__(self, profile: LinkProfile, seed: int) -> None:
        self._profile = profile
        self._seed = seed
        self._relay = RelayProcess()

    def places(self, num_stages: int) -> list[StagePlace]:
        """Every stage runs as a plain process of this machine.

        Raises:
            ConfigError: the profile asks for what a relay of byte streams cannot do.
        """
        for shape in self._profile.links(num_stages):
            if shape.packet_fields:
                raise ConfigError(
                    f"profile {self._profile.name!r}, link {shape.name}: a relay carries bytes, "
                    f"not packets, and has no {', '.join(shape.packet_fields)}; use "
                    "--links netns, or a profile without them"
                )
        return [StagePlace()] * num_stages

    def open(self, targets: Sequence[Address]) -> list[Address]:
        """Start the relay; return the addresses that stand in front of the targets."""
        if not self._profile.needs_relay:
            return list(targets)
        shapes = self._profile.links(len(targets) - 1)
        links = [
            link_to(shape, target_port=port, target_host=host)
            for shape, (host, port) in zip(shapes, targets, strict=True)
        ]
        ports = self._relay.start(links, self._seed)
        return [("127.0.0.1", ports[shape.name]) for shape in shapes]

    def check(self) -> None:
        """Raise `LinkClosedError` if the relay is gone: every link is then down."""
        if self._profile.needs_relay:
            self._relay.check()

    def close(self) -> None:
        """Stop the relay."""
        self._relay.stop()
