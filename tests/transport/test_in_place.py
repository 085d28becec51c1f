"""One buffer per message: nothing is copied between packing a tensor and sending its bytes."""

from __future__ import annotations

import ctypes
import tracemalloc
from collections.abc import Callable

import pytest
import torch

from engine.transport.codec import encode_message_frame
from engine.transport.connection import Connection, finish_frame
from engine.transport.frame import HEADER_LEN, MAX_TAG_LEN, Kind
from engine.transport.message import Verify
from engine.transport.seal import FrameSuite
from tests.transport.connected_pairs import EVERY, pair, suite_name

HIDDEN_SHAPE = (176, 576)
HIDDEN_BYTES = 176 * 576 * 4  # 405,504
SECRET = bytes(32)
VERIFY = Verify(job=1, epoch=2, start=30, positions_len=176, answer_from=30)


each = pytest.mark.parametrize("suite", EVERY, ids=suite_name)


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


def address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@each
def test_finish_frame_works_on_the_same_buffer(suite: FrameSuite) -> None:
    """Catches a copy between encoding and sending, and a tag whose length is assumed."""
    kind, buffer, payload_len = encode_message_frame(VERIFY, {"hidden": hidden()})
    before = address(buffer)
    view = finish_frame(kind, buffer, payload_len, suite.sealer(SECRET))
    assert view.obj is buffer
    assert address(buffer) == before == ctypes.addressof(ctypes.c_char.from_buffer(view))
    assert len(view) == HEADER_LEN + payload_len + suite.tag_len
    assert len(buffer) == HEADER_LEN + payload_len + MAX_TAG_LEN


@each
def test_finish_frame_allocates_next_to_nothing(suite: FrameSuite) -> None:
    """Catches a payload that is copied to put a header before it, a tag behind it or to seal it."""
    kind, buffer, payload_len = encode_message_frame(VERIFY, {"hidden": hidden()})
    assert payload_len > HIDDEN_BYTES
    sealer = suite.sealer(SECRET)
    assert peak_bytes(lambda: finish_frame(kind, buffer, payload_len, sealer)) <= 1024


@each
def test_encoding_allocates_the_message_once(suite: FrameSuite) -> None:
    """Catches a tensor that is serialised to bytes before it is packed."""
    named, (sender, _) = {"hidden": hidden()}, pair(suite)
    peak = peak_bytes(lambda: sender.send(VERIFY, named))
    assert HIDDEN_BYTES <= peak < HIDDEN_BYTES + 16_384


@each
def test_borrowed_payloads_are_copied_once(suite: FrameSuite) -> None:
    """Catches a payload that is copied to be framed and again to be sealed."""
    sender, _ = pair(suite)
    payload = bytes(HIDDEN_BYTES)
    peak = peak_bytes(lambda: sender.send_payload(Kind.VERIFY, payload))
    assert HIDDEN_BYTES <= peak < HIDDEN_BYTES + 16_384


@each
def test_receiving_allocates_the_message_once(suite: FrameSuite) -> None:
    """Catches a payload that is copied to open it, or to cut tensors out of it."""
    sender, reader = pair(suite)
    frames = [bytes(sender.send(VERIFY, {"hidden": hidden()})) for _ in range(2)]
    peak = peak_bytes(lambda: list(reader.receive_data(frames.pop(0))))
    assert HIDDEN_BYTES <= peak < HIDDEN_BYTES + 16_384


def test_received_tensors_outlive_the_connection() -> None:
    """Catches a payload buffer that is reused while a tensor still looks at it."""
    reader = Connection()
    sent = bytes(Connection().send(VERIFY, {"hidden": hidden()}))
    (first,) = reader.receive_data(sent)
    assert list(reader.receive_data(bytes(Connection().send(VERIFY, {"hidden": -hidden()}))))
    del reader
    assert torch.equal(first.tensors["hidden"], hidden())
