"""Typed messages and their frame payloads.

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

from engine.errors import RemoteProtocolError
from engine.transport.frame import HEADER_LEN, MAX_TAG_LEN, Kind
from engine.transport.tensor import TensorMeta, describe, storage_view, view_bytes

PROTOCOL_VERSION = 1
_LEN = struct.Struct(">I")


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message header."""


class Hello(Message, frozen=True, kw_only=True):
    """First frame of a plain connection: who calls, as what."""

    protocol_version: int
    cluster_id: str
    node_id: str  # "coordinator" or "stage-<idx>"
    role: str  # "input" | "control" | "return"


class HelloAck(Message, frozen=True, kw_only=True):
    """The answer to `Hello`: who listens here. `refused` is empty, or says why."""

    protocol_version: int
    node_id: str
    refused: str = ""


class Levers(Message, frozen=True, kw_only=True):
    """Every job lever, carried by `reset` and echoed by every stage (DESIGN section 13)."""

    policy: str
    policy_params: dict[str, int]
    draft_len: int
    depth: int
    drafter: str
    min_match_len: int
    prefill_chunk: int
    max_new_tokens: int
    numeric_config: str
    attestation: bool
    keepwarm_ms: int


class Reset(Message, frozen=True, kw_only=True):
    """Open a job: every stage clears its caches, applies the levers and passes it on."""

    job: int  # rises from job to job
    nonce: str
    levers: Levers


class StageSpan(Message, frozen=True, kw_only=True, array_like=True):
    """What one stage spent on one frame; durations, since clocks of hosts do not compare."""

    queue_ns: int
    compute_ns: int
    span_ns: int


class Verify(Message, frozen=True, kw_only=True):
    """Consecutive positions to run through the layers.

    The first stage gets `ids`, later ones the tensor "hidden" [T, H]. The last stage answers
    positions `answer_from + 1 …`; a chunk with `answer_from` past its end is answered with no ids.
    """

    job: int
    epoch: int
    start: int
    positions_len: int
    answer_from: int
    ids: tuple[int, ...] | None = None
    spans: tuple[StageSpan, ...] = ()


class Reply(Message, frozen=True, kw_only=True):
    """The target's tokens: `ids[j]` for position `answer_from + j + 1`."""

    job: int
    epoch: int
    start: int
    ids: tuple[int, ...]
    spans: tuple[StageSpan, ...]


class Attest(Message, frozen=True, kw_only=True):
    """Close a job behind its last frame: the applied frames, empty when attestation is off."""

    job: int
    epoch: int
    frames: tuple[tuple[int, int], ...] = ()


class Noop(Message, frozen=True, kw_only=True):
    """Keep-warm filler: never forwarded, answered, attested or timed."""


class Probe(Message, frozen=True, kw_only=True):
    """Round-trip probe of one link, outside jobs only."""

    seq: int


class ProbeAck(Message, frozen=True, kw_only=True):
    seq: int


class ProbeOrder(Message, frozen=True, kw_only=True):
    """Coordinator → stage, control link: probe your forward link."""

    count: int


class ProbeReport(Message, frozen=True, kw_only=True):
    """Stage → coordinator, control link."""

    rtt_ns: tuple[int, ...]


class ResetAck(Message, frozen=True, kw_only=True):
    """Stage → coordinator: what this stage observed."""

    job: int
    stage_idx: int
    layer_start: int
    layer_end: int
    levers: Levers
    model_digest: str
    source_digest: str
    kernel: str
    num_threads: int


class Statement(Message, frozen=True, kw_only=True):
    """Stage → coordinator at the end of a job: the drain barrier and its counters."""

    job: int
    stage_idx: int
    frames_sent: int  # verify or reply frames this stage wrote in the job
    stale_dropped: int
    stale_computed: int
    pending_frames: int  # frames of the job still queued here: always 0
    signed: str = ""  # signed statement, when attestation is on


class JobErrorReport(Message, frozen=True, kw_only=True):
    """Stage → coordinator: this job failed here, the stage lives."""

    job: int
    stage_idx: int
    code: str
    detail: str


KIND_OF: Mapping[type[Message], Kind] = {
    Hello: Kind.HELLO,
    HelloAck: Kind.HELLO_ACK,
    Reset: Kind.RESET,
    Verify: Kind.VERIFY,
    Reply: Kind.REPLY,
    Attest: Kind.ATTEST,
    Noop: Kind.NOOP,
    Probe: Kind.PROBE,
    ProbeAck: Kind.PROBE_ACK,
    ResetAck: Kind.RESET_ACK,
    Statement: Kind.STATEMENT,
    JobErrorReport: Kind.JOB_ERROR,
    ProbeOrder: Kind.PROBE_ORDER,
    ProbeReport: Kind.PROBE_REPORT,
}
TYPE_OF: Mapping[Kind, type[Message]] = {kind: cls for cls, kind in KIND_OF.items()}


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    message: msgspec.Raw
    tensors: tuple[TensorMeta, ...]


_header_decoder = msgspec.msgpack.Decoder(_Header)
_message_decoders = {kind: msgspec.msgpack.Decoder(cls) for kind, cls in TYPE_OF.items()}
_encoder = msgspec.msgpack.Encoder()


def encode_message_frame(
    message: Message, tensors: Mapping[str, torch.Tensor] | None = None
) -> tuple[Kind, bytearray, int]:
    """Build a frame buffer whose header is not yet written.

    Returns:
        The kind, the buffer (header room + payload + room for the largest tag) and the payload's
        length in bytes. `connection.finish_frame` writes the header and seals in place.
    """
    named = {} if tensors is None else tensors
    metas = tuple(describe(name, tensor) for name, tensor in named.items())
    header = _encoder.encode([msgspec.Raw(_encoder.encode(message)), metas])
    payload_len = _LEN.size + len(header) + sum(meta.num_bytes() for meta in metas)
    buffer = bytearray(HEADER_LEN + payload_len + MAX_TAG_LEN)
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


def decode_payload(kind: Kind, payload: memoryview) -> tuple[Message, dict[str, torch.Tensor]]:
    """Decode a payload; tensors share its memory.

    Raises:
        RemoteProtocolError: anything about the payload is wrong.
    """
    if len(payload) < _LEN.size:
        raise RemoteProtocolError(f"{kind.name} payload of {len(payload)} bytes has no header")
    (header_len,) = _LEN.unpack_from(payload)
    at = _LEN.size + header_len
    if at > len(payload):
        raise RemoteProtocolError(
            f"{kind.name} header of {header_len} bytes is longer than its payload"
        )
    try:
        header = _header_decoder.decode(payload[_LEN.size : at])
        message = _message_decoders[kind].decode(header.message)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{kind.name} header does not decode: {error}") from error
    tensors: dict[str, torch.Tensor] = {}
    for meta in header.tensors:
        size = meta.num_bytes()
        if at + size > len(payload):
            raise RemoteProtocolError(f"{kind.name}: tensor {meta.name!r} runs past the payload")
        tensors[meta.name] = view_bytes(meta, payload[at : at + size])
        at += size
    if at != len(payload) or len(tensors) != len(header.tensors):
        raise RemoteProtocolError(
            f"{kind.name}: {len(payload) - at} bytes left over or a name twice"
        )
    return message, tensors
