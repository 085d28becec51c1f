"""Messages to frame payloads and back.

A payload is a 4-byte big-endian header length, a MessagePack header (one struct per kind, strict)
and the bytes of the tensors that the header lists, in order. Guarantees: encoding allocates one
buffer with room for the frame header before and the largest tag behind, tensors are packed straight
into it; decoding raises only `RemoteProtocolError`, and checks every length before it uses it.
Sans-IO. Must never know sockets or the model.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec
import torch

from engine.errors import LocalProtocolError, RemoteProtocolError, shown
from engine.transport.frame import HEADER_LEN, MAX_TAG_LEN, Kind
from engine.transport.message import KIND_OF, TYPE_OF, AnyMessage
from engine.transport.tensor import TensorMeta, describe, storage_view, view_bytes

MAX_MESSAGE_LEN = 2**20  # bytes of the MessagePack header: a byte there can be an object here
MAX_REASON_LEN = 300  # characters of the decoder's own words in an error
_LEN = struct.Struct(">I")


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    message: msgspec.Raw
    tensors: tuple[TensorMeta, ...]


_header_decoder = msgspec.msgpack.Decoder(_Header)
_message_decoders = {kind: msgspec.msgpack.Decoder(cls) for kind, cls in TYPE_OF.items()}
_encoder = msgspec.msgpack.Encoder()


def empty_frame(payload_len: int) -> bytearray:
    """The one allocation of a frame: room for header, payload and the largest tag."""
    return bytearray(HEADER_LEN + payload_len + MAX_TAG_LEN)


def payload_frame(payload: bytes | memoryview) -> bytearray:
    """Copy a borrowed payload into a frame buffer whose header is not yet written."""
    buffer = empty_frame(len(payload))
    # By a view: assigning to a bytearray's own slice copies a second time on the way.
    memoryview(buffer)[HEADER_LEN : HEADER_LEN + len(payload)] = payload
    return buffer


def encode_message_frame(
    message: AnyMessage, tensors: Mapping[str, torch.Tensor] | None = None
) -> tuple[Kind, bytearray, int]:
    """Build a frame buffer whose header is not yet written.

    Returns:
        The kind, the buffer (header room + payload + room for the largest tag) and the payload's
        length in bytes. `connection.finish_frame` writes the header and seals in place.

    Raises:
        LocalProtocolError: a tensor or the message cannot be sent; every peer would refuse it.
    """
    named = {} if tensors is None else tensors
    metas = tuple(describe(name, tensor) for name, tensor in named.items())
    header = _encoder.encode([msgspec.Raw(_encoder.encode(message)), metas])
    if len(header) > MAX_MESSAGE_LEN:
        raise LocalProtocolError(
            f"{type(message).__name__} of {len(header)} bytes is over the limit of "
            f"{MAX_MESSAGE_LEN}; large values travel as tensors"
        )
    payload_len = _LEN.size + len(header) + sum(meta.num_bytes() for meta in metas)
    buffer = empty_frame(payload_len)
    _LEN.pack_into(buffer, HEADER_LEN, len(header))
    at = HEADER_LEN + _LEN.size
    buffer[at : at + len(header)] = header
    at += len(header)
    view = memoryview(buffer)
    for meta, tensor in zip(metas, named.values(), strict=True):
        size = meta.num_bytes()
        view[at : at + size] = storage_view(tensor)
        at += size
    return KIND_OF[type(message)], buffer, payload_len


def decode_payload(kind: Kind, payload: memoryview) -> tuple[AnyMessage, dict[str, torch.Tensor]]:
    """Decode a payload; tensors share its memory.

    Raises:
        RemoteProtocolError: anything about the payload is wrong.
    """
    if len(payload) < _LEN.size:
        raise RemoteProtocolError(f"{kind.name} payload of {len(payload)} bytes has no header")
    (header_len,) = _LEN.unpack_from(payload)
    at = _LEN.size + header_len
    if at > len(payload) or header_len > MAX_MESSAGE_LEN:
        raise RemoteProtocolError(
            f"{kind.name} header of {header_len} bytes is longer than its payload of "
            f"{len(payload)} or than the limit of {MAX_MESSAGE_LEN}"
        )
    try:
        header = _header_decoder.decode(payload[_LEN.size : at])
        message = _message_decoders[kind].decode(header.message)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = shown(str(error), MAX_REASON_LEN)  # it quotes the peer's field names
        raise RemoteProtocolError(f"{kind.name} header does not decode: {reason}") from error
    tensors: dict[str, torch.Tensor] = {}
    for meta in header.tensors:
        size = meta.num_bytes()
        tensors[meta.name] = view_bytes(meta, payload[at : at + size])
        at += size
    if at != len(payload) or len(tensors) != len(header.tensors):
        raise RemoteProtocolError(
            f"{kind.name}: {len(payload) - at} bytes left over or a name twice"
        )
    return message, tensors
