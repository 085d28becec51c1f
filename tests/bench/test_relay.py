"""The relay process over real loopback sockets: bytes, delays, endings."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.wan.forwarder import LINE_CAP_BYTES
from bench.wan.profile import LinkShape
from bench.wan.relay import RelayProcess, link_to
from bench.wan.self_test import measure_delay
from engine.errors import ConfigError

TIMEOUT_S = 20.0
ONE_WAY_NS = 30_000_000
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def relayed(shape: LinkShape) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the two ends of one connection through a relay of one link."""
    with socket.create_server(("127.0.0.1", 0)) as target, RelayProcess() as relay:
        ports = relay.start([link_to(shape, target.getsockname()[1])], seed=1)
        with connect_through(target, ports[shape.name]) as ends:
            yield ends


@contextlib.contextmanager
def connect_through(
    target: socket.socket, port: int
) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as near:
        target.settimeout(TIMEOUT_S)
        far, _ = target.accept()
        with far:
            far.settimeout(TIMEOUT_S)
            yield near, far


def read_to_end(sock: socket.socket) -> bytes:
    received = bytearray()
    while chunk := sock.recv(1 << 16):
        received += chunk
    return bytes(received)


@pytest.fixture(scope="module")
def plain_link() -> Iterator[tuple[socket.socket, int]]:
    """A relay with a short delay, jitter and a rate, shared by the property test's examples."""
    shape = LinkShape(
        name="mixed",
        one_way_ns=200_000,
        jitter_ns=200_000,
        jitter_distribution="uniform",
        rate_bytes_per_s=20_000_000,
    )
    with socket.create_server(("127.0.0.1", 0)) as target, RelayProcess() as relay:
        ports = relay.start([link_to(shape, target.getsockname()[1])], seed=3)
        yield target, ports["mixed"]


chunk_lists = st.lists(st.binary(min_size=1, max_size=3_000), max_size=12)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(forth=chunk_lists, back=chunk_lists)
def test_both_ways_carry_every_byte_and_each_half_close(
    plain_link: tuple[socket.socket, int], forth: list[bytes], back: list[bytes]
) -> None:
    """The near end finishes first; the far end still sends everything it has."""
    with connect_through(*plain_link) as (near, far):
        for chunk in forth:
            near.sendall(chunk)
        near.shutdown(socket.SHUT_WR)
        assert read_to_end(far) == b"".join(forth)
        for chunk in back:
            far.sendall(chunk)
        far.shutdown(socket.SHUT_WR)
        assert read_to_end(near) == b"".join(back)


def test_nothing_arrives_before_its_one_way_delay_in_either_direction() -> None:
    with relayed(LinkShape(name="link", one_way_ns=ONE_WAY_NS)) as ends:
        for sender, receiver in (ends, ends[::-1]):
            for _ in range(5):
                sent_ns = time.monotonic_ns()
                sender.sendall(b"x")
                assert receiver.recv(1) == b"x"
                assert time.monotonic_ns() - sent_ns >= ONE_WAY_NS


def test_messages_overlap_on_the_link() -> None:
    """Ten messages at once take one delay, not ten; a relay that waits in turn takes 300 ms."""
    with relayed(LinkShape(name="link", one_way_ns=ONE_WAY_NS)) as (near, far):
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        started_ns = time.monotonic_ns()
        for _ in range(10):
            near.sendall(b"x")
            time.sleep(0.001)
        received = b""
        while len(received) < 10:
            received += far.recv(10)
        assert time.monotonic_ns() - started_ns < 7 * ONE_WAY_NS


def test_a_rate_stretches_a_message() -> None:
    shape = LinkShape(name="link", one_way_ns=0, rate_bytes_per_s=1_000_000)
    with relayed(shape) as (near, far):
        started_ns = time.monotonic_ns()
        near.sendall(bytes(100_000))
        near.shutdown(socket.SHUT_WR)
        assert len(read_to_end(far)) == 100_000
        assert time.monotonic_ns() - started_ns >= 100_000_000


def test_a_half_close_arrives_after_the_delay_and_not_before() -> None:
    with relayed(LinkShape(name="link", one_way_ns=ONE_WAY_NS)) as (near, far):
        closed_ns = time.monotonic_ns()
        near.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        assert time.monotonic_ns() - closed_ns >= ONE_WAY_NS


@pytest.mark.parametrize("half_closed_first", ["neither", "resetting", "other"])
def test_a_reset_arrives_as_a_reset_after_the_delay(half_closed_first: str) -> None:
    with relayed(LinkShape(name="link", one_way_ns=ONE_WAY_NS)) as (near, far):
        if half_closed_first == "other":
            far.shutdown(socket.SHUT_WR)
            assert near.recv(1) == b""
        if half_closed_first == "resetting":
            near.shutdown(socket.SHUT_WR)
            assert far.recv(1) == b""
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        reset_ns = time.monotonic_ns()
        near.close()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            # A half-closed end notices when it sends: keep sending until it does.
            while True:
                if half_closed_first == "resetting":
                    far.sendall(b"x")
                    time.sleep(0.005)
                elif far.recv(1) == b"":
                    pytest.fail("a reset arrived as an ordinary end")
        assert time.monotonic_ns() - reset_ns >= ONE_WAY_NS


def test_a_slow_reader_stops_the_sender_and_loses_nothing() -> None:
    """More bytes than line and kernel buffers hold: the sender must stall until they are read."""
    total_bytes = 4 * LINE_CAP_BYTES
    with relayed(LinkShape(name="link", one_way_ns=1_000_000)) as (near, far):
        near.settimeout(1.0)
        sent_len = 0
        pattern = bytes(range(251)) * 1_000
        with contextlib.suppress(TimeoutError):
            while sent_len < total_bytes:
                sent_len += near.send(pattern[sent_len % 251 :])
        assert LINE_CAP_BYTES <= sent_len < total_bytes
        reading = threading.Thread(target=near.shutdown, args=(socket.SHUT_WR,))
        reading.start()
        received = read_to_end(far)
        reading.join()
        expected = (bytes(range(251)) * (sent_len // 251 + 1))[:sent_len]
        assert received == expected


def test_bytes_for_a_lost_end_do_not_keep_the_relay_busy() -> None:
    """The bytes are due 0.8 s before the news of the reset is: nothing may wait for them hot."""
    with socket.create_server(("127.0.0.1", 0)) as target, RelayProcess() as relay:
        shape = LinkShape(name="link", one_way_ns=1_000_000_000)
        ports = relay.start([link_to(shape, target.getsockname()[1])], seed=1)
        with connect_through(target, ports["link"]) as (near, far):
            far.sendall(bytes(100_000))
            time.sleep(0.8)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            near.close()
            time.sleep(0.3)
            before_s = processor_time_s(relay)
            time.sleep(0.5)
            assert processor_time_s(relay) - before_s < 0.1


def processor_time_s(relay: RelayProcess) -> float:
    times = psutil.Process(relay.pid).cpu_times()
    return times.user + times.system


def test_a_client_whose_target_is_down_is_closed_and_the_next_one_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        port = target.getsockname()[1]
    with RelayProcess() as relay:
        shape = LinkShape(name="link", one_way_ns=1_000_000)
        relay_port = relay.start([link_to(shape, port)], seed=1)["link"]
        with socket.create_connection(("127.0.0.1", relay_port), TIMEOUT_S) as client:
            assert client.recv(1) == b""
        with (
            socket.create_server(("127.0.0.1", port)) as target,
            connect_through(target, relay_port) as (near, far),
        ):
            near.sendall(b"hello")
            assert far.recv(5) == b"hello"


def test_one_process_serves_every_link_and_names_their_ports() -> None:
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
        relay = stack.enter_context(RelayProcess())
        links = [
            link_to(LinkShape(name=f"link {idx}", one_way_ns=idx), target.getsockname()[1])
            for idx, target in enumerate(targets)
        ]
        ports = relay.start(links, seed=1)
        assert list(ports) == [link.name for link in links]
        for idx, target in enumerate(targets):
            near, far = stack.enter_context(connect_through(target, ports[f"link {idx}"]))
            near.sendall(bytes([idx]))
            assert far.recv(1) == bytes([idx])


def test_the_self_test_reports_an_excess_that_is_never_negative() -> None:
    shape = LinkShape(name="link", one_way_ns=5_000_000)
    figures = measure_delay(shape, num_messages=20)
    assert 0 <= figures.min_excess_ns <= figures.median_excess_ns <= figures.p99_excess_ns
    assert figures.median_excess_ns < 50_000_000  # a wrong unit would be far beyond
    with pytest.raises(ConfigError, match="at least 2"):
        measure_delay(shape, num_messages=1)
