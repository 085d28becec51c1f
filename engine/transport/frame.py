"""Frame layout: 1-byte kind, 8-byte big-endian payload length, payload.

Guarantees: the header is fixed-size and is checked against the size limit before a payload byte is
read or allocated. Sans-IO. Must never know what a payload means.
"""

from __future__ import annotations

import enum
import struct

from engine.errors import LocalProtocolError, RemoteProtocolError

_HEADER = struct.Struct(">BQ")
HEADER_LEN = _HEADER.size  # 9 bytes
# The largest honest payload is a prefill chunk with full logits; anything above is an attack or
# a bug, and is refused before it is allocated.
MAX_PAYLOAD_LEN = 256 * 2**20
MAX_TAG_LEN = 32  # room for the largest authentication tag of any suite


class Kind(enum.IntEnum):
    """What a frame carries (DESIGN section 4)."""

    HELLO = 1
    HELLO_ACK = 2
    RESET = 3
    VERIFY = 4
    REPLY = 5
    ATTEST = 6
    NOOP = 7
    PROBE = 8
    PROBE_ACK = 9
    RESET_ACK = 10
    STATEMENT = 11
    JOB_ERROR = 12
    PROBE_ORDER = 13
    PROBE_REPORT = 14
    HELLO_FINISH = 15
    WELCOME = 16
    CHALLENGE = 17
    EVIDENCE_REPORT = 18


def pack_header_into(buffer: memoryview | bytearray, raw_kind: int, payload_len: int) -> None:
    """Write the header into the first `HEADER_LEN` bytes of a buffer.

    Raises:
        LocalProtocolError: the payload is over the limit.
    """
    if payload_len > MAX_PAYLOAD_LEN:
        raise LocalProtocolError(
            f"a payload of {payload_len} bytes is over the limit of {MAX_PAYLOAD_LEN}"
        )
    _HEADER.pack_into(buffer, 0, raw_kind, payload_len)


def unpack_header(
    header: bytes | bytearray | memoryview, max_payload_len: int = MAX_PAYLOAD_LEN
) -> tuple[int, int]:
    """Read (raw kind, payload length); the kind is not interpreted here.

    A protected connection interprets the kind only after the payload authenticates.

    Raises:
        RemoteProtocolError: the length is over the limit.
    """
    raw_kind, payload_len = _HEADER.unpack(header)
    if payload_len > max_payload_len:
        raise RemoteProtocolError(
            f"peer announced a payload of {payload_len} bytes; the limit is {max_payload_len}"
        )
    return raw_kind, payload_len


def interpret_kind(raw_kind: int, authenticated: bool = False) -> Kind:
    """Turn a raw kind byte into a `Kind`.

    Args:
        authenticated: the frame was opened before its kind is read, so that an unknown kind is a
            peer of another version and no stranger's noise.

    Raises:
        RemoteProtocolError: no such kind.
    """
    try:
        return Kind(raw_kind)
    except ValueError:
        whose = " from an authenticated peer" if authenticated else ""
        raise RemoteProtocolError(f"unknown message kind {raw_kind}{whose}") from None
