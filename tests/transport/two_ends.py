"""Test only: the nodes of a ring, and a handshake carried between two of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from engine.transport.codec import decode_payload, encode_message_frame
from engine.transport.frame import HEADER_LEN
from engine.transport.handshake import (
    CallerHandshake,
    Credentials,
    Established,
    ListenerHandshake,
    Progress,
)
from engine.transport.message import AnyMessage

SUITES = ["chacha20-poly1305", "aes-256-gcm", "plain"]
PROTECTED = SUITES[0]
NODES = ("coordinator", "stage-0", "stage-1", "stage-2")


def private_of(node_id: str) -> bytes:
    return hashlib.sha256(node_id.encode()).digest()


def public_of(node_id: str) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private_of(node_id))
    return key.public_key().public_bytes_raw()


PUBLIC = {node_id: public_of(node_id) for node_id in NODES}


def credentials(node_id: str = "stage-1", suite: str = PROTECTED, **changed: Any) -> Credentials:
    """A node of the ring under test; `stage-1` is called by stage-0 and the coordinator."""
    plain = suite == "plain"
    fields: dict[str, Any] = {
        "node_id": node_id,
        "cluster_id": "cluster-a",
        "suite": suite,
        "callers": {"input": "stage-0", "control": "coordinator"},
        "static_private": b"" if plain else private_of(node_id),
        "cluster_secret": b"" if plain else bytes(range(32)),
        "peer_keys": {} if plain else PUBLIC,
    }
    return Credentials(**(fields | changed))


def caller(own: Credentials | None = None, role: str = "input", to: str = "stage-1") -> Any:
    return CallerHandshake(own or credentials("stage-0"), role, to)


def carried(message: AnyMessage) -> AnyMessage:
    """The message as the codec hands it over at the other end."""
    kind, buffer, payload_len = encode_message_frame(message)
    payload = memoryview(buffer)[HEADER_LEN : HEADER_LEN + payload_len]
    return decode_payload(kind, payload)[0]


class Outcome:
    """What both ends made of it, with everything that was sent."""

    def __init__(self) -> None:
        self.sent: list[AnyMessage] = []
        self.failures: dict[str, str] = {}
        self.established: dict[str, Established] = {}
        self.finished: set[str] = set()

    def take(self, end: str, progress: Progress) -> list[AnyMessage]:
        if progress.established is not None:
            self.established[end] = progress.established
        if progress.failure is not None:
            assert not progress.finished
            self.failures[end] = str(progress.failure)
        if progress.finished:
            self.finished.add(end)
        if progress.send_sealed is not None:
            assert progress.established is not None
        return [one for one in (progress.send, progress.send_sealed) if one is not None]


def exchange(
    calling: CallerHandshake,
    listening: ListenerHandshake,
    alter: Callable[[AnyMessage], AnyMessage] = lambda message: message,
) -> Outcome:
    """Carry messages, each through `alter`, until nobody has anything to say."""
    outcome = Outcome()
    pending = [("listener", one) for one in outcome.take("caller", calling.start())]
    while pending:
        end, message = pending.pop(0)
        outcome.sent.append(message)
        if end in outcome.failures or end in outcome.finished:
            continue
        handshake = listening if end == "listener" else calling
        progress = handshake.on_message(carried(alter(message)))
        other = "caller" if end == "listener" else "listener"
        pending += [(other, one) for one in outcome.take(end, progress)]
    return outcome
