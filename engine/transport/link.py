"""Sockets: the only file of the engine that imports `socket`.

Guarantees: Nagle's algorithm is off and keep-alive on; frames leave whole and in order, a full
direction holds its sender back and a closing link flushes first; receiving reads straight into the
connection's buffer; a peer that stalls in the middle of a frame, or never drains what we send, is
given up after a bound. Must never know what a message means.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping

import torch

from engine.errors import LinkClosedError, LocalProtocolError, RemoteProtocolError
from engine.transport.connection import Connection, Received, Tap, WireUse
from engine.transport.frame import MAX_PAYLOAD_LEN
from engine.transport.handshake import Established
from engine.transport.message import AnyMessage
from engine.transport.outbox import Outbox
from engine.transport.roles import MessageTypes
from engine.transport.seal import suite_named

MID_FRAME_STALL_S = 60.0  # a frame that has begun must go on
SEND_PROGRESS_S = 180.0  # a reader that drains nothing for this long is dead
FLUSH_S = 2.0  # what a closing link waits for its last bytes to leave
HELLO_MAX_LEN = 4096  # bytes that a stranger can make us allocate
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 60, 20, 3
_DIAL_RETRY_S = 0.05


class Link:
    """One connection: sends from any thread, receives from one.

    A send is written by its caller as far as the kernel takes it at once; the rest goes through the
    outbox and a writer thread, so that computing does not wait for a slow link.

    Args:
        sock: connected stream socket; the link owns it.
        peer: name for messages, such as "stage-2".
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self.peer_may_send: MessageTypes = ()  # by role, once introduced
        self._sock = sock
        self._connection = Connection(max_payload_len=HELLO_MAX_LEN, clock=time.monotonic_ns)
        self._taken = WireUse()  # what `take_wire_use` has told already
        self._send_lock = threading.Lock()
        self._outbox = Outbox()
        self._writer: threading.Thread | None = None  # started by the first send that has to wait
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self.last_sent_s = time.monotonic()  # when the kernel or the outbox had the last frame
        _configure(sock)

    def watch(self, tap: Tap) -> None:
        """Let somebody see every message in the clear, from the sending or the reading thread."""
        self._connection.tap = tap

    def take_wire_use(self) -> WireUse:
        """Time spent on this link's frames, both ways, since the last call."""
        total = self._connection.sending + self._connection.receiving
        spent, self._taken = total - self._taken, total
        return spent

    def send(self, message: AnyMessage, tensors: Mapping[str, torch.Tensor] | None = None) -> int:
        """Send one message; returns when the kernel or the outbox has it.

        Returns:
            Bytes of its frame.

        Raises:
            LinkClosedError: the connection is gone or the peer drains nothing.
        """
        with self._send_lock:
            try:
                frame = self._connection.send(message, tensors)
                self._write(frame)
            # LocalProtocolError: the reader found garbage, the connection is dead.
            except (OSError, LocalProtocolError) as error:
                self.abort()
                raise LinkClosedError(f"sending to {self.peer} failed: {error}") from error
            self.last_sent_s = time.monotonic()
            return len(frame)

    def offer(self, message: AnyMessage) -> bool:
        """Send a message that nobody misses, if it goes at once: it waits for nothing.

        Returns:
            Whether it was sent; not while somebody else sends, or the peer is slow to read.

        Raises:
            LinkClosedError: the connection is gone.
        """
        if not self._send_lock.acquire(blocking=False):
            return False
        try:
            if not self._outbox.empty or not self._writable.poll(0):
                return False
            self._write(self._connection.send(message))
        except (OSError, ValueError, LocalProtocolError) as error:
            self.abort()
            raise LinkClosedError(f"link to {self.peer} is closed: {error}") from error
        finally:
            self._send_lock.release()
        self.last_sent_s = time.monotonic()
        return True

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
                self.abort()
                raise
            if received is not None:
                return received

    def protect(self, established: Established, direction: str) -> None:
        """Seal everything from here on, both ways.

        Args:
            direction: the way of received frames, for errors.
        """
        self.peer = established.peer
        self._connection.identify(established.peer, direction)
        self._connection.protect(
            suite_named(established.suite), established.send_secret, established.receive_secret
        )

    def welcome(self, peer_may_send: MessageTypes) -> None:
        """The peer is who it says: frames of full size and of its role from now on."""
        self.peer_may_send = peer_may_send
        self._connection.max_payload_len = MAX_PAYLOAD_LEN

    def close(self) -> None:
        """Flush what was sent, then close; a thread blocked in `receive` wakes."""
        self._outbox.wait_empty(FLUSH_S)
        self.abort()

    def abort(self) -> None:
        """Close both directions at once; whoever waits on the link wakes with `LinkClosedError`."""
        self._outbox.fail("the link was closed")
        with contextlib.suppress(OSError):  # the peer was first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _write(self, frame: memoryview) -> None:
        """Write what goes at once, queue the rest; the caller holds the send lock."""
        num_written = 0
        if self._outbox.empty:
            with contextlib.suppress(BlockingIOError):  # the kernel's buffer is full
                num_written = self._sock.send(frame, socket.MSG_DONTWAIT)
        if num_written == len(frame):
            return
        if self._writer is None:
            self._writer = threading.Thread(
                target=self._drain_outbox, name=f"write {self.peer}", daemon=True
            )
            self._writer.start()
        failure = self._outbox.put(frame[num_written:])
        if failure is not None:
            raise OSError(failure)

    def _drain_outbox(self) -> None:
        """The writer thread: vectored sends, each bounded by SO_SNDTIMEO."""
        while views := self._outbox.batch():
            try:
                self._outbox.took(self._sock.sendmsg(views))
            except BlockingIOError:
                self._outbox.fail(f"{self.peer} drained nothing for {SEND_PROGRESS_S:.0f} s")
                self.abort()
            except OSError as error:
                self._outbox.fail(str(error))
                self.abort()

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

    def accept(self) -> Link:
        """Wait for the next caller, who has not introduced himself yet.

        Raises:
            LinkClosedError: the listener was closed.
        """
        while True:
            try:
                sock, _ = self._sock.accept()
            except ConnectionAbortedError:
                continue  # the caller was gone before we looked
            except OSError as error:
                raise LinkClosedError(f"the listener ended: {error}") from error
            try:
                return Link(sock, "an unnamed peer")
            except OSError:
                sock.close()  # gone again before its options were set

    def close(self) -> None:
        """Stop listening; a blocked `accept` raises `LinkClosedError`."""
        with contextlib.suppress(OSError):  # not every platform allows it on a listening socket
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def connect(address: tuple[str, int], expected_node_id: str, timeout_s: float) -> Link:
    """Open a connection, retrying while nobody listens, since processes start in any order.

    Raises:
        LinkClosedError: nobody there within the time.
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
        return Link(sock, expected_node_id)


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
