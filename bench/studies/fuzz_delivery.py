"""Hostile bytes delivered to a connection in every way, and what must hold whatever they are.

Guarantees: of all that receiving can do, only a `RemoteProtocolError` is an ordinary end; anything
else leaves here as it came. Checked on every delivery: one chunk, single bytes and odd pieces give
the same messages and the same error; no buffer is larger than what was announced and is allowed;
what comes out is no larger than what went in; what died stays dead. Must never know what the bytes
were before somebody altered them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

from engine.errors import LocalProtocolError, RemoteProtocolError
from engine.transport.connection import Connection, Received
from engine.transport.frame import HEADER_LEN
from engine.transport.link import HELLO_MAX_LEN
from engine.transport.message import Noop
from engine.transport.tensor import storage_view

MAX_INPUT_LEN = 2048  # bytes; a longer input is cut: every frame here fits several times
CONTROL_LEN = 3  # bytes in front of a stream: which variant, and two sizes of pieces
LIMIT_LEN = HELLO_MAX_LEN  # payload limit of every reader here, above MAX_INPUT_LEN
LENGTH = struct.Struct(">Q")  # of a payload, behind the kind
Seen = tuple[object, ...]


class PropertyBrokenError(Exception):
    """An input made the transport do what it must never do."""


class Session(Protocol):
    """One end that receives: a connection and whatever stands behind it."""

    connection: Connection

    def take(self, received: Received) -> Seen:
        """Act on a message; returns all that an observer can tell of it."""

    def check_dead(self) -> None:
        """Require that nothing can be done any more after an error."""


class Reader:
    """The simplest session: a connection whose messages are only looked at."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def take(self, received: Received) -> Seen:
        return bits(received)

    def check_dead(self) -> None:
        connection = self.connection
        for use in (
            connection.receive_view,
            lambda: connection.received(0),
            lambda: connection.send(Noop()),
        ):
            require_refusal(use, "a dead connection lives on")


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that came out of one delivery."""

    seen: tuple[Seen, ...]
    error: RemoteProtocolError | None
    mid_frame: bool

    @property
    def name(self) -> str:
        """How the delivery ended, for counting."""
        if self.error is not None:
            return end_name(self.error)
        return "incomplete" if self.mid_frame or not self.seen else "accepted"

    def same_as(self, other: Outcome) -> bool:
        return (self.seen, type(self.error), str(self.error), self.mid_frame) == (
            other.seen,
            type(other.error),
            str(other.error),
            other.mid_frame,
        )


def require(holds: bool, problem: str) -> None:
    """Raises `PropertyBrokenError` unless it holds; unlike assert, not switched off by -O."""
    if not holds:
        raise PropertyBrokenError(problem)


def require_refusal(use: Callable[[], object], problem: str) -> None:
    """Require that a use is refused as one of something dead."""
    try:
        use()
    except LocalProtocolError:
        return
    raise PropertyBrokenError(problem)


def end_name(error: RemoteProtocolError) -> str:
    """The name of an end by error, whose text goes to a log and thus to somebody's terminal."""
    require(str(error).isprintable(), "an error whose text a stranger makes unprintable")
    return type(error).__name__


def bits(received: Received) -> Seen:
    """A message and its tensors, comparable to the last bit; NaN is unequal to itself."""
    tensors_len = sum(tensor.nbytes for tensor in received.tensors.values())
    require(tensors_len < received.num_bytes, "tensors larger than the frame they came in")
    tensors = tuple(
        (name, tensor.dtype, tuple(tensor.shape), bytes(storage_view(tensor)))
        for name, tensor in received.tensors.items()
    )
    return received.message, tensors


def deliver_every_way(make: Callable[[], Session], control: bytes, stream: bytes) -> Outcome:
    """Deliver as one chunk, byte by byte and in two alternating sizes, each to a fresh session.

    Raises:
        PropertyBrokenError: the three do not agree, or one of them broke a bound.
    """
    whole = deliver_whole(make(), stream)
    for sizes in ((1,), (1 + control[1], 1 + control[2])):
        pieces = _deliver(make(), functools.partial(_pieces, stream, sizes))
        require(
            pieces.same_as(whole),
            f"pieces of {sizes} bytes end in {pieces.name} after {len(pieces.seen)} messages, "
            f"one chunk in {whole.name} after {len(whole.seen)}",
        )
    return whole


def deliver_whole(session: Session, stream: bytes) -> Outcome:
    """Deliver as one chunk."""
    return _deliver(session, lambda it: map(it.take, it.connection.receive_data(stream)))


def _deliver(session: Session, run: Callable[[Session], Iterable[Seen]]) -> Outcome:
    seen: list[Seen] = []
    try:
        seen.extend(run(session))
    except RemoteProtocolError as error:
        end_name(error)
        session.check_dead()
        return Outcome(tuple(seen), error, mid_frame=False)
    return Outcome(tuple(seen), None, session.connection.mid_frame)


def _pieces(stream: bytes, sizes: tuple[int, ...], session: Session) -> Iterator[Seen]:
    """Feed a connection by its own buffers, and follow the frames beside it to bound them."""
    connection, at, due, header_due = session.connection, 0, HEADER_LEN, True
    for size in cycle(sizes):
        piece_end = min(at + size, len(stream))
        while at < piece_end:
            view = connection.receive_view()
            require(0 < len(view) <= due, f"a buffer of {len(view)} bytes where {due} are due")
            size = min(len(view), piece_end - at)
            view[:size] = stream[at : at + size]
            at, due = at + size, due - size
            received = connection.received(size)
            whole = due == 0 and not header_due
            if due == 0 and header_due:
                (announced,) = LENGTH.unpack(stream[at - LENGTH.size : at])
                require(announced <= LIMIT_LEN, f"{announced} bytes may be sent unasked")
                due, header_due, whole = announced, False, announced == 0
                frame_len = HEADER_LEN + announced
            require((received is not None) == whole, "a message that is no whole frame")
            if received is not None:
                require(received.num_bytes == frame_len, "a frame's bytes are miscounted")
                due, header_due = HEADER_LEN, True
                yield session.take(received)
        if at >= len(stream):
            return
