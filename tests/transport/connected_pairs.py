"""Test only: two ends of one connection under each suite, and what comes out of a stream."""

from __future__ import annotations

from collections.abc import Iterable

from engine.errors import RemoteProtocolError
from engine.transport.connection import Connection, Received
from engine.transport.seal import PLAIN, SUITES, AeadSuite, FrameSuite
from engine.transport.tensor import storage_view
from tests.transport.long_tag_suite import LONG_TAG

TO_B, TO_A = bytes(range(32)), bytes(range(32, 64))
PROTECTED: list[AeadSuite] = [
    *(suite for suite in SUITES.values() if isinstance(suite, AeadSuite)),
    LONG_TAG,
]
EVERY: list[FrameSuite] = [PLAIN, *PROTECTED]


def pair(
    suite: FrameSuite, other: FrameSuite | None = None, max_payload_len: int = 2**20
) -> tuple[Connection, Connection]:
    """Ends a and b after a handshake; b under `other`, if it is given."""
    a = Connection("b", "b -> a (test)", max_payload_len)
    b = Connection("a", "a -> b (test)", max_payload_len)
    a.protect(suite, TO_B, TO_A)
    b.protect(other or suite, TO_A, TO_B)
    return a, b


def suite_name(suite: FrameSuite) -> str:
    return suite.name


Seen = tuple[object, ...]


def everything(reader: Connection, chunks: Iterable[bytes]) -> list[Seen]:
    """All that comes out of a stream: messages with their tensors' bits, then perhaps an error."""
    seen: list[Seen] = []
    try:
        for chunk in chunks:
            seen.extend(map(bits, reader.receive_data(chunk)))
    except RemoteProtocolError as error:
        seen.append((type(error), str(error)))
    return seen


def bits(received: Received) -> Seen:
    named = {
        name: (tensor.dtype, tensor.shape, bytes(storage_view(tensor)))
        for name, tensor in received.tensors.items()
    }
    return received.message, list(named), named, received.num_bytes
