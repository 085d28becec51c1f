"""Links over real sockets: slow readers, dead readers, stalls, clean ends."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest
import torch

from engine.errors import LinkClosedError
from engine.transport import link as link_module
from engine.transport.connection import Received
from engine.transport.frame import MAX_PAYLOAD_LEN, Kind
from engine.transport.link import Link
from engine.transport.message import Noop, Probe, ProbeAck, Reply, Verify
from engine.transport.reader import read_in_background
from engine.transport.roles import ROLES

HIDDEN = {"hidden": torch.arange(200_000, dtype=torch.float32).reshape(-1, 100)}


def linked(buffer_bytes: int = 65536) -> tuple[Link, Link]:
    """Two introduced ends whose kernels hold little."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        near.connect(server.getsockname())
        far = server.accept()[0]
    ends = Link(near, "far"), Link(far, "near")
    for end in ends:
        end.welcome(ROLES["input"].caller_sends)
    return ends


def numbered(idx: int) -> Verify:
    return Verify(job=1, epoch=0, start=idx, positions_len=1, answer_from=0)


def test_a_slow_reader_does_not_hold_the_sender_and_order_is_kept() -> None:
    """Catches a stage that computes nothing while a long link drains its last frame."""
    near, far = linked()
    began_s = time.monotonic()
    for idx in range(8):  # 6.4 MB; the kernels hold a tenth of it and nobody reads yet
        near.send(numbered(idx), HIDDEN)
    assert time.monotonic() - began_s < 5, "the sender waited for a reader that did not read"
    assert not near._outbox.empty
    for idx in range(8):
        received = far.receive(time.monotonic() + 10)
        assert received.message == numbered(idx)
        assert torch.equal(received.tensors["hidden"], HIDDEN["hidden"])
    near.close()
    far.close()


def test_a_full_outbox_holds_the_sender_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a queue without a bound in front of a slow link."""
    near, far = linked()
    monkeypatch.setattr(near._outbox, "_max_pending_bytes", 1_000_000)
    sent = threading.Event()

    def send_all() -> None:
        for idx in range(12):
            near.send(numbered(idx), HIDDEN)
        sent.set()

    sender = threading.Thread(target=send_all)
    sender.start()
    assert not sent.wait(0.3), "9.6 MB were taken in by a bound of 1 MB"
    for idx in range(12):
        assert far.receive(time.monotonic() + 10).message == numbered(idx)
    sender.join(timeout=10)
    assert sent.is_set()
    near.close()
    far.close()


def test_closing_flushes_what_was_sent() -> None:
    """Catches a last frame lost because its link was closed behind it."""
    near, far = linked()
    for idx in range(3):
        near.send(numbered(idx), HIDDEN)
    got: list[Received] = []

    def read_slowly() -> None:
        time.sleep(0.2)
        got.extend(far.receive(time.monotonic() + 10) for _ in range(3))

    reader = threading.Thread(target=read_slowly)
    reader.start()
    near.close()
    reader.join(timeout=10)
    assert [received.message for received in got] == [numbered(idx) for idx in range(3)]
    with pytest.raises(LinkClosedError, match="closed"):
        far.receive(time.monotonic() + 5)
    far.close()


def test_a_reader_that_never_drains_is_given_up_and_a_slow_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a send without a progress bound, and a bound on the whole instead of on progress."""
    monkeypatch.setattr(link_module, "SEND_PROGRESS_S", 0.6)
    near, far = linked()

    def drain() -> None:
        for _ in range(15):  # 1.5 s in all, never 0.6 s without progress
            far._sock.recv(400_000, socket.MSG_WAITALL)
            time.sleep(0.1)

    reader = threading.Thread(target=drain)
    reader.start()
    for idx in range(7):
        near.send(numbered(idx), HIDDEN)
    reader.join(timeout=20)
    assert not near._outbox._failure, "a slow but moving reader was given up"
    deadline_s = time.monotonic() + 20
    with pytest.raises(LinkClosedError, match="drained nothing"):
        while time.monotonic() < deadline_s:
            near.send(numbered(0), HIDDEN)
            time.sleep(0.05)
    far.close()


def test_a_peer_that_stalls_in_a_frame_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a reader that waits for ever for the rest of a frame; an idle link may wait."""
    monkeypatch.setattr(link_module, "MID_FRAME_STALL_S", 0.3)
    near, far = linked()
    ended: list[Exception] = []
    thread = read_in_background(far, lambda *_: None, lambda _: None, ended.append)
    time.sleep(0.7)
    assert not ended, "an idle link was given up"
    near._sock.send(struct.pack(">BQ", Kind.NOOP, 10))
    thread.join(timeout=10)
    assert ended and "stalled in the middle of a frame" in str(ended[0])
    near.abort()
    far.abort()


def test_the_reader_sorts_out_what_the_peer_may_not_send() -> None:
    """Catches a table of roles that nobody asks."""
    near, far = linked()
    taken: list[object] = []
    stray: list[object] = []
    ended = threading.Event()
    read_in_background(
        far,
        lambda received, _: taken.append(received.message),
        lambda received: stray.append(received.message),
        lambda _: ended.set(),
    )
    reply = Reply(job=1, epoch=0, start=0, ids=(1,), spans=())
    for message in (Noop(), reply, Probe(seq=1), ProbeAck(seq=1), numbered(1)):
        near.send(message)
    near.close()
    assert ended.wait(10)
    assert taken == [Noop(), Probe(seq=1), numbered(1)]
    assert stray == [reply, ProbeAck(seq=1)]
    far.close()


def test_keep_alive_and_no_delay_are_set() -> None:
    near, far = linked()
    for end in (near, far):
        assert end._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert end._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
            assert end._sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        end.close()


def test_a_stranger_link_takes_small_frames_only() -> None:
    """Catches the full limit granted before the peer has said who it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = Link(server.accept()[0], "a stranger")
    assert far._connection.max_payload_len == link_module.HELLO_MAX_LEN
    far.welcome(())
    assert far._connection.max_payload_len == MAX_PAYLOAD_LEN
    near.close()
    far.close()
