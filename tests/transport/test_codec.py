"""Messages and tensors survive the wire, however the bytes are cut."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from hypothesis import given, settings

from engine.errors import LocalProtocolError
from engine.transport import frame as frame_module
from engine.transport.connection import Connection
from engine.transport.frame import HEADER_LEN, MAX_PAYLOAD_LEN, Kind, pack_header_into
from engine.transport.message import (
    KIND_OF,
    TYPE_OF,
    AnyMessage,
    Attest,
    Hello,
    HelloAck,
    Noop,
    Probe,
)
from engine.transport.tensor import DTYPES, describe
from tests.transport.connected_pairs import pair
from tests.transport.drawn_messages import MESSAGES, TENSOR_SETS, same, tensors, wire
from tests.transport.long_tag_suite import LONG_TAG


@settings(max_examples=250)
@given(message=MESSAGES, named=TENSOR_SETS)
def test_round_trip(message: AnyMessage, named: dict[str, torch.Tensor]) -> None:
    """Catches a field, dtype, shape or order lost on the wire."""
    sent = wire(message, named)
    (received,) = Connection().receive_data(sent)
    assert same(received, message, named)
    assert received.num_bytes == len(sent)


@settings(max_examples=60)
@given(message=MESSAGES, tensor=tensors())
def test_recv_into_style_equals_receive_data(message: AnyMessage, tensor: torch.Tensor) -> None:
    """Catches a `receive_view` that overlaps, is empty or skips bytes."""
    sent, reader, at = wire(message, {"hidden": tensor}), Connection(), 0
    found = None
    while at < len(sent):
        assert found is None, "a message before its last byte"
        view = reader.receive_view()
        assert len(view) > 0
        size = min(len(view), 7, len(sent) - at)
        view[:size] = sent[at : at + size]
        found = reader.received(size)
        at += size
        assert reader.mid_frame == (at < len(sent))
    assert found is not None and same(found, message, {"hidden": tensor})


def test_header_layout_is_fixed() -> None:
    """Catches a change of byte order, field width or kind numbers: peers would not understand."""
    header = bytearray(HEADER_LEN)
    pack_header_into(header, Kind.VERIFY, 0x0102)
    assert bytes(header) == b"\x04" + bytes(6) + b"\x01\x02"
    assert {kind.name: kind.value for kind in Kind} == {
        "HELLO": 1,
        "HELLO_ACK": 2,
        "RESET": 3,
        "VERIFY": 4,
        "REPLY": 5,
        "ATTEST": 6,
        "NOOP": 7,
        "PROBE": 8,
        "PROBE_ACK": 9,
        "RESET_ACK": 10,
        "STATEMENT": 11,
        "JOB_ERROR": 12,
        "PROBE_ORDER": 13,
        "PROBE_REPORT": 14,
        "HELLO_FINISH": 15,
        "WELCOME": 16,
        "CHALLENGE": 17,
        "EVIDENCE_REPORT": 18,
    }


def test_every_kind_has_one_type() -> None:
    """Catches a kind that cannot be decoded, or two types behind one kind."""
    assert set(TYPE_OF) == set(Kind)
    assert len(KIND_OF) == len(TYPE_OF)


def test_known_bytes() -> None:
    """Catches a silent change of the payload layout."""
    sent = wire(Probe(seq=7), {"x": torch.tensor([1, 2], dtype=torch.uint8)})
    header = b"\x92\x81\xa3seq\x07\x91\x93\xa1x\xa2u8\x91\x02"
    payload = len(header).to_bytes(4, "big") + header + b"\x01\x02"
    assert sent == b"\x08" + len(payload).to_bytes(8, "big") + payload


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_each_dtype_by_name(name: str) -> None:
    """Catches two dtypes that swap names: item sizes alone would not show f16 against bf16."""
    meta = describe("x", torch.zeros(2, 3, dtype=DTYPES[name]))
    assert (meta.dtype, meta.shape) == (name, (2, 3))
    assert meta.num_bytes() == 6 * DTYPES[name].itemsize


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda tensor: tensor,
    lambda tensor: tensor.T,
    lambda tensor: tensor[::2, 1::3],
    lambda tensor: tensor[1:, 1:],
    lambda tensor: tensor[:1].expand(3, 6),
    lambda tensor: tensor[2, 3],
    lambda tensor: tensor[:1, 0],
    lambda tensor: tensor[2:, 4][1:],
    lambda tensor: tensor[:0],
    lambda tensor: tensor[:, :0].T,
    lambda tensor: tensor.reshape(2, 2, 3, 2),
]


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_travel_in_row_order(
    name: str, layout: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Catches views sent in storage order, and dtypes, no element or no dimension that break it."""
    whole = (torch.arange(24, dtype=torch.uint8).reshape(4, 6) % 3).to(DTYPES[name])
    tensor = layout(whole)
    (received,) = Connection().receive_data(wire(Noop(), {"x": tensor}))
    arrived = received.tensors["x"]
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert arrived.float().tolist() == tensor.float().tolist()


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (torch.zeros(1, dtype=torch.complex64), "complex64 has no wire name; valid: .*bf16"),
        (torch.zeros(1, 1, 1, 1, 1), "4 dimensions"),
        (torch.zeros(2**15, 1, 1).expand(2**15, 2**14, 0), "elements"),
        (torch.zeros(2, device="meta"), "on meta"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
    ],
)
def test_tensors_that_cannot_be_sent_are_our_own_fault(tensor: torch.Tensor, match: str) -> None:
    """Catches a tensor sent under another dtype's name, or one that every peer would refuse."""
    connection = Connection()
    with pytest.raises(LocalProtocolError, match=match):
        connection.send(Noop(), {"x": tensor})
    connection.send(Noop())  # and nothing is broken by it


def test_gradients_are_not_in_the_way() -> None:
    """Catches a tensor that cannot be read because it can be trained."""
    (received,) = Connection().receive_data(wire(Noop(), {"x": torch.ones(2, requires_grad=True)}))
    assert received.tensors["x"].tolist() == [1.0, 1.0]


def test_hello_is_understood_across_versions() -> None:
    """Catches a hello too strict to tell both versions: fields come and go, the number stays."""
    fields = {"protocol_version": 9, "later": [1, 2]}
    for kind, message in (
        (Kind.HELLO, Hello(protocol_version=9)),
        (Kind.HELLO_ACK, HelloAck(protocol_version=9)),
    ):
        header = msgspec.msgpack.encode([fields, []])
        payload = len(header).to_bytes(4, "big") + header
        (received,) = Connection().receive_data(bytes(Connection().send_payload(kind, payload)))
        assert received.message == message


def test_borrowed_payloads_go_the_same_way() -> None:
    """Catches a second way to send: a borrowed payload makes the same frame, and stays as it is."""
    frame = wire(Probe(seq=7), {"x": torch.arange(5)})
    payload = bytearray(frame[HEADER_LEN:])
    kept = bytes(payload)
    a, _ = pair(LONG_TAG)
    b, _ = pair(LONG_TAG)
    assert Connection().send_payload(Kind.PROBE, memoryview(payload)) == frame
    sealed = bytes(a.send_payload(Kind.PROBE, memoryview(payload)))
    assert sealed == b.send(Probe(seq=7), {"x": torch.arange(5)})
    assert payload == kept


def test_own_oversize_payload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a frame that every peer would refuse, found out only over there."""
    with pytest.raises(LocalProtocolError, match="limit"):
        pack_header_into(bytearray(HEADER_LEN), Kind.NOOP, MAX_PAYLOAD_LEN + 1)
    monkeypatch.setattr(frame_module, "MAX_PAYLOAD_LEN", 64)
    with pytest.raises(LocalProtocolError, match="limit"):
        Connection().send(Noop(), {"x": torch.zeros(65, dtype=torch.uint8)})


def test_own_oversize_message_is_refused() -> None:
    """Catches large values that belong into a tensor: the peer refuses such a header."""
    frames = tuple((0, 2**31 + start) for start in range(150_000))
    with pytest.raises(LocalProtocolError, match="tensors"):
        Connection().send(Attest(job=1, epoch=0, frames=frames))
