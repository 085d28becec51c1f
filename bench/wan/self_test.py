"""How much later than asked the relay delivers: the figure beside every emulated link.

Guarantees: measures a real relay process over real sockets; send and receive times come from the
same monotonic clock; `min_excess_ns < 0` would mean that bytes arrived before their one-way delay.
Must never know: how the relay works inside, models, stages.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec

from bench.wan.profile import LinkShape, load_profile
from bench.wan.relay import RelayProcess, link_to
from engine.defaults import NUM_STAGES
from engine.errors import ConfigError, LinkClosedError

MESSAGE_BYTES = 1024  # one small frame; its first 8 bytes carry the send time
INTERVAL_S = 0.010
BUSY_NICE = 10


class DelayFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Delivered minus asked one-way delay; jitter, where the link has it, is part of the excess."""

    link: LinkShape
    num_messages: int
    num_busy: int
    min_excess_ns: int
    median_excess_ns: int
    p99_excess_ns: int

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"link {self.link.name}: asked {self.link.one_way_ns / 1e6:.3f} ms one way, "
            f"{self.num_messages} messages, {self.num_busy} busy processes; excess: "
            f"median {self.median_excess_ns / 1e6:.3f} ms, p99 {self.p99_excess_ns / 1e6:.3f} ms, "
            f"least {self.min_excess_ns / 1e6:.3f} ms"
        )


def run_self_test(profile_name: str, num_messages: int, num_busy: int) -> DelayFigures:
    """Measure the first link of a profile at the default number of stages."""
    shape = load_profile(profile_name).links(NUM_STAGES)[0]
    return measure_delay(shape, num_messages=num_messages, num_busy=num_busy)


def measure_delay(
    shape: LinkShape, *, num_messages: int = 200, num_busy: int = 0, seed: int = 0
) -> DelayFigures:
    """Send stamped messages through a relay of one link and time their arrival.

    Args:
        shape: the link.
        num_messages: sent `INTERVAL_S` apart.
        num_busy: processes that compute at nice 10 meanwhile, as stages would.
        seed: of the link's jitter.

    Raises:
        ConfigError: the caller asked for fewer than 2 messages.
        LinkClosedError: a message did not arrive.
    """
    if num_messages < 2:
        raise ConfigError(f"the self-test needs at least 2 messages: {num_messages}")
    excess_ns: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as target, RelayProcess() as relay:
        ports = relay.start([link_to(shape, target.getsockname()[1])], seed)
        with (
            socket.create_connection(("127.0.0.1", ports[shape.name])) as sender,
            target.accept()[0] as receiver,
            _busy_processes(num_busy),
        ):
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            receiver.settimeout(10 + shape.one_way_ns / 1e9)
            sending = threading.Thread(target=_send_stamped, args=(sender, num_messages))
            sending.start()
            try:
                for _ in range(num_messages):
                    sent_ns = _receive_stamp(receiver)
                    excess_ns.append(time.monotonic_ns() - sent_ns - shape.one_way_ns)
            finally:
                sending.join()
    return DelayFigures(
        link=shape,
        num_messages=num_messages,
        num_busy=num_busy,
        min_excess_ns=min(excess_ns),
        median_excess_ns=round(statistics.median(excess_ns)),
        p99_excess_ns=round(statistics.quantiles(excess_ns, n=100, method="inclusive")[98]),
    )


def _send_stamped(sender: socket.socket, num_messages: int) -> None:
    for _ in range(num_messages):
        sender.sendall(struct.pack(">Q", time.monotonic_ns()).ljust(MESSAGE_BYTES, b"\0"))
        time.sleep(INTERVAL_S)


def _receive_stamp(receiver: socket.socket) -> int:
    message = b""
    while len(message) < MESSAGE_BYTES:
        received = receiver.recv(MESSAGE_BYTES - len(message))
        if not received:
            raise LinkClosedError("the relayed connection ended during the self-test")
        message += received
    return struct.unpack_from(">Q", message)[0]


@contextlib.contextmanager
def _busy_processes(num_busy: int) -> Iterator[None]:
    # The loop asks for its parent, so that a killed self-test leaves nothing spinning.
    alive = f"os.getppid() == {os.getpid()}"
    spin = f"import os\nos.nice({BUSY_NICE})\nwhile {alive}:\n    sum(range(9999))"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(num_busy)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
