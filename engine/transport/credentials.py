"""What one node knows of itself and of its peers before any of them speaks.

Guarantees: every name is bounded and printable and every key has the length its suite needs, so
that a handshake never meets a half-made plan; secrets do not appear in a `repr`. Must never know
where the keys come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import ConfigError, shown
from engine.transport.noise import KEY_LEN

PLAIN_SUITE = "plain"
MAX_NAME_LEN = 64  # characters of an id, a role or a suite


@dataclass(frozen=True, slots=True)
class Credentials:
    """One node's names and keys.

    Args:
        node_id, cluster_id: at most `MAX_NAME_LEN` printable characters.
        suite: of the frames after the handshake; "plain" for none.
        callers: role → the one node id that may call this node in that role.
        static_private: our X25519 key, 32 bytes; empty if plain, as are the next two.
        cluster_secret: the same 32 bytes on every node.
        peer_keys: node id → its static X25519 public key.

    Raises:
        ConfigError: a name or key of the wrong form, or a caller whose key the plan lacks.
    """

    node_id: str
    cluster_id: str
    suite: str
    callers: Mapping[str, str]
    static_private: bytes = field(repr=False)
    cluster_secret: bytes = field(repr=False)
    peer_keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        names = (self.node_id, self.cluster_id, self.suite, *self.callers, *self.peer_keys)
        for name in (*names, *self.callers.values()):
            check_name(name)
        key_len = KEY_LEN if self.protected else 0
        keys = {"static key": self.static_private, "cluster secret": self.cluster_secret}
        keys |= {f"key of {node_id}": key for node_id, key in self.peer_keys.items()}
        for name, key in keys.items():
            if len(key) != key_len:
                raise ConfigError(
                    f"{self.node_id}: the {name} has {len(key)} bytes; suite {self.suite!r} "
                    f"needs {key_len}"
                )
        if self.protected:
            for node_id in self.callers.values():
                self.key_of(node_id)

    @property
    def protected(self) -> bool:
        return self.suite != PLAIN_SUITE

    def key_of(self, node_id: str) -> bytes:
        """The static public key that the plan gives a peer.

        Raises:
            ConfigError: it gives none.
        """
        if node_id not in self.peer_keys:
            held = ", ".join(sorted(self.peer_keys)) or "nobody"
            raise ConfigError(
                f"{self.node_id}: the plan holds no key of {node_id}; it holds those of: {held}"
            )
        return self.peer_keys[node_id]


def check_name(name: str) -> None:
    """Refuse what cannot name a node, cluster, role or suite.

    Raises:
        ConfigError: it is empty, too long or not printable.
    """
    if not (1 <= len(name) <= MAX_NAME_LEN and name.isprintable()):
        raise ConfigError(
            f"{shown(name)!r} cannot name a node, cluster, role or suite; allowed: "
            f"1..{MAX_NAME_LEN} printable characters"
        )
