"""Both ends of a handshake, fed by a stranger's bytes.

Guarantees: ephemeral keys are fixed, so an honest transcript is known and every delivery can be
repeated; an end that comes to an agreement has had the honest transcript, and nothing else, or its
suite is plain and it was told the truth. Carries out what a handshake asks for as `introduce` does
over sockets. Must never know how the bytes were altered.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bench.studies.fuzz_delivery import LIMIT_LEN, Reader, Seen, bits, require, require_refusal
from engine.errors import HandshakeError
from engine.transport.connection import Connection, Received
from engine.transport.credentials import PLAIN_SUITE, Credentials
from engine.transport.frame import HEADER_LEN
from engine.transport.handshake import (
    CallerHandshake,
    Established,
    ListenerHandshake,
    Progress,
)
from engine.transport.message import AnyMessage, Noop, Probe, ProbeAck
from engine.transport.seal import suite_named

CALLER, LISTENER, ROLE = "stage-0", "stage-1", "input"
CALLERS = {ROLE: CALLER, "control": "coordinator"}  # of LISTENER
NODES = ("coordinator", CALLER, LISTENER)
MAX_REASON_LEN = 2000  # characters of an error about a stranger, whatever it sent


@dataclass(frozen=True, slots=True)
class HonestHandshake:
    """What two nodes of one ring say to each other, one message behind the handshake included."""

    suite: str
    to_listener: bytes
    to_caller: bytes
    heard_by_listener: tuple[AnyMessage, ...]
    heard_by_caller: tuple[AnyMessage, ...]

    @classmethod
    def of(cls, suite: str) -> HonestHandshake:
        """Run one and keep every byte."""
        caller, listener = CallerEnd(suite, None), ListenerEnd(suite, None)
        to_listener = to_caller = b""
        for _ in range(2):  # round trips; a plain ring needs one
            forth = caller.take_sent()
            listener.hear(forth)
            back = listener.take_sent()
            caller.hear(back)
            to_listener, to_caller = to_listener + forth, to_caller + back
        require(caller.finished and listener.finished, f"no honest handshake under {suite}")
        probe, answer = Probe(seq=1), ProbeAck(seq=1)
        to_listener += caller.connection.send(probe)
        to_caller += listener.connection.send(answer)
        return cls(suite, to_listener, to_caller, (*listener.heard, probe), (*caller.heard, answer))


class _End(Reader):
    """A session that does what its handshake asks for.

    Args:
        suite: the plan's.
        peers: role → the node that the plan has at the other end.
        honest: what an honest peer says; None: believe whatever is heard.
    """

    def __init__(
        self,
        handshake: CallerHandshake | ListenerHandshake,
        suite: str,
        peers: Mapping[str, str],
        honest: tuple[AnyMessage, ...] | None,
    ) -> None:
        super().__init__(Connection(max_payload_len=LIMIT_LEN))
        self.heard: list[AnyMessage] = []
        self.finished = False
        self._handshake, self._suite, self._peers = handshake, suite, peers
        self._honest = honest
        self._sent = bytearray()
        self._failed = False

    def hear(self, stream: bytes) -> None:
        """Take every message of a stream."""
        for received in self.connection.receive_data(stream):
            self.take(received)

    def take_sent(self) -> bytes:
        """What was sent since the last call."""
        sent, self._sent = bytes(self._sent), bytearray()
        return sent

    def take(self, received: Received) -> Seen:
        self.heard.append(received.message)
        if not self.finished:
            self.carry_out(self._handshake.on_message(received.message))
        elif self._honest is not None and self._suite != PLAIN_SUITE:
            self._check_heard(self._honest)
        return bits(received), bytes(self._sent)

    def check_dead(self) -> None:
        if self._failed:
            require_refusal(
                lambda: self._handshake.on_message(Noop()), "a failed handshake goes on"
            )
        else:
            super().check_dead()

    def carry_out(self, progress: Progress) -> None:
        """Do what is asked, in the order of the fields; raises the failure last."""
        if progress.send is not None:
            self._send(progress.send)
        if progress.established is not None:
            self._check_established(progress.established)
            agreed = progress.established
            suite = suite_named(agreed.suite)
            self.connection.protect(suite, agreed.send_secret, agreed.receive_secret)
        if progress.send_sealed is not None:
            self._send(progress.send_sealed)
        self.finished = progress.finished
        if progress.failure is not None:
            reason = str(progress.failure)
            require(isinstance(progress.failure, HandshakeError), "a failure of another type")
            bounded = len(reason) <= MAX_REASON_LEN and reason.isprintable()
            require(bounded, "a reason that a stranger makes long or unprintable")
            self._failed = True
            raise progress.failure

    def _send(self, message: AnyMessage) -> None:
        frame = self.connection.send(message)
        require(len(frame) <= HEADER_LEN + LIMIT_LEN, "an answer that the peer may not read")
        self._sent += frame

    def _check_established(self, agreed: Established) -> None:
        require(agreed.suite == self._suite, "agreed on another suite than the plan's")
        planned = self._peers.get(agreed.role)
        require(planned == agreed.peer, f"took {agreed.peer} for {planned}")
        if self._honest is not None and self._suite != PLAIN_SUITE:
            self._check_heard(self._honest)

    def _check_heard(self, honest: tuple[AnyMessage, ...]) -> None:
        heard = tuple(self.heard)
        require(heard == honest[: len(heard)], "took altered messages for the peer's")


class ListenerEnd(_End):
    """The end that accepted."""

    def __init__(self, suite: str, honest: HonestHandshake | None) -> None:
        handshake = ListenerHandshake(_credentials(LISTENER, suite), _key("listener ephemeral"))
        heard = None if honest is None else honest.heard_by_listener
        super().__init__(handshake, suite, CALLERS, heard)


class CallerEnd(_End):
    """The end that dialled."""

    def __init__(self, suite: str, honest: HonestHandshake | None) -> None:
        own = _credentials(CALLER, suite)
        handshake = CallerHandshake(own, ROLE, LISTENER, _key("caller ephemeral"))
        heard = None if honest is None else honest.heard_by_caller
        super().__init__(handshake, suite, {ROLE: LISTENER}, heard)
        self.carry_out(handshake.start())


@functools.cache
def _credentials(node_id: str, suite: str) -> Credentials:
    protected = suite != PLAIN_SUITE
    return Credentials(
        node_id=node_id,
        cluster_id="fuzzed",
        suite=suite,
        callers=CALLERS if node_id == LISTENER else {},
        static_private=_key(node_id) if protected else b"",
        cluster_secret=_key("cluster secret") if protected else b"",
        peer_keys={peer: _public(peer) for peer in NODES} if protected else {},
    )


def _key(name: str) -> bytes:
    """A key of this study and of nothing else."""
    return hashlib.sha256(f"longhaul fuzz {name}".encode()).digest()


def _public(node_id: str) -> bytes:
    return X25519PrivateKey.from_private_bytes(_key(node_id)).public_key().public_bytes_raw()
