"""Who is at the other end of a connection, and with which keys: one state machine for each end.

Guarantees: a handshake finishes only with the peer that the plan names, under one protocol version,
cluster, suite and role, all of which both ends bind into the key exchange; every failure names both
sides and says what to do; nothing is kept beyond one message. Sans-IO. Must never know sockets,
files or what the link is used for.

    caller                          listener
      Hello(noise 1)        ──────►   refuses with HelloAck(refused), in the clear
      ◄──────  HelloAck(noise 2)
      HelloFinish(noise 3)  ──────►   everything after it is sealed
      ◄──────  Welcome                refuses a proven but unplanned key with Welcome(refused)

A plain ring leaves out the Noise messages and with them `HelloFinish`; all else is the same.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engine.errors import HandshakeError, LocalProtocolError, shown
from engine.transport.credentials import PLAIN_SUITE, Credentials, check_name
from engine.transport.message import (
    PROTOCOL_VERSION,
    AnyMessage,
    Hello,
    HelloAck,
    HelloFinish,
    Welcome,
)
from engine.transport.noise import OVERHEAD_LEN, NoiseXXpsk3, Side
from engine.transport.refusal import (
    MAX_REFUSAL_LEN,
    NOISE_CAUSES,
    OTHER_SECRET,
    ack_problem,
    hello_problem,
    key_problem,
)

__all__ = [
    "PLAIN_SUITE",
    "CallerHandshake",
    "Credentials",
    "Established",
    "ListenerHandshake",
    "Progress",
    "prologue",
]

PROLOGUE_LABEL = "longhaul handshake"


@dataclass(frozen=True, slots=True)
class Established:
    """What both ends have agreed on."""

    peer: str  # node id; proven, unless the suite is plain or `Progress.failure` says otherwise
    role: str
    suite: str
    send_secret: bytes = field(repr=False)  # 32 bytes; empty if plain
    receive_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """What to do next, in the order of the fields."""

    send: AnyMessage | None = None  # under the protection in force
    established: Established | None = None  # then change to these keys
    send_sealed: Welcome | None = None  # the first frame under them
    finished: bool = False
    failure: HandshakeError | None = None  # raise it and close the connection


class _State(enum.Enum):
    NEW = "not begun"
    AWAIT_HELLO = "waiting for Hello"
    AWAIT_ACK = "waiting for HelloAck"
    AWAIT_FINISH = "waiting for HelloFinish"
    AWAIT_WELCOME = "waiting for Welcome"
    ENDED = "over"


# What it usually means when the peer goes away or falls silent in a state.
_CLOSED: Mapping[_State, str] = {
    _State.AWAIT_HELLO: "it is no node of this ring, or gave up",
    _State.AWAIT_ACK: "it is no node of this ring, or was stopped; check its address and its log",
    _State.AWAIT_FINISH: "it does not accept this node's key, or was stopped; see its own error",
    _State.AWAIT_WELCOME: f"if the ring is protected, {OTHER_SECRET}; else see its log",
}
_Table = Mapping[_State, tuple[type[AnyMessage], Callable[[Any, Any], Progress]]]


def prologue(cluster_id: str, suite: str, role: str, caller: str, listener: str) -> bytes:
    """What both ends bind into the key exchange; each field with its length, so none can move."""
    fields = (PROLOGUE_LABEL, str(PROTOCOL_VERSION), cluster_id, suite, role, caller, listener)
    encoded = [text.encode() for text in fields]
    return b"".join(struct.pack(">I", len(part)) + part for part in encoded)


class _Handshake:
    """What both ends share: the table of states and the one way to fail."""

    _table: ClassVar[_Table]  # state → the only message it takes, and what to do with it

    def __init__(
        self, credentials: Credentials, state: _State, ephemeral_private: bytes | None
    ) -> None:
        self._own = credentials
        self._state = state
        self._ephemeral_private = ephemeral_private
        self._noise: NoiseXXpsk3 | None = None  # stays None if plain
        self._peer, self._role = "an unnamed peer", ""
        self._direction = f"{self._peer} -> {credentials.node_id}"

    def on_message(self, message: AnyMessage) -> Progress:
        """Take the peer's next message; whatever is wrong with it becomes `Progress.failure`.

        Raises:
            LocalProtocolError: the handshake has not begun, or is over.
        """
        if self._state not in self._table:
            raise LocalProtocolError(f"the handshake takes no message: it is {self._state.value}")
        expected, handle = self._table[self._state]
        try:
            if not isinstance(message, expected):
                raise HandshakeError(
                    f"{type(message).__name__} came to {self._own.node_id} while "
                    f"{self._state.value}; run the same release on both ends"
                )
            return handle(self, message)
        except HandshakeError as error:
            refusal = None
            if self._state is _State.AWAIT_HELLO:  # later on the caller reads nothing in the clear
                refusal = self._ack(refused=str(error))
            self._state = _State.ENDED
            return Progress(send=refusal, failure=self._failure(str(error)))

    def on_close(self) -> HandshakeError:
        """The peer went away or fell silent before the end: what to raise."""
        cause = _CLOSED.get(self._state, "nothing was due")
        state, self._state = self._state, _State.ENDED
        return self._failure(f"nothing came while {state.value}: {cause}")

    def _ack(self, refused: str = "", noise: bytes = b"") -> HelloAck:
        return HelloAck(
            protocol_version=PROTOCOL_VERSION,
            node_id=self._own.node_id,
            refused=refused,
            noise=noise,
        )

    def _failure(self, reason: str) -> HandshakeError:
        return HandshakeError(f"{self._direction}: {reason}")

    def _start_noise(self, side: Side, caller: str, listener: str) -> None:
        own = self._own
        if own.protected:
            bound = prologue(own.cluster_id, own.suite, self._role, caller, listener)
            keys = (own.static_private, own.cluster_secret)
            self._noise = NoiseXXpsk3(side, *keys, bound, self._ephemeral_private)

    def _write_noise(self) -> bytes:
        return b"" if self._noise is None else self._noise.write_message()

    def _read_noise(self, message_idx: int, message: bytes) -> None:
        expected_len = 0 if self._noise is None else OVERHEAD_LEN[message_idx]
        what = f"Noise message {message_idx + 1} of {len(OVERHEAD_LEN)}"
        if len(message) != expected_len:  # ours carry no payload
            problem = f"it has {len(message)} bytes instead of {expected_len}"
            raise HandshakeError(f"{what} fails: {problem}: {NOISE_CAUSES[message_idx]}")
        if self._noise is None:
            return
        try:
            self._noise.read_message(message)
        except HandshakeError as error:
            raise HandshakeError(f"{what} fails: {error}: {NOISE_CAUSES[message_idx]}") from error

    def _established(self) -> Established:
        send, receive = (b"", b"") if self._noise is None else self._noise.split()
        return Established(self._peer, self._role, self._own.suite, send, receive)

    def _key_problem(self) -> str:
        if self._noise is None:
            return ""
        return key_problem(self._own, self._peer, self._noise.remote_static)


class CallerHandshake(_Handshake):
    """The end that dialled.

    Args:
        role: what we want to be to the listener.
        to_node_id: whom we expect to reach.
        ephemeral_private: for test vectors only.

    Raises:
        ConfigError: the plan holds no key of the listener.
    """

    def __init__(
        self,
        credentials: Credentials,
        role: str,
        to_node_id: str,
        ephemeral_private: bytes | None = None,
    ) -> None:
        super().__init__(credentials, _State.NEW, ephemeral_private)
        check_name(role)
        check_name(to_node_id)
        if credentials.protected:
            credentials.key_of(to_node_id)
        self._peer, self._role = to_node_id, role
        self._direction = f"{credentials.node_id} -> {to_node_id} ({role})"

    def start(self) -> Progress:
        """Begin.

        Raises:
            LocalProtocolError: begun before.
        """
        if self._state is not _State.NEW:
            raise LocalProtocolError(f"the handshake cannot start: it is {self._state.value}")
        self._start_noise(Side.INITIATOR, self._own.node_id, self._peer)
        self._state = _State.AWAIT_ACK
        hello = Hello(
            protocol_version=PROTOCOL_VERSION,
            cluster_id=self._own.cluster_id,
            node_id=self._own.node_id,
            to_node_id=self._peer,
            role=self._role,
            suite=self._own.suite,
            noise=self._write_noise(),
        )
        return Progress(send=hello)

    def _on_ack(self, ack: HelloAck) -> Progress:
        if problem := ack_problem(self._own, self._peer, ack):
            raise HandshakeError(problem)
        self._read_noise(1, ack.noise)
        if problem := self._key_problem():
            raise HandshakeError(problem)
        finish = None if self._noise is None else HelloFinish(noise=self._write_noise())
        self._state = _State.AWAIT_WELCOME
        return Progress(send=finish, established=self._established())

    def _on_welcome(self, welcome: Welcome) -> Progress:
        if welcome.refused:
            refused = shown(welcome.refused, MAX_REFUSAL_LEN)
            raise HandshakeError(f"{self._peer} refused: {refused}")
        self._state = _State.ENDED
        return Progress(finished=True)

    _table: ClassVar[_Table] = {
        _State.AWAIT_ACK: (HelloAck, _on_ack),
        _State.AWAIT_WELCOME: (Welcome, _on_welcome),
    }


class ListenerHandshake(_Handshake):
    """The end that accepted; `ephemeral_private` is for test vectors only."""

    def __init__(self, credentials: Credentials, ephemeral_private: bytes | None = None) -> None:
        super().__init__(credentials, _State.AWAIT_HELLO, ephemeral_private)

    def _on_hello(self, hello: Hello) -> Progress:
        self._peer = shown(hello.node_id) or self._peer
        self._role = shown(hello.role)
        self._direction = f"{self._peer} -> {self._own.node_id} ({self._role})"
        if problem := hello_problem(self._own, hello):
            raise HandshakeError(problem)
        self._start_noise(Side.RESPONDER, self._peer, self._own.node_id)
        self._read_noise(0, hello.noise)
        ack = self._ack(noise=self._write_noise())
        if self._noise is not None:
            self._state = _State.AWAIT_FINISH
            return Progress(send=ack)
        self._state = _State.ENDED
        return Progress(ack, self._established(), Welcome(), finished=True)

    def _on_finish(self, finish: HelloFinish) -> Progress:
        self._read_noise(2, finish.noise)
        self._state = _State.ENDED
        problem = self._key_problem()
        return Progress(
            established=self._established(),
            send_sealed=Welcome(refused=problem),
            finished=not problem,
            failure=self._failure(problem) if problem else None,
        )

    _table: ClassVar[_Table] = {
        _State.AWAIT_HELLO: (Hello, _on_hello),
        _State.AWAIT_FINISH: (HelloFinish, _on_finish),
    }
