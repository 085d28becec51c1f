"""The relay's event loop: sockets on one side, delay lines in the middle, sockets on the other.

Guarantees: one thread serves every link; bytes are never altered or reordered; a direction holds
at most its cap plus one read; a half-close and a reset reach the other end after the link's delay;
a client whose target cannot be reached is closed. Ends when its control input closes or its parent
process is gone.
Must never know: frames, models, profiles as files.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field
from ipaddress import ip_address

from bench.wan.delay_line import DelayLine, Ending, Pacer
from bench.wan.profile import LinkShape
from engine.errors import ConfigError

LINE_CAP_BYTES = 8 << 20  # more than a 275 ms loop holds at 200 Mbit/s
READ_BYTES = 64 << 10
# With a finite rate a read is at most this long on the wire, so that a frame is paced in steps
# and not as one late block; never below one Ethernet segment.
RATED_READ_S = 0.0005
RATED_READ_MIN_BYTES = 1448
PARENT_CHECK_S = 1.0  # the longest sleep; then look whether the parent still lives
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close() sends RST


class RelayLink(LinkShape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link shape and the two loopback addresses it stands between.

    Attributes:
        target_host, target_port: whom the relay dials when a client connects.
        listen_port: where clients connect; 0 lets the system choose.
    """

    target_host: str = "127.0.0.1"
    target_port: int
    listen_port: int = 0


@dataclass(slots=True, eq=False)
class Endpoint:
    """One socket of a relayed connection and the line that carries what it sends."""

    sock: socket.socket
    line: DelayLine
    read_bytes: int
    peer: Endpoint = field(init=False)
    is_connected: bool = True
    is_blocked: bool = False  # the socket takes no more bytes for now
    is_open: bool = True
    is_told: bool = False  # the peer's ending has been delivered to this socket


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A listening socket, its link, and the link's two shared pacers."""

    sock: socket.socket
    link: RelayLink
    forth: Pacer
    back: Pacer


class Forwarder:
    """Relays every link of a ring until `serve` returns.

    Args:
        links: what to listen for; names must be unique, addresses loopback.
        seed: fixes every jitter draw together with the link's name and direction.

    Raises:
        ConfigError: a link cannot be set up as asked.
    """

    def __init__(self, links: list[RelayLink], seed: int) -> None:
        self._selector = selectors.SelectSelector()  # µs time-outs; epoll rounds up to 1 ms
        self._endpoints: set[Endpoint] = set()
        self._listeners = [_listen(link, seed) for link in links]
        for listener in self._listeners:
            self._selector.register(listener.sock, selectors.EVENT_READ, listener)
        self.ports = {
            listener.link.name: listener.sock.getsockname()[1] for listener in self._listeners
        }

    def serve(self, control_fd: int, parent_pid: int) -> None:
        """Relay until `control_fd` reaches its end or the parent process is gone."""
        self._selector.register(control_fd, selectors.EVENT_READ, None)
        while os.getppid() == parent_pid:
            events = self._selector.select(self._sleep_s())
            self._deliver_due()
            for key, mask in events:
                if key.data is None:
                    if not os.read(control_fd, READ_BYTES):
                        return
                elif isinstance(key.data, Listener):
                    self._accept(key.data)
                else:
                    self._serve_endpoint(key.data, mask)

    def close(self) -> None:
        """Close every socket at once; what is under way is lost."""
        for endpoint in list(self._endpoints):
            self._close(endpoint)
        for listener in self._listeners:
            listener.sock.close()
        self._selector.close()

    def _sleep_s(self) -> float:
        due_ns = min(
            (
                endpoint.line.head_due_ns
                for endpoint in self._endpoints
                if endpoint.line.head_due_ns is not None and not endpoint.peer.is_blocked
            ),
            default=None,
        )
        if due_ns is None:
            return PARENT_CHECK_S
        return min(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), PARENT_CHECK_S)

    def _accept(self, listener: Listener) -> None:
        try:
            sock, _ = listener.sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client left between the event and here
        link = listener.link
        read_bytes = _read_len(link)
        client = Endpoint(sock, DelayLine(listener.forth, LINE_CAP_BYTES), read_bytes)
        family = socket.AF_INET6 if ":" in link.target_host else socket.AF_INET
        target = Endpoint(
            socket.socket(family, socket.SOCK_STREAM),
            DelayLine(listener.back, LINE_CAP_BYTES),
            read_bytes,
            is_connected=False,
            is_blocked=True,
        )
        client.peer, target.peer = target, client
        for endpoint in (client, target):
            endpoint.sock.setblocking(False)
            endpoint.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._endpoints.add(endpoint)
        failure = target.sock.connect_ex((link.target_host, link.target_port))
        for endpoint in (client, target):
            if failure in (0, errno.EINPROGRESS):
                self._watch(endpoint)
            else:
                self._close(endpoint)

    def _serve_endpoint(self, endpoint: Endpoint, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and endpoint.is_open:
            if not endpoint.is_connected:
                self._finish_connect(endpoint)
            endpoint.is_blocked = not endpoint.is_connected
            self._deliver(endpoint.peer)
        if mask & selectors.EVENT_READ and endpoint.is_open and endpoint.is_connected:
            self._read(endpoint)

    def _finish_connect(self, target: Endpoint) -> None:
        if target.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._close(target.peer)
            self._close(target)
        else:
            target.is_connected = True

    def _read(self, endpoint: Endpoint) -> None:
        if endpoint.line.is_ended:
            return  # its peer was lost since the selector saw these bytes
        try:
            payload = endpoint.sock.recv(endpoint.read_bytes)
        except BlockingIOError:
            return  # a spurious wake-up
        except OSError:
            self._lose(endpoint)
            return
        if payload:
            endpoint.line.push(time.monotonic_ns(), payload)
        else:
            endpoint.line.push_ending(time.monotonic_ns(), Ending.FINISHED)
        self._watch(endpoint)

    def _deliver_due(self) -> None:
        for endpoint in list(self._endpoints):
            if not endpoint.peer.is_blocked:
                self._deliver(endpoint)

    def _deliver(self, source: Endpoint) -> None:
        """Hand the sink what is due; a lost source's socket is gone, its line still delivers."""
        sink = source.peer
        while sink.is_open and sink.is_connected:
            parcel = source.line.due_parcel(time.monotonic_ns())
            if parcel is None:
                break
            if parcel.ending is not None:
                source.line.consume(0)
                self._end(source, sink, parcel.ending)
                break
            try:
                num_bytes = sink.sock.send(parcel.payload)
            except BlockingIOError:
                sink.is_blocked = True
                break
            except OSError:
                self._lose(sink)
                break
            source.line.consume(num_bytes)
        self._watch(source)
        self._watch(sink)

    def _end(self, source: Endpoint, sink: Endpoint, ending: Ending) -> None:
        sink.is_told = True
        if ending is Ending.RESET:
            sink.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self._close(sink)
            self._close(source)
            return
        try:
            sink.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._lose(sink)
            return
        if source.is_told:
            self._close(sink)
            self._close(source)

    def _lose(self, endpoint: Endpoint) -> None:
        # Its connection broke: the peer learns it one link delay later.
        self._forget(endpoint)
        endpoint.peer.line.discard()
        self._watch(endpoint.peer)
        if endpoint.peer.is_open:
            endpoint.line.push_ending(time.monotonic_ns(), Ending.RESET)
        else:
            self._endpoints -= {endpoint, endpoint.peer}

    def _close(self, endpoint: Endpoint) -> None:
        self._forget(endpoint)
        self._endpoints.discard(endpoint)

    def _forget(self, endpoint: Endpoint) -> None:
        if endpoint.is_open:
            endpoint.is_open = False
            self._unwatch(endpoint)
            endpoint.sock.close()

    def _watch(self, endpoint: Endpoint) -> None:
        """Ask the selector for exactly the events this endpoint can use now."""
        if not endpoint.is_open:
            return
        mask = selectors.EVENT_WRITE if endpoint.is_blocked else 0
        if endpoint.is_connected and not endpoint.line.is_ended and not endpoint.line.is_full:
            mask |= selectors.EVENT_READ
        known = self._selector.get_map().get(endpoint.sock)
        if known is not None and known.events == mask:
            return
        self._unwatch(endpoint)
        if mask:
            self._selector.register(endpoint.sock, mask, endpoint)

    def _unwatch(self, endpoint: Endpoint) -> None:
        if self._selector.get_map().get(endpoint.sock) is not None:
            self._selector.unregister(endpoint.sock)


def _listen(link: RelayLink, seed: int) -> Listener:
    try:
        is_loopback = ip_address(link.target_host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback or not 0 < link.target_port < 65536:
        raise ConfigError(
            f"relay link {link.name!r}: target {link.target_host}:{link.target_port} is not a "
            "loopback address such as 127.0.0.1 with a port from 1 to 65535"
        )
    if min(link.one_way_ns, link.jitter_ns, link.rate_bytes_per_s) < 0:
        raise ConfigError(f"relay link {link.name!r}: delay, jitter and rate start at 0")
    try:
        sock = socket.create_server(("127.0.0.1", link.listen_port))
    except OSError as error:
        raise ConfigError(
            f"relay link {link.name!r}: cannot listen on port {link.listen_port}: {error.strerror}"
        ) from error
    sock.setblocking(False)
    forth, back = (Pacer(link, f"{seed}/{link.name}/{way}") for way in ("forth", "back"))
    return Listener(sock, link, forth, back)


def _read_len(link: RelayLink) -> int:
    if not link.rate_bytes_per_s:
        return READ_BYTES
    rated_bytes = round(link.rate_bytes_per_s * RATED_READ_S)
    return min(max(rated_bytes, RATED_READ_MIN_BYTES), READ_BYTES)
