"""One buffer per message: nothing is copied between packing a tensor and sending its bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import torch

from engine.transport.connection import Connection, finish_frame
from engine.transport.frame import HEADER_LEN, MAX_TAG_LEN
from engine.transport.message import Verify, encode_message_frame
from engine.transport.seal import PlainSealer

HIDDEN_SHAPE = (176, 576)
HIDDEN_BYTES = 176 * 576 * 4  # 405,504
VERIFY = Verify(job=1, epoch=2, start=30, positions_len=176, answer_from=30)


def hidden() -> torch.Tensor:
    return torch.arange(176 * 576, dtype=torch.float32).reshape(HIDDEN_SHAPE)


def peak_bytes(action: Callable[[], object]) -> int:
    """Peak of Python-side allocation while `action` runs; a first run warms caches."""
    action()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_finish_frame_returns_a_view_of_the_same_buffer() -> None:
    """Catches a copy between encoding and sending."""
    kind, buffer, payload_len = encode_message_frame(VERIFY, {"hidden": hidden()})
    view = finish_frame(kind, buffer, payload_len, PlainSealer())
    assert view.obj is buffer
    assert len(view) == HEADER_LEN + payload_len
    assert len(buffer) == HEADER_LEN + payload_len + MAX_TAG_LEN
    buffer[HEADER_LEN] ^= 1
    assert view[HEADER_LEN] == buffer[HEADER_LEN]


def test_finish_frame_allocates_next_to_nothing() -> None:
    """Catches a payload that is copied to put a header before it or a tag behind it."""
    kind, buffer, payload_len = encode_message_frame(VERIFY, {"hidden": hidden()})
    assert payload_len > HIDDEN_BYTES
    assert peak_bytes(lambda: finish_frame(kind, buffer, payload_len, PlainSealer())) < 1024


def test_encoding_allocates_the_message_once() -> None:
    """Catches a tensor that is serialised to bytes before it is packed."""
    named = {"hidden": hidden()}
    peak = peak_bytes(lambda: Connection().send(VERIFY, named))
    assert HIDDEN_BYTES <= peak < HIDDEN_BYTES + 16_384


def test_receiving_allocates_the_message_once() -> None:
    """Catches a payload that is copied to cut tensors out of it."""
    sent = bytes(Connection().send(VERIFY, {"hidden": hidden()}))
    peak = peak_bytes(lambda: Connection().receive_data(sent))
    assert HIDDEN_BYTES <= peak < HIDDEN_BYTES + 16_384


def test_received_tensors_outlive_the_connection() -> None:
    """Catches a payload buffer that is reused while a tensor still looks at it."""
    reader = Connection()
    sent = bytes(Connection().send(VERIFY, {"hidden": hidden()}))
    (first,) = reader.receive_data(sent)
    reader.receive_data(bytes(Connection().send(VERIFY, {"hidden": -hidden()})))
    del reader
    assert torch.equal(first.tensors["hidden"], hidden())
