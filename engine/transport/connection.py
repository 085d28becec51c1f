"""One connection, sans-IO: bytes in → messages, messages → bytes.

Guarantees: a header is checked before its payload is allocated; a message comes out only when whole
(and, on a protected connection, authentic); after an error the connection is dead for good. The
caller reads straight into `receive_view()`, so a payload is never copied. Must never know sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.errors import LocalProtocolError, RemoteProtocolError
from engine.transport.frame import (
    HEADER_LEN,
    MAX_PAYLOAD_LEN,
    interpret_kind,
    pack_header_into,
    unpack_header,
)
from engine.transport.message import Message, decode_payload, encode_message_frame
from engine.transport.seal import FrameOpener, FrameSealer, PlainOpener, PlainSealer


@dataclass(frozen=True, slots=True)
class Received:
    """One whole message."""

    message: Message
    tensors: dict[str, torch.Tensor]
    num_bytes: int  # of the frame on the wire, header included


def finish_frame(kind: int, buffer: bytearray, payload_len: int, sealer: FrameSealer) -> memoryview:
    """Write the header and seal in place.

    Returns:
        The bytes to send: a view of the same buffer, longer than header + payload by the tag.
    """
    view = memoryview(buffer)
    end = HEADER_LEN + payload_len + sealer.tag_len
    pack_header_into(view, kind, payload_len + sealer.tag_len)
    sealer.seal(view[:HEADER_LEN], view[HEADER_LEN:end])
    return view[:end]


class Connection:
    """Frame reader and writer of one connection; one instance per socket."""

    def __init__(
        self,
        sealer: FrameSealer | None = None,
        opener: FrameOpener | None = None,
        max_payload_len: int = MAX_PAYLOAD_LEN,
    ) -> None:
        self.max_payload_len = max_payload_len  # of received frames; small for strangers
        self._sealer = sealer or PlainSealer()
        self._opener = opener or PlainOpener()
        self._header = bytearray(HEADER_LEN)
        self._payload: bytearray | None = None  # None while the header is incomplete
        self._filled_len = 0
        self._raw_kind = 0
        self._dead = False

    @property
    def mid_frame(self) -> bool:
        """True when a frame has begun and is not whole: a stall here is the peer's fault."""
        return self._filled_len > 0 or self._payload is not None

    def send(
        self, message: Message, tensors: Mapping[str, torch.Tensor] | None = None
    ) -> memoryview:
        """Encode one message; returns the frame's bytes."""
        if self._dead:
            raise LocalProtocolError("this connection is dead; open a new one")
        kind, buffer, payload_len = encode_message_frame(message, tensors)
        return finish_frame(kind, buffer, payload_len, self._sealer)

    def receive_view(self) -> memoryview:
        """Where the next received bytes belong; never empty."""
        if self._dead:
            raise LocalProtocolError("this connection is dead; open a new one")
        target = self._header if self._payload is None else self._payload
        return memoryview(target)[self._filled_len :]

    def received(self, num_bytes: int) -> Received | None:
        """Account for bytes written into `receive_view()`.

        Returns:
            A message if these bytes completed one.

        Raises:
            RemoteProtocolError: the peer broke the protocol; the connection is dead.
        """
        if self._dead:
            raise LocalProtocolError("this connection is dead; open a new one")
        try:
            return self._advance(num_bytes)
        except RemoteProtocolError:
            self._dead = True
            raise

    def receive_data(self, chunk: bytes | memoryview) -> list[Received]:
        """Feed any number of bytes; the copying convenience over `receive_view`."""
        view = memoryview(chunk)
        messages = []
        while len(view):
            target = self.receive_view()
            size = min(len(target), len(view))
            target[:size] = view[:size]
            message = self.received(size)
            if message is not None:
                messages.append(message)
            view = view[size:]
        return messages

    def _advance(self, num_bytes: int) -> Received | None:
        self._filled_len += num_bytes
        if self._payload is None:
            if self._filled_len < HEADER_LEN:
                return None
            self._raw_kind, payload_len = unpack_header(self._header, self.max_payload_len)
            if not self._opener.protected:
                interpret_kind(self._raw_kind)
            if payload_len < self._opener.tag_len:
                raise RemoteProtocolError(f"a payload of {payload_len} bytes cannot hold a tag")
            self._payload = bytearray(payload_len)
            self._filled_len = 0
            if payload_len:
                return None
        if self._filled_len < len(self._payload):
            return None
        return self._complete()

    def _complete(self) -> Received:
        assert self._payload is not None
        body, self._payload, self._filled_len = self._payload, None, 0
        payload = self._opener.open(memoryview(self._header), memoryview(body))
        kind = interpret_kind(self._raw_kind, authenticated=self._opener.protected)
        message, tensors = decode_payload(kind, payload)
        return Received(message, tensors, HEADER_LEN + len(body))
