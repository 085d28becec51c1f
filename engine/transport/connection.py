"""One connection, sans-IO: bytes in → messages, messages → bytes.

Guarantees: a header is checked before its payload is allocated; a message comes out only when whole
and, on a protected connection, authentic: until then nothing but the length of a frame is believed,
not even its kind; after an error the connection is dead for good, both ways. There is one way to
send: a frame buffer, finished and sealed in place. The caller reads straight into `receive_view()`,
so a payload is never copied. Must never know sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from engine.errors import FrameRejected, LocalProtocolError, RemoteProtocolError
from engine.transport.codec import decode_payload, encode_message_frame, payload_frame
from engine.transport.frame import (
    HEADER_LEN,
    MAX_PAYLOAD_LEN,
    MAX_TAG_LEN,
    interpret_kind,
    pack_header_into,
    unpack_header,
)
from engine.transport.message import AnyMessage
from engine.transport.seal import PLAIN, FrameOpener, FrameSealer, FrameSuite, SealBrokenError


@dataclass(frozen=True, slots=True)
class Received:
    """One whole message."""

    message: AnyMessage
    tensors: dict[str, torch.Tensor]
    num_bytes: int  # of the frame on the wire, header and tag included


@dataclass(frozen=True, slots=True)
class WireUse:
    """Where the processor time of connections went, and what went over them beside frames."""

    codec_ns: int = 0  # messages to bytes and back
    seal_ns: int = 0  # sealing and opening
    noops_sent: int = 0  # to keep them warm

    def __add__(self, other: WireUse) -> WireUse:
        return WireUse(
            self.codec_ns + other.codec_ns,
            self.seal_ns + other.seal_ns,
            self.noops_sent + other.noops_sent,
        )

    def __sub__(self, other: WireUse) -> WireUse:
        return WireUse(
            self.codec_ns - other.codec_ns,
            self.seal_ns - other.seal_ns,
            self.noops_sent - other.noops_sent,
        )


# Sees job frames in the clear: whether sent, the message, its kind and payload. What is sent is
# sealed in place when the call returns; what was received stays as it is.
Tap = Callable[[bool, AnyMessage, int, memoryview], None]


def no_clock() -> int:
    """The clock of a connection that nobody times."""
    return 0


def finish_frame(kind: int, buffer: bytearray, payload_len: int, sealer: FrameSealer) -> memoryview:
    """Write the header and seal in place.

    Returns:
        The bytes to send: a view of the same buffer, longer than header + payload by the tag.
    """
    view = memoryview(buffer)
    end = HEADER_LEN + payload_len + sealer.tag_len
    pack_header_into(view, kind, payload_len + sealer.tag_len)
    sealer.seal(bytes(view[:HEADER_LEN]), view[HEADER_LEN:end])  # nine bytes cost less than a view
    return view[:end]


class Connection:
    """Frame reader and writer of one connection; one instance per socket.

    Starts plain, for the handshake; `protect` puts a suite in force.

    Args:
        peer: who is at the other end, for errors.
        direction: the way of received frames, such as "stage-0 -> stage-1 (input)".
        max_payload_len: of received frames, tag included; small for strangers.
        clock: ns, any origin; for `sending` and `receiving`, nothing else.

    Attributes:
        sending, receiving: time spent since the connection began; each is written by the one thread
            that sends or receives.
    """

    def __init__(
        self,
        peer: str = "an unnamed peer",
        direction: str = "",
        max_payload_len: int = MAX_PAYLOAD_LEN,
        clock: Callable[[], int] = no_clock,
    ) -> None:
        self.max_payload_len = max_payload_len
        self.sending = WireUse()
        self.receiving = WireUse()
        self._clock = clock
        self._peer = peer
        self._direction = direction
        self._protected = PLAIN.protected
        self._sealer: FrameSealer = PLAIN.sealer(b"")
        self._opener: FrameOpener = PLAIN.opener(b"")
        self._suite_name = ""  # of the handshake, once it has chosen
        self.tap: Tap | None = None
        self._header = bytearray(HEADER_LEN)
        self._payload: bytearray | None = None  # None while the header is incomplete
        self._filled_len = 0
        self._raw_kind = 0
        self._dead = False

    @property
    def mid_frame(self) -> bool:
        """True when a frame has begun and is not whole: a stall here is the peer's fault."""
        return self._filled_len > 0 or self._payload is not None

    def identify(self, peer: str, direction: str) -> None:
        """Name the other end, once it is known."""
        self._peer = peer
        self._direction = direction

    def protect(self, suite: FrameSuite, send_secret: bytes, receive_secret: bytes) -> None:
        """Put the suite of the handshake in force for every later frame, both ways.

        Raises:
            LocalProtocolError: a second time, in the middle of a frame, or the suite's tag is too
                long for the room that frames have behind their payload.
        """
        self._check_alive()
        if self._suite_name:
            raise LocalProtocolError(f"this connection has its suite already: {self._suite_name}")
        if self.mid_frame:
            raise LocalProtocolError("a frame has begun; protect between frames only")
        if suite.tag_len > MAX_TAG_LEN:
            raise LocalProtocolError(
                f"suite {suite.name} has a tag of {suite.tag_len} bytes; the limit is {MAX_TAG_LEN}"
            )
        self._sealer = suite.sealer(send_secret)
        self._opener = suite.opener(receive_secret)
        self._protected = suite.protected
        self._suite_name = suite.name

    def send(
        self, message: AnyMessage, tensors: Mapping[str, torch.Tensor] | None = None
    ) -> memoryview:
        """Encode one message; returns the frame's bytes."""
        self._check_alive()
        begun_ns = self._clock()
        kind, buffer, payload_len = encode_message_frame(message, tensors)
        encoded_ns = self._clock()
        if self.tap is not None:
            payload = memoryview(buffer)[HEADER_LEN : HEADER_LEN + payload_len]
            self.tap(True, message, kind, payload)
        frame = finish_frame(kind, buffer, payload_len, self._sealer)
        self.sending += WireUse(encoded_ns - begun_ns, self._clock() - encoded_ns)
        return frame

    def send_payload(self, raw_kind: int, payload: bytes | memoryview) -> memoryview:
        """Frame a payload that somebody else encoded and keeps: it is copied once, into the frame.

        Args:
            raw_kind: any byte; a relay passes on kinds that it does not know.
        """
        self._check_alive()
        return finish_frame(raw_kind, payload_frame(payload), len(payload), self._sealer)

    def receive_view(self) -> memoryview:
        """Where the next received bytes belong; never empty."""
        self._check_alive()
        target = self._header if self._payload is None else self._payload
        return memoryview(target)[self._filled_len :]

    def received(self, num_bytes: int) -> Received | None:
        """Account for bytes written into `receive_view()`.

        Returns:
            A message if these bytes completed one.

        Raises:
            FrameRejected: a frame of a protected connection does not authenticate.
            RemoteProtocolError: the peer broke the protocol otherwise. Either way the connection
                is dead.
        """
        self._check_alive()
        try:
            return self._advance(num_bytes)
        except RemoteProtocolError:
            self._dead = True
            raise

    def receive_data(self, chunk: bytes | memoryview) -> Iterator[Received]:
        """Feed any number of bytes; the copying convenience over `receive_view`.

        Yields each message before the bytes behind it are looked at, so that none is lost when a
        broken frame follows, and `protect` can be called in between. Nothing is read until the
        iterator is consumed.

        Raises:
            RemoteProtocolError: as `received`.
        """
        view = memoryview(chunk)
        while len(view):
            target = self.receive_view()
            size = min(len(target), len(view))
            target[:size] = view[:size]
            view = view[size:]
            message = self.received(size)
            if message is not None:
                yield message

    def _check_alive(self) -> None:
        if self._dead:
            raise LocalProtocolError("this connection is dead; open a new one")

    def _advance(self, num_bytes: int) -> Received | None:
        self._filled_len += num_bytes
        if self._payload is None:
            if self._filled_len < HEADER_LEN:
                return None
            self._raw_kind, payload_len = unpack_header(self._header, self.max_payload_len)
            if not self._protected:
                interpret_kind(self._raw_kind)
            self._payload = bytearray(payload_len)
            self._filled_len = 0
        if self._filled_len < len(self._payload):
            return None
        body, self._payload, self._filled_len = self._payload, None, 0
        return self._open(body)

    def _open(self, body: bytearray) -> Received:
        begun_ns = self._clock()
        try:
            payload = self._opener.open(memoryview(self._header), memoryview(body))
        except SealBrokenError:
            raise FrameRejected(self._peer, self._direction) from None
        opened_ns = self._clock()
        kind = interpret_kind(self._raw_kind, authenticated=self._protected)
        message, tensors = decode_payload(kind, payload)
        self.receiving += WireUse(self._clock() - opened_ns, opened_ns - begun_ns)
        if self.tap is not None:
            self.tap(False, message, kind, payload)
        return Received(message, tensors, HEADER_LEN + len(body))
