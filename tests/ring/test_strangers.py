"""Who gets a link: strangers, impostors and other versions are turned away, and cost nothing."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from dataclasses import replace

import msgspec
import pytest
from oracle_ring import OracleRing, continuation, repetitive_truth

from engine.cluster.node_keys import new_static_key
from engine.coordinator.job import JobRequest, make_levers
from engine.coordinator.ring_links import RingAddresses
from engine.coordinator.session import Session
from engine.errors import LinkClosedError, LonghaulError
from engine.transport import introduce
from engine.transport.credentials import Credentials
from engine.transport.frame import MAX_PAYLOAD_LEN, Kind
from engine.transport.introduce import call
from engine.transport.link import HELLO_MAX_LEN, Link, Listener, connect
from engine.transport.message import PROTOCOL_VERSION, Hello, HelloAck, Reply, Verify

TRUTH = repetitive_truth(alphabet=13, period=11)
PROMPT = tuple(TRUTH([0] * (idx + 1)) for idx in range(30))
REQUEST = JobRequest(
    prompt_ids=PROMPT,
    levers=make_levers(drafter="none", draft_len=0, depth=1, max_new_tokens=20),
    eos_ids=frozenset(),
    nonce="00",
)


def assert_works(ring: OracleRing) -> None:
    with ring.session() as session:
        assert session.run(REQUEST).output_ids == continuation(TRUTH, PROMPT, 20, ())


def test_garbage_does_not_disturb_a_stage() -> None:
    """Catches a listener that dies or blocks on what a stranger sends."""
    too_long = struct.pack(">BQ", Kind.HELLO, MAX_PAYLOAD_LEN + 1)
    unknown_kind = struct.pack(">BQ", 99, 0)
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", too_long, unknown_kind, b""):
            with socket.create_connection(ring.addresses[0]) as stranger:
                stranger.sendall(garbage)
        assert session.run(REQUEST).failure is None
        session.close()
        assert_works(ring)  # the thread that accepts must have survived them as well


def test_a_silent_stranger_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches callers greeted one after another: the first says nothing for a minute."""
    monkeypatch.setattr(introduce, "HANDSHAKE_TIMEOUT_S", 60.0)
    with OracleRing(2, TRUTH) as ring, socket.create_connection(ring.addresses[0]):
        time.sleep(0.1)  # it is being greeted
        assert_works(ring)


def test_a_trickle_does_not_restart_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a handshake whose time starts again with every byte."""
    monkeypatch.setattr(introduce, "HANDSHAKE_TIMEOUT_S", 0.3)
    header = struct.pack(">BQ", Kind.HELLO, 4000)
    with OracleRing(1, TRUTH) as ring, socket.create_connection(ring.addresses[0]) as stranger:
        stranger.settimeout(0.1)
        for value in header + bytes(200):
            try:
                stranger.send(bytes([value]))
                if stranger.recv(100) == b"":
                    return  # given up on, as it should be
            except TimeoutError:
                continue
            except OSError:
                return
    pytest.fail("a stranger that trickles bytes was listened to for 20 s")


def test_more_strangers_than_places_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a thread and a buffer for everyone who connects."""
    monkeypatch.setattr(introduce, "MAX_STRANGERS", 3)
    with OracleRing(1, TRUTH) as ring:
        strangers = [socket.create_connection(ring.addresses[0]) for _ in range(6)]
        turned_away = 0
        for stranger in strangers:
            stranger.settimeout(0.5)
            try:
                turned_away += stranger.recv(1) == b""
            except TimeoutError:
                continue
        for stranger in strangers:
            stranger.close()
        assert turned_away == 3
        time.sleep(0.1)
        assert_works(ring)


def test_a_stranger_cannot_make_a_stage_allocate() -> None:
    """Catches the full frame limit granted before anybody has said who they are."""
    with OracleRing(1, TRUTH) as ring, socket.create_connection(ring.addresses[0]) as stranger:
        # Well before the handshake's own deadline would close it.
        stranger.settimeout(introduce.HANDSHAKE_TIMEOUT_S / 4)
        stranger.sendall(struct.pack(">BQ", Kind.HELLO, HELLO_MAX_LEN + 1))
        assert stranger.recv(1) == b"", "the header alone must end it"


def impostor(ring: OracleRing, **changes: object) -> Credentials:
    return replace(ring.keys.coordinator(), **changes)


@pytest.mark.parametrize("num_stages", [1, 2])
def test_who_does_not_belong_is_told_why(num_stages: int) -> None:
    """Catches a role given to whoever asks for it; each refusal names what is wrong."""
    private, _ = new_static_key()
    with OracleRing(num_stages, TRUTH) as ring:
        plan = dict(ring.keys.coordinator().peer_keys)
        cases: list[tuple[Credentials, str, str]] = [
            (impostor(ring, cluster_id="another"), "control", "cluster"),
            (impostor(ring, suite="aes-256-gcm"), "control", "aes-256-gcm"),
            (impostor(ring), "onward", "role"),
            (impostor(ring, node_id="stage-7"), "control", "stage-7"),
            (impostor(ring, static_private=private), "control", "coordinator"),
            (impostor(ring, cluster_secret=bytes(32)), "control", "cluster secret"),
            (
                impostor(ring, peer_keys={**plan, "stage-0": new_static_key()[1]}),
                "control",
                "stage-0",
            ),
        ]
        if num_stages == 2:
            cases.append((impostor(ring), "return", "return"))  # stage 0 is not the last one
        for credentials, role, why in cases:
            with pytest.raises(LinkClosedError, match=why):
                call(ring.addresses[0], credentials, role, "stage-0", 5)
        with pytest.raises(LonghaulError, match="stage-1"):
            call(ring.addresses[0], impostor(ring), "control", "stage-1", 5)
        assert_works(ring)


def test_version_skew_names_both_versions_before_the_first_job() -> None:
    """Catches two releases that find out in the middle of a job, or never."""
    with OracleRing(1, TRUTH) as ring:
        link = connect(ring.addresses[0], "stage-0", 5)
        link.send(Hello(protocol_version=PROTOCOL_VERSION + 5, node_id="coordinator"))
        answer = link.receive(time.monotonic() + 5).message
        assert isinstance(answer, HelloAck)
        assert answer.protocol_version == PROTOCOL_VERSION
        assert str(PROTOCOL_VERSION) in answer.refused
        assert str(PROTOCOL_VERSION + 5) in answer.refused
        link.close()
    # The same, seen by a newer listener's caller.
    listener = Listener()

    def newer() -> None:
        theirs = listener.accept()
        theirs.receive(time.monotonic() + 5)
        theirs.send(HelloAck(protocol_version=PROTOCOL_VERSION + 5, node_id="stage-0"))

    thread = threading.Thread(target=newer)
    thread.start()
    credentials = ring.keys.coordinator()
    with pytest.raises(LinkClosedError, match="version") as refused:
        call(listener.address, credentials, "control", "stage-0", 5)
    assert str(PROTOCOL_VERSION) in str(refused.value)
    assert str(PROTOCOL_VERSION + 5) in str(refused.value)
    thread.join(timeout=10)
    listener.close()


def test_a_plain_ring_must_be_asked_for_by_name_on_both_sides() -> None:
    """Catches a downgrade: a plain caller on a protected ring, and the reverse."""
    bare = {"static_private": b"", "cluster_secret": b"", "peer_keys": {}}
    with OracleRing(1, TRUTH) as ring, pytest.raises(LinkClosedError, match="plain"):
        call(ring.addresses[0], impostor(ring, suite="plain", **bare), "control", "stage-0", 5)
    sealed = OracleRing(1, TRUTH).keys
    with OracleRing(1, TRUTH, suite="plain") as ring, pytest.raises(LinkClosedError, match="plain"):
        keys = replace(sealed.coordinator(), cluster_id=ring.keys.cluster_id)
        call(ring.addresses[0], keys, "control", "stage-0", 5)


@pytest.mark.parametrize("suite", ["plain", "chacha20-poly1305", "aes-256-gcm"])
def test_every_suite_gives_the_same_ids(suite: str) -> None:
    with OracleRing(3, TRUTH, suite=suite) as ring:
        assert_works(ring)
        assert_works(ring)  # and to the next coordinator, with fresh session keys


class Tamperer:
    """Stands before a listener and flips one bit of one frame, by index, going in."""

    def __init__(self, target: tuple[str, int], flip_frame: int, flip_at: int) -> None:
        self._target = target
        self._flip = (flip_frame, flip_at)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                theirs, _ = self._server.accept()
            except OSError:
                return
            ours = socket.create_connection(self._target)
            threading.Thread(target=self._back, args=(ours, theirs), daemon=True).start()
            threading.Thread(target=self._forth, args=(theirs, ours), daemon=True).start()

    def _back(self, source: socket.socket, sink: socket.socket) -> None:
        while piece := _receive(source, 65536):
            _send(sink, piece)
        _shut(sink)

    def _forth(self, source: socket.socket, sink: socket.socket) -> None:
        reader = source.makefile("rb")
        frame_idx = 0
        while len(header := reader.read(9)) == 9:
            frame = bytearray(header + reader.read(int.from_bytes(header[1:], "big")))
            if frame_idx == self._flip[0]:
                frame[self._flip[1]] ^= 1
            frame_idx += 1
            _send(sink, bytes(frame))
        _shut(sink)

    def close(self) -> None:
        self._server.close()


def _receive(source: socket.socket, limit: int) -> bytes:
    try:
        return source.recv(limit)
    except OSError:
        return b""  # the other side has closed it, which ends the copying


def _send(sink: socket.socket, piece: bytes) -> None:
    try:
        sink.sendall(piece)
    except OSError:
        return  # closed for good, as it should be after a rejection


def _shut(sink: socket.socket) -> None:
    try:
        sink.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already


@pytest.mark.parametrize(
    ("what", "flip_at"), [("a valid kind", 0), ("the payload", 40), ("the tag", -1)]
)
def test_a_tampered_frame_is_rejected_once_and_the_stage_lives(
    what: str, flip_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches tampering that is taken, that goes unlogged, or that costs more than the link."""
    with OracleRing(2, TRUTH) as ring:
        tamperer = Tamperer(ring.addresses[0], flip_frame=6, flip_at=flip_at)
        addresses = RingAddresses(tamperer.address, ring.addresses[1], tuple(ring.addresses))
        with (
            caplog.at_level(logging.WARNING, logger="longhaul"),
            Session(addresses, ring.keys.coordinator(), 400) as session,
        ):
            result = session.run(REQUEST)
        assert result.failure is not None and result.failure.code == "link_lost", what
        # The stage logs after it has closed the link, which is what ended the job.
        deadline_s = time.monotonic() + 10
        rejected: list[str] = []
        while not rejected and time.monotonic() < deadline_s:
            rejected = [line for line in caplog.messages if "does not authenticate" in line]
            time.sleep(0.01)
        assert len(rejected) == 1
        assert "coordinator -> stage-0 (input)" in rejected[0]
        tamperer.close()
        assert_works(ring)


def test_what_a_peer_may_not_send_is_dropped_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Catches a reply taken from the control link, or frames of a job nobody opened."""
    with (
        caplog.at_level(logging.WARNING, logger="longhaul"),
        OracleRing(2, TRUTH) as ring,
        ring.session() as session,
    ):
        first_input: Link = session._links._input
        first_input.send(Reply(job=1, epoch=0, start=0, ids=(1,), spans=()))
        verify = Verify(job=1, epoch=0, start=0, positions_len=1, answer_from=0, ids=(1,))
        first_input.send(verify)
        first_input.send(msgspec.structs.replace(verify, job=2**40))
        result = session.run(REQUEST)
    assert result.failure is None
    assert result.output_ids == continuation(TRUTH, PROMPT, 20, ())
    assert result.statements[0].uncorrelated == 3
    assert any("Reply" in line and "coordinator" in line for line in caplog.messages)
