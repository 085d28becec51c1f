"""Messages and tensors survive the wire, however the bytes are cut."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import LocalProtocolError
from engine.transport import frame as frame_module
from engine.transport.connection import Connection
from engine.transport.frame import HEADER_LEN, MAX_PAYLOAD_LEN, Kind, pack_header_into
from engine.transport.message import KIND_OF, TYPE_OF, Message, Noop, Probe
from engine.transport.tensor import DTYPES, describe
from tests.transport.drawn_messages import MESSAGES, TENSOR_SETS, same, tensors, wire


@settings(max_examples=250)
@given(message=MESSAGES, named=TENSOR_SETS)
def test_round_trip(message: Message, named: dict[str, torch.Tensor]) -> None:
    """Catches a field, dtype, shape or order lost on the wire."""
    sent = wire(message, named)
    (received,) = Connection().receive_data(sent)
    assert same(received, message, named)
    assert received.num_bytes == len(sent)


@settings(max_examples=120)
@given(
    batch=st.lists(st.tuples(MESSAGES, TENSOR_SETS), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_splits_do_not_matter(
    batch: list[tuple[Message, dict[str, torch.Tensor]]], seed: int
) -> None:
    """Catches state lost between reads: one chunk, byte by byte and random cuts are equal."""
    stream = b"".join(wire(message, named) for message, named in batch)
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    for chunks in ([stream], [bytes([byte]) for byte in stream], pieces):
        reader = Connection()
        received = [message for chunk in chunks for message in reader.receive_data(chunk)]
        assert len(received) == len(batch)
        for one, (message, named) in zip(received, batch, strict=True):
            assert same(one, message, named)
        assert not reader.mid_frame


@settings(max_examples=60)
@given(message=MESSAGES, tensor=tensors())
def test_recv_into_style_equals_receive_data(message: Message, tensor: torch.Tensor) -> None:
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


def test_unknown_local_dtype_is_our_own_fault() -> None:
    """Catches a tensor that is sent under another dtype's name."""
    with pytest.raises(LocalProtocolError, match="complex"):
        Connection().send(Noop(), {"x": torch.zeros(1, dtype=torch.complex64)})


def test_non_contiguous_tensor_is_sent_in_order() -> None:
    """Catches a transposed view that is sent in storage order."""
    tensor = torch.arange(12, dtype=torch.int32).reshape(3, 4).T
    (received,) = Connection().receive_data(wire(Noop(), {"x": tensor}))
    assert received.tensors["x"].tolist() == tensor.tolist()


def test_own_oversize_payload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a frame that every peer would refuse, found out only over there."""
    with pytest.raises(LocalProtocolError, match="limit"):
        pack_header_into(bytearray(HEADER_LEN), Kind.NOOP, MAX_PAYLOAD_LEN + 1)
    monkeypatch.setattr(frame_module, "MAX_PAYLOAD_LEN", 64)
    with pytest.raises(LocalProtocolError, match="limit"):
        Connection().send(Noop(), {"x": torch.zeros(65, dtype=torch.uint8)})
