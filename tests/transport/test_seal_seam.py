"""The seal is a seam: a suite with a 32-byte tag that the engine never heard of works through it.

The suite is for tests only: AES-256-CTR, then HMAC-SHA256 over counter, header and ciphertext.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from engine.errors import LocalProtocolError, RemoteProtocolError
from engine.transport import connection as connection_module
from engine.transport.connection import Connection
from engine.transport.frame import HEADER_LEN, MAX_TAG_LEN, Kind
from engine.transport.message import Noop, Probe
from engine.transport.seal import FrameSealer

KEY = bytes(range(32))
MAC_KEY = bytes(range(32, 64))


class _Suite:
    """One direction: a counter off the wire, a keystream, a tag."""

    tag_len = 32
    protected = True

    def __init__(self) -> None:
        self._counter = 0

    def _crypt(self, payload: memoryview) -> None:
        nonce = self._counter.to_bytes(16, "big")
        payload[:] = Cipher(algorithms.AES(KEY), modes.CTR(nonce)).encryptor().update(payload)

    def _tag(self, header: memoryview, ciphertext: memoryview) -> bytes:
        signed = self._counter.to_bytes(16, "big") + bytes(header) + bytes(ciphertext)
        return hmac.new(MAC_KEY, signed, hashlib.sha256).digest()


class TestSealer(_Suite):
    __test__ = False

    def seal(self, header: memoryview, payload_and_tag: memoryview) -> None:
        payload = payload_and_tag[: -self.tag_len]
        self._crypt(payload)
        payload_and_tag[-self.tag_len :] = self._tag(header, payload)
        self._counter += 1


class TestOpener(_Suite):
    __test__ = False

    def open(self, header: memoryview, payload_and_tag: memoryview) -> memoryview:
        payload = payload_and_tag[: -self.tag_len]
        tag = self._tag(header, payload)
        if not hmac.compare_digest(tag, payload_and_tag[-self.tag_len :]):
            raise RemoteProtocolError("frame rejected: it does not authenticate")
        self._crypt(payload)
        self._counter += 1
        return payload


def pair() -> tuple[Connection, Connection]:
    return Connection(sealer=TestSealer()), Connection(opener=TestOpener())


def test_messages_pass_through() -> None:
    """Catches a tag length that is assumed, or a header that is not the associated data."""
    sender, reader = pair()
    tensor = torch.arange(2000, dtype=torch.float32)
    for seq in range(5):
        sent = bytes(sender.send(Probe(seq=seq), {"x": tensor}))
        assert len(sent) == len(Connection().send(Probe(seq=seq), {"x": tensor})) + 32
        assert struct.unpack(">BQ", sent[:HEADER_LEN]) == (Kind.PROBE, len(sent) - HEADER_LEN)
        assert bytes(tensor.numpy().data)[400:500] not in sent, "sent in the clear"
        (received,) = reader.receive_data(sent)
        assert received.message == Probe(seq=seq)
        assert torch.equal(received.tensors["x"], tensor)
        assert received.num_bytes == len(sent)


def test_sealing_is_in_place() -> None:
    """Catches a sealed copy: the view must be of the encoder's own buffer."""
    sender, _ = pair()
    sent = sender.send(Noop())
    assert isinstance(sent.obj, bytearray)
    assert len(sent.obj) - len(sent) == MAX_TAG_LEN - TestSealer.tag_len


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Raw kinds that were interpreted."""
    seen: list[int] = []
    original = connection_module.interpret_kind

    def spy(raw_kind: int, authenticated: bool = False) -> Kind:
        seen.append(raw_kind)
        return original(raw_kind, authenticated)

    monkeypatch.setattr(connection_module, "interpret_kind", spy)
    return seen


def test_every_tampered_byte_is_refused(interpreted: list[int]) -> None:
    """Catches any byte of kind, length, body or tag outside the seal, or read before it opens."""
    for at in range(len(pair()[0].send(Probe(seq=1)))):
        sender, reader = pair()
        sent = bytearray(sender.send(Probe(seq=1)))
        sent[at] ^= 0x01
        # Length bytes 5 to 7 announce up to 16 MiB more: let them come.
        stream = bytes(sent) + bytes(2 ** (8 * (8 - at)) if 4 < at < 8 else 1)
        with pytest.raises(RemoteProtocolError) as caught:
            reader.receive_data(stream)
        assert "kind" not in str(caught.value), at
        assert interpreted == [], at
        with pytest.raises(LocalProtocolError):
            reader.receive_view()


def test_unknown_kind_byte_reads_as_tampering(interpreted: list[int]) -> None:
    """Catches a protected connection that tells a stranger which kinds it knows."""
    sender, reader = pair()
    sent = bytearray(sender.send(Noop()))
    sent[0] = 200
    with pytest.raises(RemoteProtocolError, match="does not authenticate"):
        reader.receive_data(bytes(sent))
    assert interpreted == []


def authenticated_unknown_kind() -> bytes:
    """A frame of kind 200, sealed by the right key."""
    sealer: FrameSealer = TestSealer()
    payload = bytearray(4 + 32)
    header = struct.pack(">BQ", 200, len(payload))
    sealer.seal(memoryview(header), memoryview(payload))
    return header + bytes(payload)


def test_unknown_kind_that_authenticates_is_interpreted_last(interpreted: list[int]) -> None:
    """Catches a kind that is interpreted before the frame opens."""
    _, reader = pair()
    with pytest.raises(RemoteProtocolError, match="unknown message kind 200"):
        reader.receive_data(authenticated_unknown_kind())
    assert interpreted == [200]


def test_unknown_kind_that_authenticates_names_the_peer_as_authenticated() -> None:
    """Catches the two errors told alike: DESIGN section 4 words this one by itself."""
    _, reader = pair()
    with pytest.raises(
        RemoteProtocolError, match="unknown message kind 200 from an authenticated peer"
    ):
        reader.receive_data(authenticated_unknown_kind())


@pytest.mark.parametrize("payload_len", [0, 1, 31])
def test_payload_too_short_for_a_tag(payload_len: int) -> None:
    """Catches a tag cut from the wrong end of too few bytes."""
    _, reader = pair()
    with pytest.raises(RemoteProtocolError, match="cannot hold a tag"):
        reader.receive_data(struct.pack(">BQ", Kind.NOOP, payload_len))


def test_replayed_and_reordered_frames_are_refused() -> None:
    """Catches a connection that opens frames without their order (counter nonces)."""
    sender, reader = pair()
    first, second = bytes(sender.send(Probe(seq=1))), bytes(sender.send(Probe(seq=2)))
    reader.receive_data(first)
    with pytest.raises(RemoteProtocolError):
        reader.receive_data(first)
    _, reader = pair()
    with pytest.raises(RemoteProtocolError):
        reader.receive_data(second)


def test_oversize_on_a_protected_connection_is_no_authentication_failure() -> None:
    """Catches the size check after the body, or counted as tampering."""
    _, reader = pair()
    with pytest.raises(RemoteProtocolError, match="limit"):
        reader.receive_data(struct.pack(">BQ", 200, 2**40))
