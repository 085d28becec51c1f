"""Real namespaces and TUN devices: what TCP gets, what is said when something is missing."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.wan.netns_carrier import CarrierConfig, CarrierReady, DirectionReport
from bench.wan.netns_kernel import in_network
from bench.wan.netns_process import CHECKOUT_DIR, CarrierProcess, why_unavailable
from bench.wan.profile import LinkShape, link_names
from engine.errors import ConfigError, LinkClosedError

TIMEOUT_S = 30.0
ONE_WAY_NS = 10_000_000
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module", autouse=True)
def _available() -> None:
    if reason := why_unavailable():
        pytest.skip(reason)


def ring_of(num_stages: int, **fields: object) -> list[LinkShape]:
    shape = {"one_way_ns": ONE_WAY_NS, **fields}
    return [LinkShape(name=name, **shape) for name in link_names(num_stages)]  # type: ignore[arg-type]


@contextlib.contextmanager
def standing(shapes: list[LinkShape]) -> Iterator[tuple[CarrierProcess, CarrierReady]]:
    with CarrierProcess() as carrier:
        yield carrier, carrier.start(shapes, seed=1)


@contextlib.contextmanager
def connected(ready: CarrierReady, caller_idx: int, listener_idx: int) -> Iterator[Sockets]:
    """A connection between two hosts; the caller's end first."""
    with in_network(ready.namespaces[listener_idx]):
        listener = socket.create_server((ready.addresses[listener_idx], 0))
    listener.settimeout(TIMEOUT_S)
    with listener, in_network(ready.namespaces[caller_idx]):
        caller = socket.create_connection(listener.getsockname(), TIMEOUT_S)
        called, _ = listener.accept()
    with caller, called:
        called.settimeout(TIMEOUT_S)
        for each in (caller, called):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield caller, called


def round_trip_ns(ends: Sockets) -> int:
    caller, called = ends
    started_ns = time.monotonic_ns()
    caller.sendall(b"?")
    assert called.recv(1) == b"?"
    called.sendall(b"!")
    assert caller.recv(1) == b"!"
    return time.monotonic_ns() - started_ns


def transfer(ends: Sockets, num_bytes: int) -> None:
    """Send a pattern; fail if it arrives otherwise."""
    sender, receiver = ends
    pattern = (bytes(range(251)) * (num_bytes // 251 + 1))[:num_bytes]
    sending = threading.Thread(target=sender.sendall, args=(pattern,))
    sending.start()
    received = bytearray()
    while len(received) < num_bytes:
        chunk = receiver.recv(1 << 18)
        assert chunk, "the connection ended early"
        received += chunk
    sending.join()
    assert received == pattern


def way_out(carrier: CarrierProcess) -> DirectionReport:
    """What became of the packets from the coordinator to the first stage, once stopped."""
    carrier.stop()
    return carrier.report.directions[0]


def test_neighbours_and_hosts_further_away_are_as_far_as_the_ring_says() -> None:
    """Four hosts: the coordinator reaches the second stage over two cables either way round."""
    with standing(ring_of(3)) as (carrier, ready):
        for sink_idx, num_cables in ((1, 1), (2, 2), (3, 1)):
            with connected(ready, 0, sink_idx) as ends:
                least_ns = min(round_trip_ns(ends) for _ in range(5))
                assert 2 * num_cables * ONE_WAY_NS <= least_ns < 2 * (num_cables + 1) * ONE_WAY_NS
        with connected(ready, 1, 2) as ends:
            assert round_trip_ns(ends) >= 2 * ONE_WAY_NS
        carrier.stop()
        used = {each.name for each in carrier.report.directions if each.num_packets}
    assert {"coordinator->0", "0->1", "1->2 (back)", "2->coordinator (back)"} & used
    assert len(carrier.report.directions) == 8


def test_with_one_stage_each_way_has_its_own_link() -> None:
    shapes = [LinkShape(name="coordinator->0", one_way_ns=0), *ring_of(1)[1:]]
    with standing(shapes) as (carrier, ready), connected(ready, 0, 1) as ends:
        assert ONE_WAY_NS <= min(round_trip_ns(ends) for _ in range(5)) < 2 * ONE_WAY_NS
    assert [each.name for each in carrier.report.directions] == link_names(1)


@pytest.mark.parametrize("control", ["cubic", "bbr", "reno"])
def test_congestion_control_reaches_both_ends_and_both_directions(control: str) -> None:
    with standing(ring_of(2, congestion_control=control)) as (_, ready):
        for caller_idx, listener_idx in ((0, 1), (1, 2), (0, 2)):
            with connected(ready, caller_idx, listener_idx) as ends:
                for end in ends:
                    name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                    assert name.rstrip(b"\0").decode() == control


def test_a_socket_that_asks_for_another_congestion_control_gets_it() -> None:
    with (
        standing(ring_of(1, congestion_control="cubic")) as (_, ready),
        connected(ready, 0, 1) as (caller, _),
    ):
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        name = caller.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert name.rstrip(b"\0") == b"reno"


def test_tcp_recovers_what_the_link_loses() -> None:
    with standing(ring_of(1, loss_ppm=30_000)) as (carrier, ready):
        with connected(ready, 0, 1) as ends:
            transfer(ends, 300_000)
        report = way_out(carrier)
    assert 0 < report.num_lost < report.num_packets / 5


def test_a_full_queue_drops_and_the_rate_holds() -> None:
    rate = 1_000_000
    shapes = ring_of(1, rate_bytes_per_s=rate, queue_bytes=15_000)
    with standing(shapes) as (carrier, ready):
        with connected(ready, 0, 1) as ends:
            started_s = time.monotonic()
            transfer(ends, 500_000)
            assert time.monotonic() - started_s >= 500_000 / rate
        assert way_out(carrier).num_overflowed > 0


def test_reordered_packets_arrive_as_one_stream() -> None:
    with standing(ring_of(1, reorder_ppm=100_000)) as (carrier, ready):
        with connected(ready, 0, 1) as ends:
            transfer(ends, 300_000)
        assert way_out(carrier).num_reordered > 0


def test_two_rings_stand_side_by_side() -> None:
    with standing(ring_of(1)) as (_, first), standing(ring_of(2)) as (_, second):
        assert not set(first.addresses) & set(second.addresses)
        for ready in (first, second):
            with connected(ready, 0, 1) as ends:
                round_trip_ns(ends)


def test_a_carrier_that_is_gone_is_noticed_and_started_twice_is_refused() -> None:
    with standing(ring_of(1)) as (carrier, _):
        with pytest.raises(ConfigError, match="already runs"):
            carrier.start(ring_of(1), seed=1)
        carrier.check()
        carrier.stop()
        with pytest.raises(LinkClosedError, match="does not run"):
            carrier.check()


VETH_RING = """
import socket
from bench.wan import netns_hosts, netns_kernel, netns_netem
from bench.wan.profile import load_profile

netns_netem.is_in_kernel = lambda: True
hosts = netns_hosts.stand_up(load_profile("loopback").links(3), "lhaul-0-0-00000000")
netns_kernel.set_network(hosts.namespace_fds[2])
listener = socket.create_server((hosts.topology.address(2), 0))
netns_kernel.set_network(hosts.namespace_fds[0])
socket.create_connection(listener.getsockname(), 10).sendall(b"over two cables")
print(hosts.packets, listener.accept()[0].recv(99))
"""


def test_the_kernels_own_cables_join_hosts_too() -> None:
    """The way of `tc netem`, on links that ask nothing of it: this kernel need not have it."""
    ended = subprocess.run(
        [sys.executable, "-c", VETH_RING],
        capture_output=True,
        text=True,
        cwd=CHECKOUT_DIR,
        timeout=TIMEOUT_S,
    )
    assert ended.stdout == "netem b'over two cables'\n", ended.stderr


@pytest.mark.parametrize(
    ("lost", "advice"),
    [
        ("sys_admin", r"lacks CAP_SYS_ADMIN\); run as root, or as a user through .* wan enter"),
        ("net_admin", "not permitted|lacks CAP_NET_ADMIN"),
    ],
)
def test_a_missing_privilege_is_named_with_what_to_do(lost: str, advice: str) -> None:
    if subprocess.run(["which", "setpriv"], capture_output=True).returncode:
        pytest.skip("no setpriv on the path")
    assert re.search(advice, refused("setpriv", f"--bounding-set=-{lost}"))


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    assert "install iproute2" in refused("env", f"PATH={tmp_path}")


def refused(*prefix: str) -> str:
    """What a carrier under this command says instead of standing hosts up."""
    config = CarrierConfig(seed=1, shapes=tuple(ring_of(1)))
    ended = subprocess.run(
        [*prefix, sys.executable, "-m", "bench.wan.netns_carrier", "lhaul-0-0-00000000"],
        input=msgspec.json.encode(config) + b"\n",
        capture_output=True,
        cwd=CHECKOUT_DIR,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 2
    return msgspec.json.decode(ended.stdout, type=CarrierReady).error


def test_a_user_namespace_is_enough() -> None:
    entered = subprocess.run(
        [
            *(sys.executable, "-m", "bench.wan.netns_enter"),
            *(sys.executable, "-c"),
            "from bench.wan.netns_process import why_unavailable; print(why_unavailable())",
        ],
        capture_output=True,
        text=True,
        cwd=CHECKOUT_DIR,
        timeout=TIMEOUT_S,
    )
    if "user namespaces are refused" in entered.stderr:
        pytest.skip(entered.stderr)
    assert (entered.returncode, entered.stdout) == (0, "\n"), entered.stderr
