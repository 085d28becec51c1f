"""Read order and classification of DESIGN section 4, under every suite and plain."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import FrameRejected, LocalProtocolError, RemoteProtocolError
from engine.transport import connection as connection_module
from engine.transport.connection import Connection
from engine.transport.frame import HEADER_LEN, MAX_TAG_LEN, Kind
from engine.transport.message import AnyMessage, Noop, Probe, ProbeAck
from engine.transport.seal import PLAIN, AeadSuite, FrameSuite
from tests.transport.connected_pairs import EVERY, PROTECTED, everything, pair, suite_name
from tests.transport.drawn_messages import MESSAGES, TENSOR_SETS
from tests.transport.long_tag_suite import LONG_TAG

each = pytest.mark.parametrize("suite", EVERY, ids=suite_name)
each_protected = pytest.mark.parametrize("suite", PROTECTED, ids=suite_name)


def read(reader: Connection, stream: bytes) -> list[AnyMessage]:
    return [received.message for received in reader.receive_data(stream)]


def assert_dead(connection: Connection) -> None:
    """Neither reads nor writes, ever again."""
    uses: list[Callable[[], object]] = [
        connection.receive_view,
        lambda: connection.received(1),
        lambda: read(connection, b"x"),
        lambda: connection.send(Noop()),
        lambda: connection.send_payload(Kind.NOOP, b""),
        lambda: connection.protect(PLAIN, b"", b""),
    ]
    for use in uses:
        with pytest.raises(LocalProtocolError, match="dead"):
            use()


def assert_rejected(reader: Connection, stream: bytes) -> None:
    """An authentication failure, told with peer and direction; the connection dies of it."""
    with pytest.raises(FrameRejected) as caught:
        read(reader, stream)
    assert (caught.value.peer, caught.value.direction) == ("a", "a -> b (test)")
    assert_dead(reader)


def assert_broken(reader: Connection, stream: bytes, match: str) -> None:
    """Against the protocol, but no authentication failure; the connection dies of it too."""
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        read(reader, stream)
    assert not isinstance(caught.value, FrameRejected)
    assert_dead(reader)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Raw kinds that were interpreted."""
    seen: list[int] = []
    original = connection_module.interpret_kind

    def spy(raw_kind: int, authenticated: bool = False) -> Kind:
        seen.append(raw_kind)
        return original(raw_kind, authenticated)

    monkeypatch.setattr(connection_module, "interpret_kind", spy)
    return seen


@each
def test_messages_pass_both_ways(suite: FrameSuite) -> None:
    """Catches a tag length that is assumed, swapped directions, and frames sent in the clear."""
    tensor = torch.arange(2000, dtype=torch.float32)
    a, b = pair(suite)
    for seq in range(5):
        for sender, reader in ((a, b), (b, a)):
            sent = bytes(sender.send(Probe(seq=seq), {"x": tensor}))
            plain = bytes(Connection().send(Probe(seq=seq), {"x": tensor}))
            assert len(sent) == len(plain) + suite.tag_len
            assert struct.unpack(">BQ", sent[:HEADER_LEN]) == (Kind.PROBE, len(sent) - HEADER_LEN)
            assert (plain[400:500] in sent) != suite.protected
            (received,) = reader.receive_data(sent)
            assert received.message == Probe(seq=seq)
            assert torch.equal(received.tensors["x"], tensor)
            assert received.num_bytes == len(sent)


# -- kinds ---------------------------------------------------------------------------------------


@each_protected
@pytest.mark.parametrize("kind", [Kind.PROBE_ACK, Kind.NOOP, 0, 17, 200, 255])
def test_tampered_kind(suite: AeadSuite, kind: int, interpreted: list[int]) -> None:
    """Catches a kind, valid or not, that is believed before its frame opens."""
    a, b = pair(suite)
    sent = bytearray(a.send(Probe(seq=1)))
    sent[0] = kind
    assert read(b, bytes(sent[:-1])) == []
    assert_rejected(b, bytes(sent[-1:]))
    assert interpreted == []


def test_tampered_valid_kind_on_a_plain_connection() -> None:
    """States what plain means: a changed kind is believed."""
    a, b = pair(PLAIN)
    sent = bytearray(a.send(Probe(seq=1)))
    sent[0] = Kind.PROBE_ACK
    assert read(b, bytes(sent)) == [ProbeAck(seq=1)]


@pytest.mark.parametrize("kind", [0, max(Kind) + 1, 99, 255])
def test_invalid_kind_on_a_plain_connection(kind: int) -> None:
    """Catches a plain connection that reads a body for a kind nobody knows, or says rejected."""
    _, b = pair(PLAIN)
    assert_broken(b, struct.pack(">BQ", kind, 1000), f"^unknown message kind {kind}$")


@each_protected
def test_unknown_kind_that_authenticates(suite: AeadSuite, interpreted: list[int]) -> None:
    """Catches version skew told as tampering, or as a stranger's noise."""
    a, b = pair(suite)
    frame = bytes(a.send_payload(200, b"what a later version sends"))
    assert_broken(b, frame, "^unknown message kind 200 from an authenticated peer$")
    assert interpreted == [200]


@each
def test_authenticated_nonsense_is_no_rejection(suite: FrameSuite) -> None:
    """Catches an honest key with a wrong payload told as tampering."""
    a, b = pair(suite)
    assert_broken(b, bytes(a.send_payload(Kind.NOOP, b"\0\0")), "no header")


# -- lengths -------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("kind", [Kind.VERIFY, Kind.NOOP])
@pytest.mark.parametrize("payload_len", [2**20 + 1, 2**40, 2**64 - 1])
def test_oversize_is_refused_from_its_header(
    suite: FrameSuite, payload_len: int, kind: int
) -> None:
    """Catches a body awaited or allocated first, and a length counted as tampering."""
    _, b = pair(suite)
    header = struct.pack(">BQ", kind, payload_len)
    tracemalloc.start()
    try:
        assert_broken(b, header, "limit")
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@each
def test_limit_counts_the_tag(suite: FrameSuite) -> None:
    """Catches a limit that is off by the tag: the header's length includes it."""
    size = len(pair(suite)[0].send(Noop())) - HEADER_LEN
    a, b = pair(suite, max_payload_len=size)
    assert read(b, bytes(a.send(Noop()))) == [Noop()]
    a, b = pair(suite, max_payload_len=size - 1)
    assert_broken(b, bytes(a.send(Noop())), "limit")


@each_protected
def test_oversize_with_an_unknown_kind(suite: AeadSuite, interpreted: list[int]) -> None:
    """Catches a kind that is looked at before the length."""
    _, b = pair(suite)
    assert_broken(b, struct.pack(">BQ", 200, 2**40), "limit")
    assert interpreted == []


@each_protected
def test_truncated_frames(suite: AeadSuite) -> None:
    """Catches a frame cut at any length, its header set to match, down to no tag and to nothing."""
    body_len = len(pair(suite)[0].send(Probe(seq=1))) - HEADER_LEN
    for cut_len in range(body_len):
        a, b = pair(suite)
        sent = bytes(a.send(Probe(seq=1)))[: HEADER_LEN + cut_len]
        assert_rejected(b, sent[:1] + struct.pack(">Q", cut_len) + sent[HEADER_LEN:])


@each_protected
def test_frame_cut_off_on_the_way(suite: AeadSuite) -> None:
    """Catches a message that comes out before its last byte, or of two frames run together."""
    a, b = pair(suite)
    first, second = bytes(a.send(Probe(seq=1))), bytes(a.send(Probe(seq=2)))
    assert read(b, first[:-1]) == []
    assert b.mid_frame
    assert_rejected(b, second)


# -- bytes and order -----------------------------------------------------------------------------


@each_protected
def test_every_flipped_bit(suite: AeadSuite, interpreted: list[int]) -> None:
    """Catches any bit of kind, length, payload or tag outside the seal, or read before it opens."""
    limit = 2**12
    for at in range(8 * len(pair(suite)[0].send(Probe(seq=1)))):
        a, b = pair(suite, max_payload_len=limit)
        sent = bytearray(a.send(Probe(seq=1)))
        sent[at // 8] ^= 1 << at % 8
        _, announced_len = struct.unpack(">BQ", sent[:HEADER_LEN])
        if announced_len > limit:
            assert_broken(b, bytes(sent), "limit")
        else:
            assert_rejected(b, bytes(sent) + bytes(limit))  # a longer body than sent must come
        assert interpreted == [], at


@each_protected
def test_replayed_frames(suite: AeadSuite) -> None:
    """Catches a frame that opens twice."""
    a, b = pair(suite)
    frames = [bytes(a.send(Probe(seq=seq))) for seq in range(3)]
    assert read(b, b"".join(frames)) == [Probe(seq=seq) for seq in range(3)]
    assert_rejected(b, frames[2])
    for replayed in (0, 1):
        a, b = pair(suite)
        assert len(read(b, frames[0] + frames[1])) == 2
        assert_rejected(b, frames[replayed])


@each_protected
def test_reordered_and_dropped_frames(suite: AeadSuite) -> None:
    """Catches frames that open out of their order."""
    a, b = pair(suite)
    first, second, third = (bytes(a.send(Probe(seq=seq))) for seq in range(3))
    assert_rejected(b, second + first)
    _, b = pair(suite)
    assert read(b, first) == [Probe(seq=0)]
    assert_rejected(b, third)


@each_protected
def test_reflected_frames(suite: AeadSuite) -> None:
    """Catches one key for both directions: our own frames must not open for us."""
    a, _ = pair(suite)
    sent = bytes(a.send(Probe(seq=1)))
    with pytest.raises(FrameRejected) as caught:
        read(a, sent)
    assert (caught.value.peer, caught.value.direction) == ("b", "b -> a (test)")
    assert_dead(a)


@each_protected
def test_plain_frames_on_a_protected_connection(suite: AeadSuite) -> None:
    """Catches a fall back to plain."""
    _, b = pair(suite)
    assert_rejected(b, bytes(Connection().send(Probe(seq=1))) + bytes(64))


# -- streams -------------------------------------------------------------------------------------


@each
def test_messages_before_a_broken_frame_come_out(suite: FrameSuite) -> None:
    """Catches messages that vanish because the chunk they came in ends badly."""
    a, b = pair(suite)
    stream = b"".join(bytes(a.send(Probe(seq=seq))) for seq in range(2))
    messages = b.receive_data(stream + struct.pack(">BQ", Kind.NOOP, 2**40))
    assert [next(messages).message, next(messages).message] == [Probe(seq=0), Probe(seq=1)]
    with pytest.raises(RemoteProtocolError, match="limit"):
        next(messages)
    assert_dead(b)


@settings(max_examples=60)
@given(
    suite=st.sampled_from(EVERY),
    batch=st.lists(st.tuples(MESSAGES, TENSOR_SETS), min_size=1, max_size=3),
    flip=st.none() | st.integers(0, 2**20),
    cuts=st.lists(st.integers(0, 2**20), max_size=8),
)
def test_splits_do_not_matter(
    suite: FrameSuite,
    batch: list[tuple[AnyMessage, dict[str, torch.Tensor]]],
    flip: int | None,
    cuts: list[int],
) -> None:
    """Catches state lost between reads: one chunk, byte by byte and any cuts give the same.

    Flipped bits too: the same messages come out, then the same error.
    """
    small = replace(suite, rekey_frames=2) if isinstance(suite, AeadSuite) else suite
    a, _ = pair(small)
    stream = bytearray(b"".join(bytes(a.send(*one)) for one in batch))
    if flip is not None:
        stream[flip // 8 % len(stream)] ^= 1 << flip % 8
    ends = sorted(cut % (len(stream) + 1) for cut in cuts)
    pieces = [bytes(stream[x:y]) for x, y in zip([0, *ends], [*ends, len(stream)], strict=True)]
    whole = everything(pair(small)[1], [bytes(stream)])
    assert everything(pair(small)[1], [bytes([byte]) for byte in stream]) == whole
    assert everything(pair(small)[1], pieces) == whole
    if flip is None:
        assert [seen[0] for seen in whole] == [message for message, _ in batch]


@settings(max_examples=150)
@given(suite=st.sampled_from(EVERY), kind=st.integers(0, 255), garbage=st.binary(max_size=120))
def test_only_protocol_errors_come_out(suite: FrameSuite, kind: int, garbage: bytes) -> None:
    """Catches any other exception: sent by a stranger, or sealed by a peer who holds the keys."""
    a, b = pair(suite)
    seen = everything(b, [bytes(a.send_payload(kind, garbage))])
    assert not seen or seen[0][0] is not FrameRejected
    _, b = pair(suite)
    seen = everything(b, [struct.pack(">BQ", kind, len(garbage)) + garbage])
    assert (seen[0][0] is FrameRejected) == suite.protected
    everything(pair(suite)[1], [garbage])


# -- protecting ----------------------------------------------------------------------------------


@each
def test_protection_starts_between_two_frames(suite: FrameSuite) -> None:
    """Catches protection that reaches back or comes late: plain, then sealed, in one chunk."""
    a, b = Connection(), Connection()
    stream = bytes(a.send(Probe(seq=1)))
    a.protect(suite, bytes(32), bytes(32))
    stream += bytes(a.send(Probe(seq=2)))
    seen = []
    for received in b.receive_data(stream):
        seen.append(received.message)
        if len(seen) == 1:
            b.identify("a", "a -> b (test)")
            b.protect(suite, bytes(32), bytes(32))
    assert seen == [Probe(seq=1), Probe(seq=2)]


@each
def test_protection_is_for_once(suite: FrameSuite) -> None:
    """Catches keys that are replaced, above all by none: each nonce would be used again."""
    a, _ = pair(suite)
    with pytest.raises(LocalProtocolError, match=suite.name):
        a.protect(PLAIN, b"", b"")


def test_protection_within_a_frame_is_refused() -> None:
    """Catches a frame whose header is plain and whose body is sealed."""
    b = Connection()
    assert read(b, bytes(Connection().send(Noop()))[:3]) == []
    with pytest.raises(LocalProtocolError, match="between frames"):
        b.protect(LONG_TAG, bytes(32), bytes(32))


def test_a_tag_longer_than_its_room_is_refused() -> None:
    """Catches a seal that writes past the frame's buffer."""
    with pytest.raises(LocalProtocolError, match="limit is 32"):
        Connection().protect(replace(LONG_TAG, tag_len=MAX_TAG_LEN + 1), bytes(32), bytes(32))


@each_protected
def test_identify_names_the_peer_in_later_rejections(suite: AeadSuite) -> None:
    """Catches a rejection logged under the name from before the handshake."""
    _, b = pair(suite)
    b.identify("stage-3", "stage-3 -> coordinator (return)")
    with pytest.raises(FrameRejected, match=r"from stage-3 \(stage-3 -> coordinator \(return\)\)"):
        read(b, struct.pack(">BQ", 1, 0))
