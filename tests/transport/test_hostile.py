"""Whatever a stranger sends: one `RemoteProtocolError`, nothing allocated, connection dead."""

from __future__ import annotations

import random
import struct
import tracemalloc

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import LocalProtocolError, RemoteProtocolError
from engine.transport.connection import Connection
from engine.transport.frame import HEADER_LEN, MAX_PAYLOAD_LEN, Kind
from engine.transport.message import AnyMessage, Noop, Probe, Reply
from tests.transport.drawn_messages import MESSAGES, TENSOR_SETS, wire


def raw_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BQ", kind, len(payload)) + payload


def crafted(metas: object, blob: bytes, message: AnyMessage | None = None, kind: int = 7) -> bytes:
    """A frame whose tensor list says whatever we like."""
    header = msgspec.msgpack.encode([message or Noop(), metas])
    return raw_frame(kind, struct.pack(">I", len(header)) + header + blob)


def assert_refused(sent: bytes, match: str | None = None) -> None:
    """Refused with the one error, and the connection is dead for good."""
    reader = Connection()
    with pytest.raises(RemoteProtocolError, match=match):
        list(reader.receive_data(sent))
    for reuse in (
        reader.receive_view,
        lambda: reader.send(Noop()),
        lambda: list(reader.receive_data(wire(Noop()))),
    ):
        with pytest.raises(LocalProtocolError, match="dead"):
            reuse()


@settings(max_examples=300)
@given(garbage=st.binary(min_size=1, max_size=200), kind=st.integers(0, 255))
def test_garbage_payloads(garbage: bytes, kind: int) -> None:
    """Catches any other exception than the protocol's own: it would kill the stage."""
    reader = Connection()
    try:
        list(reader.receive_data(raw_frame(kind, garbage)))
    except RemoteProtocolError:
        with pytest.raises(LocalProtocolError):
            reader.receive_view()


@settings(max_examples=300)
@given(message=MESSAGES, named=TENSOR_SETS, seed=st.integers(0, 2**32))
def test_mutated_frames(message: AnyMessage, named: dict[str, torch.Tensor], seed: int) -> None:
    """Catches decoders that trust a nearly right frame: flips, cuts and stretches."""
    rng = random.Random(seed)
    payload = bytearray(wire(message, named)[HEADER_LEN:])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(payload))
        choice = rng.randrange(3)
        if choice == 0:
            payload[at] ^= 1 << rng.randrange(8)
        elif choice == 1 and len(payload) > 1:
            del payload[at : at + rng.randrange(1, 5)]
        else:
            payload[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
        if not payload:
            payload = bytearray(b"\0")
    reader = Connection()
    try:
        received = list(reader.receive_data(raw_frame(wire(message)[0], bytes(payload))))
    except RemoteProtocolError:
        with pytest.raises(LocalProtocolError):
            reader.send(Noop())
    else:
        assert len(received) == 1


@pytest.mark.parametrize("payload_len", [MAX_PAYLOAD_LEN + 1, 2**40, 2**64 - 1])
def test_oversize_header_is_refused_before_its_body(payload_len: int) -> None:
    """Catches memory that a stranger can make us allocate with nine bytes."""
    tracemalloc.start()
    try:
        assert_refused(struct.pack(">BQ", Kind.VERIFY, payload_len), match="limit")
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [0, max(Kind) + 1, 99, 255])
def test_unknown_kind_on_a_plain_connection(kind: int) -> None:
    """Catches a plain connection that reads a whole body for a kind nobody knows."""
    assert_refused(struct.pack(">BQ", kind, 1000), match=f"unknown message kind {kind}")


@pytest.mark.parametrize(
    ("shape", "blob_len"),
    [([3], 11), ([3], 13), ([3], 0), ([], 0), ([], 3), ([2, 2], 17), ([0], 4), ([1, 1, 1, 2], 4)],
)
def test_shape_and_bytes_must_agree(shape: list[int], blob_len: int) -> None:
    """Catches a tensor viewed beyond its bytes, or bytes that no tensor owns."""
    assert_refused(crafted([["x", "f32", shape]], bytes(blob_len)))


@pytest.mark.parametrize(
    "shape",
    [[-1], [2, -3], [-2, -2], [2**63, 2**63], [2**62], [2**64 - 1], [1] * 5, [2**31, 2**31, 4]],
)
def test_impossible_shapes(shape: list[int]) -> None:
    """Catches negative sizes that multiply to a positive one, overflow and deep shapes."""
    assert_refused(crafted([["x", "f32", shape]], bytes(16)))


@pytest.mark.parametrize(
    "shape",
    [
        [0, 2**63],
        [2**64 - 1, 0],
        [2**62, 2**62, 0],
        [0, 2**28 + 1],
        [0, 2**28, 2**28, 2**28],
        [2**28, 2**28, 2**28, 0],
        [2**14, 0, 2**15],
    ],
)
def test_huge_dimensions_beside_a_zero_are_refused(shape: list[int]) -> None:
    """Catches a shape of no bytes whose other sizes, or their product, overflow inside torch."""
    assert_refused(crafted([["x", "f32", shape]], b""), match="impossible")


@pytest.mark.parametrize("blob", [b"\x02\0\0", b"\0\0\xff", b"\x01\x80\x01"])
def test_bools_that_are_neither(blob: bytes) -> None:
    """Catches a mask that counts more than its elements."""
    assert_refused(crafted([["x", "bool", [3]]], blob), match="0 or 1")


def test_tensor_name_twice() -> None:
    """Catches a second tensor that replaces the first in silence."""
    meta = ["x", "u8", [2]]
    assert_refused(crafted([meta, meta], b"abcd"), match="twice")


def test_trailing_bytes() -> None:
    """Catches bytes that ride along unseen."""
    assert_refused(crafted([], b"x"))
    assert_refused(crafted([["x", "u8", [1]]], b"xy"))


@pytest.mark.parametrize("name", ["f64", "", "F32", "torch.float32"])
def test_unknown_dtype(name: str) -> None:
    """Catches a dtype that is looked up anywhere but in the table."""
    assert_refused(crafted([["x", name, [1]]], bytes(8)), match="unknown dtype")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0",
        b"\0\0\0",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x05abcd",
        b"\0\0\0\x01\xc0",
        b"\0\0\0\x01\x90",
    ],
)
def test_broken_payload_headers(payload: bytes) -> None:
    """Catches a header length that is used before it is checked."""
    assert_refused(raw_frame(Kind.NOOP, payload))


def test_header_longer_than_its_payload() -> None:
    """Catches a header cut at the payload's end and taken for whole."""
    header = msgspec.msgpack.encode([Noop(), []])
    payload = struct.pack(">I", len(header) + 1) + header
    assert_refused(raw_frame(Kind.NOOP, payload), match="longer than its payload")


def test_unknown_and_missing_fields() -> None:
    """Catches a lenient decoder: a misspelt lever would fall back to a default."""
    for fields in ({"seq": 1, "extra": 2}, {}, {"seq": "1"}, {"seq": 1.0}, {"seq": None}, [1]):
        header = msgspec.msgpack.encode([fields, []])
        payload = struct.pack(">I", len(header)) + header
        assert_refused(raw_frame(Kind.PROBE, payload), match="does not decode")


@pytest.mark.parametrize("name", ["\x1b[2J\x1b[31m", "a\nb: all is well", "\u202e", "x" * 3000])
def test_errors_are_fit_for_a_terminal(name: str) -> None:
    """Catches a stranger's field name that reaches a log as control characters or whole pages."""
    header = msgspec.msgpack.encode([{name: 1}, []])
    with pytest.raises(RemoteProtocolError, match="does not decode") as caught:
        list(Connection().receive_data(raw_frame(7, struct.pack(">I", len(header)) + header)))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "meta",
    [
        ["x" * 3000, "f99", [1]],
        ["hidden", "y" * 3000, [1]],
        ["x" * 3000, "f32", [1] * 2000],
        ["x" * 3000, "f32", [9]],
        ["x" * 3000, "bool", [1]],
    ],
)
def test_errors_about_tensors_are_short(meta: list[object]) -> None:
    """Catches a peer's tensor name, dtype or shape quoted at any length."""
    header = msgspec.msgpack.encode([Noop(), [meta]])
    payload = struct.pack(">I", len(header)) + header + b"\x07"
    with pytest.raises(RemoteProtocolError, match="tensor") as caught:
        list(Connection().receive_data(raw_frame(Kind.NOOP, payload)))
    assert len(str(caught.value)) < 400


def test_message_of_another_kind() -> None:
    """Catches a body that is decoded by its shape instead of by its kind."""
    reply = Reply(job=1, epoch=0, start=0, ids=(), spans=())
    assert_refused(crafted([], b"", reply, Kind.VERIFY))
    assert_refused(crafted([], b"", Probe(seq=1), Kind.NOOP))


@pytest.mark.parametrize("bomb", [b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\x91" * 100_000])
def test_bombs_allocate_nothing(bomb: bytes) -> None:
    """Catches arrays allocated by their announced length, and nesting without an end."""
    honest = msgspec.msgpack.encode(Reply(job=1, epoch=0, start=0, ids=(), spans=()))
    header = b"\x92" + honest.replace(b"\xa3ids\x90", b"\xa3ids" + bomb) + b"\x90"
    payload = struct.pack(">I", len(header)) + header
    tracemalloc.start()
    try:
        assert_refused(raw_frame(Kind.REPLY, payload))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_long_header_is_refused() -> None:
    """Catches a peer's list that takes eight bytes here for each of its own."""
    ids = tuple(range(100)) * 11_000
    assert_refused(
        crafted([], b"", Reply(job=1, epoch=0, start=0, ids=ids, spans=()), Kind.REPLY),
        match="limit of 1048576",
    )


def test_received_after_death_is_refused() -> None:
    """Catches a dead connection that goes on counting bytes when the view is not asked for."""
    reader = Connection()
    with pytest.raises(RemoteProtocolError):
        list(reader.receive_data(raw_frame(Kind.NOOP, b"?")))
    with pytest.raises(LocalProtocolError):
        reader.received(HEADER_LEN)
