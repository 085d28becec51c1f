"""What TCP makes of a namespaced link: delivered round trips, and exchanges after a pause.

Guarantees: real sockets on real hosts, one connection for each size; a pause is a pause (noops,
where asked for, are the only bytes in it); times come from one clock at the asking end.
Must never know: how packets are carried, stages, models.

    python -m bench.wan.netns_exchange --one-way-ms 20 --rate-mbit 200 --congestion-control cubic
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec

from bench.wan.netns import NamespacedLinks
from bench.wan.profile import BYTES_PER_S_PER_MBIT, NS_PER_MS, LinkProfile
from engine.errors import LinkClosedError, LonghaulError

REQUEST = struct.Struct(">II")  # bytes that follow, bytes wanted back
NOOP_BYTES = 16
ANSWER_BYTES = 16  # of an exchange: a reply frame is small
SOCKET_TIMEOUT_S = 30.0
STAGE_HOST = 1
NUM_GROWING = 4  # exchanges that open a connection's window before anything is timed
CONTROL_NAME_BYTES = 16  # TCP_CA_NAME_MAX


class ExchangeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one kind of exchange: `num_bytes` there, a few bytes back."""

    num_bytes: int
    idle_ms: int
    noop_ms: int  # between noops while idle; 0: none
    took_ns: tuple[int, ...]

    @property
    def median_ns(self) -> int:
        """The middle one."""
        return round(statistics.median(self.took_ns))


class Exchanger:
    """One connection from the coordinator's host to a stage's, and somebody who answers.

    A context manager.
    """

    def __init__(self, links: NamespacedLinks) -> None:
        with links.on_host(STAGE_HOST):
            self._listener = socket.create_server((links.address(STAGE_HOST), 0))
        with links.on_host(0):
            self._sock = socket.create_connection(self._listener.getsockname(), SOCKET_TIMEOUT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answering = threading.Thread(target=self._answer, daemon=True)
        self._answering.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        self._listener.close()
        self._answering.join(SOCKET_TIMEOUT_S)

    @property
    def congestion_control(self) -> str:
        """What the kernel says the connection uses."""
        name = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONTROL_NAME_BYTES)
        return name.rstrip(b"\0").decode()

    def exchange(self, num_bytes: int, answer_bytes: int = ANSWER_BYTES) -> int:
        """Send that many bytes, wait for the answer; return how long it took, in ns."""
        started_ns = time.monotonic_ns()
        self._sock.sendall(REQUEST.pack(num_bytes, answer_bytes) + bytes(num_bytes))
        _receive(self._sock, answer_bytes)
        return time.monotonic_ns() - started_ns

    def pause(self, idle_ms: int, noop_ms: int) -> None:
        """Stay idle, but for a noop every so often; a noop has no answer."""
        ends_s = time.monotonic() + idle_ms / 1e3
        while noop_ms and time.monotonic() + noop_ms / 1e3 < ends_s:
            time.sleep(noop_ms / 1e3)
            self._sock.sendall(REQUEST.pack(NOOP_BYTES, 0) + bytes(NOOP_BYTES))
        time.sleep(max(0.0, ends_s - time.monotonic()))

    def _answer(self) -> None:
        sock, _ = self._listener.accept()
        with sock, contextlib.suppress(LinkClosedError, OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                num_bytes, answer_bytes = REQUEST.unpack(_receive(sock, REQUEST.size))
                _receive(sock, num_bytes)
                sock.sendall(bytes(answer_bytes))


@contextlib.contextmanager
def two_hosts(profile: LinkProfile, seed: int = 0) -> Iterator[NamespacedLinks]:
    """Stand the coordinator's host and one stage's up, with nothing on them.

    Raises:
        ConfigError: namespaced links cannot be used here.
    """
    links = NamespacedLinks(profile, seed)
    try:
        links.places(1)
        yield links
    finally:
        links.close()


def measure_exchanges(
    links: NamespacedLinks,
    *,
    sizes: Sequence[int],
    idles_ms: Sequence[int],
    noops_ms: Sequence[int],
    num_repeats: int,
) -> list[ExchangeFigures]:
    """Every size after every pause, each several times.

    Args:
        sizes: bytes of the request; each has a connection of its own, so that none starts with
            the window that a larger one made.
        idles_ms: pauses before it.
        noops_ms: times between noops in a pause; 0 is none.
        num_repeats: of each combination.
    """
    figures = []
    for size in sizes:
        with Exchanger(links) as connection:
            for _ in range(NUM_GROWING):
                connection.exchange(size)
            for noop_ms, idle_ms in itertools.product(noops_ms, idles_ms):
                took_ns = []
                for _ in range(num_repeats):
                    connection.exchange(size)
                    connection.pause(idle_ms, noop_ms)
                    took_ns.append(connection.exchange(size))
                figures.append(
                    ExchangeFigures(
                        num_bytes=size, idle_ms=idle_ms, noop_ms=noop_ms, took_ns=tuple(took_ns)
                    )
                )
    return figures


def _receive(sock: socket.socket, num_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < num_bytes:
        chunk = sock.recv(min(num_bytes - len(received), 1 << 18))
        if not chunk:
            raise LinkClosedError("the other host closed the connection")
        received += chunk
    return bytes(received)


def _print_table(links: NamespacedLinks, asked: argparse.Namespace) -> None:
    with Exchanger(links) as connection:
        control = connection.congestion_control
        rtts_ns = [connection.exchange(ANSWER_BYTES) for _ in range(asked.messages)]
    print(
        f"{control}, {asked.one_way_ms} ms one way, {asked.rate_mbit} Mbit/s: round trip of "
        f"{ANSWER_BYTES} bytes, {asked.messages} times: median "
        f"{statistics.median(rtts_ns) / 1e6:.2f} ms, p99 "
        f"{statistics.quantiles(rtts_ns, n=100, method='inclusive')[98] / 1e6:.2f} ms"
    )
    for each in measure_exchanges(
        links,
        sizes=(30_000, 120_000, 405_000),
        idles_ms=(50, 300, 900),
        noops_ms=(0, 100),
        num_repeats=asked.repeats,
    ):
        times = f"{min(each.took_ns) / 1e6:.1f}–{max(each.took_ns) / 1e6:.1f}"
        noops = f"noops every {each.noop_ms} ms" if each.noop_ms else "no noops"
        print(
            f"{each.num_bytes:7} bytes, idle {each.idle_ms:4} ms, {noops:19}: "
            f"{each.median_ns / 1e6:6.1f} ms [{times}]"
        )


def main(arguments: list[str] | None = None) -> int:
    """Measure one link and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.wan.netns_exchange")
    parser.add_argument("--one-way-ms", type=float, default=20.0)
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--congestion-control", default="cubic", choices=("cubic", "bbr", "reno"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200, help="round trips to time")
    asked = parser.parse_args(arguments)
    profile = LinkProfile(
        name="exchange",
        description="two hosts",
        provenance="",
        tolerance_ns=0,
        loop_ns=round(2 * asked.one_way_ms * NS_PER_MS),
        jitter_ns=0,
        jitter_distribution="none",
        rate_bytes_per_s=round(asked.rate_mbit * BYTES_PER_S_PER_MBIT),
        listed=(),
        congestion_control=asked.congestion_control,
    )
    try:
        with two_hosts(profile) as links:
            _print_table(links, asked)
    except LonghaulError as error:
        print(error, file=sys.stderr)
        return 2
    for direction in links.report.directions:
        print(
            f"{direction.name}: {direction.num_packets} packets, {direction.num_late} more than "
            f"1 ms late, the latest {direction.max_late_ns / 1e6:.2f} ms"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
