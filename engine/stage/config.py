"""What a launcher and a stage process tell each other over the stage's standard streams.

Guarantees: strict structs, one JSON object a line; secrets travel here, never on a command line.
"""

from __future__ import annotations

import msgspec

from engine.transport.credentials import Credentials


class NodeKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's share of the ring's keys; all empty for a plain ring. JSON holds them as base64."""

    static_private: bytes = b""  # X25519
    cluster_secret: bytes = b""
    peer_keys: dict[str, bytes] = {}  # node id -> static public key

    def __repr__(self) -> str:
        """Without the secrets: tracebacks and logs show representations."""
        return f"NodeKeys(peers={sorted(self.peer_keys)})"


class StageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the launcher tells a stage."""

    stage_idx: int
    num_stages: int
    layer_start: int
    layer_end: int
    num_threads: int
    nice: int
    cluster_id: str
    suite: str
    keys: NodeKeys
    model: str | None  # path or name; None: the default model
    max_kv_size: int  # keys a query may see; 0: all
    weights: str  # what the layers' matrices are kept in
    listen_host: str  # where predecessor and coordinator call
    signing_key: str = (
        ""  # file of the node's Ed25519 key, made if missing; empty: it signs nothing
    )

    def credentials(self) -> Credentials:
        """Who this stage is and who may call it as what."""
        before = "coordinator" if self.stage_idx == 0 else f"stage-{self.stage_idx - 1}"
        callers = {"input": before, "control": "coordinator"}
        if self.stage_idx == self.num_stages - 1:
            callers["return"] = "coordinator"
        return Credentials(
            node_id=f"stage-{self.stage_idx}",
            cluster_id=self.cluster_id,
            suite=self.suite,
            callers=callers,
            static_private=self.keys.static_private,
            cluster_secret=self.keys.cluster_secret,
            peer_keys=self.keys.peer_keys,
        )


class StageReady(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage answers; `error` is empty or says why it cannot run."""

    port: int = 0
    kernel: str = ""
    error: str = ""


class Successor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to dial; no address for the last stage, which the coordinator dials."""

    node_id: str
    address: tuple[str, int] | None
