"""Sockets: the only file of the engine that imports `socket`.

Guarantees: Nagle's algorithm is off and keep-alive on; sends are whole or raise; receiving reads
straight into the connection's buffer; a peer that stalls in the middle of a frame, or never drains
what we send, is given up after a bound. Must never know what a message means.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping

import torch

from engine.errors import LinkClosedError, LocalProtocolError, RemoteProtocolError
from engine.transport.connection import Connection, Received
from engine.transport.frame import MAX_PAYLOAD_LEN
from engine.transport.message import PROTOCOL_VERSION, Hello, HelloAck, Message

MID_FRAME_STALL_S = 60.0  # a frame that has begun must go on
SEND_PROGRESS_S = 180.0  # a reader that drains nothing for this long is dead
HANDSHAKE_TIMEOUT_S = 5.0
DIALER_PATIENCE_S = 4 * HANDSHAKE_TIMEOUT_S  # a listener may be busy with strangers before us
HELLO_MAX_LEN = 4096  # bytes that a stranger can make us allocate
ROLES = ("input", "control", "return")
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 60, 20, 3
_DIAL_RETRY_S = 0.05


class Link:
    """One established connection: blocking sends from any thread, receives from one.

    Args:
        sock: connected stream socket; the link owns it.
        peer: name for messages, such as "stage 2".
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._sock = sock
        self._connection = Connection(max_payload_len=HELLO_MAX_LEN)
        self._send_lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        _configure(sock)

    def send(self, message: Message, tensors: Mapping[str, torch.Tensor] | None = None) -> int:
        """Send one message.

        Returns:
            Bytes of its frame.

        Raises:
            LinkClosedError: the connection is gone or the peer drains nothing.
        """
        with self._send_lock:
            try:
                frame = self._connection.send(message, tensors)
                self._sock.sendall(frame)
            # BlockingIOError (an OSError) is the progress bound SO_SNDTIMEO; LocalProtocolError
            # says that the reader found garbage and the connection is dead.
            except (OSError, LocalProtocolError) as error:
                self.close()
                raise LinkClosedError(f"sending to {self.peer} failed: {error}") from error
            return len(frame)

    def receive(self, deadline_s: float | None = None) -> Received:
        """Wait for one message.

        Args:
            deadline_s: `time.monotonic()` at which to give up, whatever trickles in; None waits
                for ever while the link is idle, and at most `MID_FRAME_STALL_S` for the next bytes
                of a frame that has begun.

        Raises:
            LinkClosedError: closed by the peer, reset, stalled or timed out.
            RemoteProtocolError: the peer broke the protocol; the link is closed.
        """
        while True:
            if deadline_s is not None:
                self._wait_readable(deadline_s)
            try:
                size = self._sock.recv_into(self._connection.receive_view())
            except BlockingIOError:  # SO_RCVTIMEO: nothing came for MID_FRAME_STALL_S
                if self._connection.mid_frame:
                    raise self._too_slow() from None
                continue
            except (OSError, LocalProtocolError) as error:
                raise LinkClosedError(f"link to {self.peer} failed: {error}") from error
            if size == 0:
                raise LinkClosedError(f"{self.peer} closed its link")
            try:
                received = self._connection.received(size)
            except RemoteProtocolError:
                self.close()
                raise
            if received is not None:
                return received

    def welcome(self) -> None:
        """The peer has introduced itself: frames of full size are allowed from now on."""
        self._connection.max_payload_len = MAX_PAYLOAD_LEN

    def close(self) -> None:
        """Close both directions; a thread blocked in `receive` wakes with `LinkClosedError`."""
        with contextlib.suppress(OSError):  # the peer was first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _wait_readable(self, deadline_s: float) -> None:
        limit_s = max(0.0, deadline_s - time.monotonic())
        try:
            ready = self._poll.poll(limit_s * 1000)
        except (OSError, ValueError) as error:
            raise LinkClosedError(f"link to {self.peer} is closed") from error
        if not ready:
            raise self._too_slow()

    def _too_slow(self) -> LinkClosedError:
        state = "stalled in the middle of a frame" if self._connection.mid_frame else "silent"
        return LinkClosedError(f"{self.peer} was {state} too long")


class Listener:
    """A listening socket on one address."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._sock = socket.create_server((host, port), backlog=16)
        self.address: tuple[str, int] = self._sock.getsockname()[:2]

    def accept(self, node_id: str, cluster_id: str) -> tuple[Link, Hello]:
        """Wait for the next peer that says a proper hello; strangers are turned away.

        Raises:
            LinkClosedError: the listener was closed.
        """
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                raise LinkClosedError("the listener was closed") from error
            link = Link(sock, "an unnamed peer")
            try:
                hello = link.receive(time.monotonic() + HANDSHAKE_TIMEOUT_S).message
                refused = _refusal(hello, cluster_id)
                link.send(
                    HelloAck(protocol_version=PROTOCOL_VERSION, node_id=node_id, refused=refused)
                )
            except (LinkClosedError, RemoteProtocolError):
                link.close()
                continue  # a stranger; whoever has business here speaks the protocol
            if refused or not isinstance(hello, Hello):
                link.close()
                continue
            link.peer = hello.node_id
            link.welcome()
            return link, hello

    def close(self) -> None:
        """Stop listening; a blocked `accept` raises `LinkClosedError`."""
        with contextlib.suppress(OSError):  # not every platform allows it on a listening socket
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def dial(address: tuple[str, int], hello: Hello, expected_node_id: str, timeout_s: float) -> Link:
    """Connect, introduce ourselves and check who answers.

    Retries while nobody listens, since processes start in any order.

    Raises:
        LinkClosedError: nobody there within the time, or the peer refuses and says why.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            sock = socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() >= deadline:
                host, port = address
                raise LinkClosedError(
                    f"{expected_node_id} at {host}:{port} cannot be reached: {error}"
                ) from error
            time.sleep(_DIAL_RETRY_S)
            continue
        sock.settimeout(None)
        return _introduce(Link(sock, expected_node_id), hello, expected_node_id)


def read_in_background(
    link: Link, on_message: Callable[[Received, int], None], on_end: Callable[[Exception], None]
) -> threading.Thread:
    """Start a daemon thread that hands over every message with its arrival time (monotonic ns).

    `on_end` is called once, with the reason, when the link ends.
    """

    def run() -> None:
        try:
            while True:
                received = link.receive()
                on_message(received, time.monotonic_ns())
        except (LinkClosedError, RemoteProtocolError) as error:
            on_end(error)

    thread = threading.Thread(target=run, name=f"read {link.peer}", daemon=True)
    thread.start()
    return thread


def _introduce(link: Link, hello: Hello, expected_node_id: str) -> Link:
    try:
        link.send(hello)
        answer = link.receive(time.monotonic() + DIALER_PATIENCE_S).message
    except (LinkClosedError, RemoteProtocolError) as error:
        link.close()
        raise LinkClosedError(f"{expected_node_id} did not say hello: {error}") from error
    link.welcome()
    if not isinstance(answer, HelloAck):
        link.close()
        raise LinkClosedError(f"{expected_node_id} answered hello with {type(answer).__name__}")
    if answer.refused:
        link.close()
        raise LinkClosedError(f"{answer.node_id} refused {hello.node_id}: {answer.refused}")
    if answer.node_id != expected_node_id:
        link.close()
        raise LinkClosedError(f"expected {expected_node_id}, found {answer.node_id}")
    return link


def _refusal(hello: Message, cluster_id: str) -> str:
    """Why a peer's hello is refused; empty if it is fine."""
    if not isinstance(hello, Hello):
        return f"the first message must be hello, not {type(hello).__name__}"
    if hello.protocol_version != PROTOCOL_VERSION:
        return f"protocol version {hello.protocol_version}; this side speaks {PROTOCOL_VERSION}"
    if hello.cluster_id != cluster_id:
        return "another cluster's member"
    if hello.role not in ROLES:
        return f"unknown role {hello.role!r}; valid: {', '.join(ROLES)}"
    return ""


def _configure(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):  # not all platforms name all three
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    # The kernel's own timers: they cost no system call a frame.
    for option, limit_s in (
        (socket.SO_SNDTIMEO, SEND_PROGRESS_S),
        (socket.SO_RCVTIMEO, MID_FRAME_STALL_S),
    ):
        timeout = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, option, timeout)
