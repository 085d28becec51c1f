"""Deals out a ring's keys: a static key for every node and one cluster secret.

Guarantees: every node gets its own private key and only the public keys of its neighbours; a plain
ring gets none. Must never know processes or sockets.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.cluster.node_keys import load_cluster_secret, new_static_key
from engine.stage.config import NodeKeys
from engine.transport.credentials import Credentials
from engine.transport.seal import suite_named

CLUSTER_SECRET_LEN = 32
COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class RingKeys:
    """Who holds what.

    Attributes:
        nodes: by node id; complete for every stage and the coordinator.
    """

    cluster_id: str
    suite: str
    nodes: Mapping[str, NodeKeys]

    def coordinator(self) -> Credentials:
        """The coordinator's credentials; nobody calls it."""
        keys = self.nodes[COORDINATOR]
        return Credentials(
            node_id=COORDINATOR,
            cluster_id=self.cluster_id,
            suite=self.suite,
            callers={},
            static_private=keys.static_private,
            cluster_secret=keys.cluster_secret,
            peer_keys=keys.peer_keys,
        )


def deal_keys(num_stages: int, suite: str, secret_path: Path | None) -> RingKeys:
    """Make fresh keys for one ring.

    Args:
        suite: name of the frame suite.
        secret_path: file of the cluster secret; None: a fresh one for this ring alone.

    Raises:
        ConfigError: unknown suite, or a secret file that is not safe to use.
    """
    stages = [f"stage-{stage_idx}" for stage_idx in range(num_stages)]
    cluster_id = secrets.token_hex(8)
    if not suite_named(suite).protected:
        return RingKeys(cluster_id, suite, {name: NodeKeys() for name in (*stages, COORDINATOR)})
    if secret_path is None:
        cluster_secret = secrets.token_bytes(CLUSTER_SECRET_LEN)
    else:
        cluster_secret = load_cluster_secret(secret_path)
    pairs = {name: new_static_key() for name in (*stages, COORDINATOR)}
    neighbours = {
        name: {COORDINATOR, *stages[max(0, idx - 1) : idx + 2]} - {name}
        for idx, name in enumerate(stages)
    }
    neighbours[COORDINATOR] = set(stages)
    nodes = {
        name: NodeKeys(
            static_private=private,
            cluster_secret=cluster_secret,
            peer_keys={peer: pairs[peer][1] for peer in sorted(neighbours[name])},
        )
        for name, (private, _) in pairs.items()
    }
    return RingKeys(cluster_id, suite, nodes)
