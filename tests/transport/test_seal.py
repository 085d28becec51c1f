"""Suites by themselves: key schedule, counter, rekeying; every limit set small."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from engine.errors import ConfigError, FrameRejected, LocalProtocolError, RemoteProtocolError
from engine.transport.connection import Connection
from engine.transport.frame import HEADER_LEN, MAX_PAYLOAD_LEN, MAX_TAG_LEN
from engine.transport.message import Probe
from engine.transport.seal import (
    PLAIN,
    AeadSuite,
    Cipher,
    SealBrokenError,
    suite_named,
)
from tests.transport.connected_pairs import PROTECTED, TO_B, pair, suite_name

each_protected = pytest.mark.parametrize("suite", PROTECTED, ids=suite_name)


def hkdf(secret: bytes, label: str, length: int) -> bytes:
    """RFC 5869 with SHA-256 and no salt, spelt out."""
    extracted = hmac.digest(bytes(32), secret, hashlib.sha256)
    block, output = b"", b""
    for number in range(1, 3):
        block = hmac.digest(extracted, block + label.encode() + bytes([number]), hashlib.sha256)
        output += block
    return output[:length]


class Spy:
    """A suite's cipher that notes which key sealed under which nonce."""

    def __init__(self, suite: AeadSuite) -> None:
        self.used: list[tuple[bytes, bytes]] = []
        self._suite = suite

    def cipher(self, key: bytes) -> Cipher:
        real, used = self._suite.cipher(key), self.used

        class Spied:
            def encrypt_into(self, nonce: bytes, *buffers: memoryview) -> int:
                used.append((key, nonce))
                return real.encrypt_into(nonce, *buffers)

            decrypt_into = real.decrypt_into

        return Spied()

    def suite(self, **limits: int) -> AeadSuite:
        return replace(self._suite, cipher=self.cipher, **limits)


@pytest.mark.parametrize(
    ("name", "cipher"), [("chacha20-poly1305", ChaCha20Poly1305), ("aes-256-gcm", AESGCM)]
)
def test_frames_are_what_the_specification_says(
    name: str, cipher: type[AESGCM] | type[ChaCha20Poly1305]
) -> None:
    """Catches a change of labels, nonce, associated data or rekeying: peers would not understand.

    Every frame is computed again from the secret, with nothing of the engine.
    """
    sender = Connection()
    sender.protect(replace(suite_named(name), rekey_frames=2), TO_B, bytes(32))
    chain = TO_B
    for number in range(5):
        if number in (2, 4):
            chain = hkdf(chain, f"longhaul next {name}", 32)
        key = hkdf(chain, f"longhaul key {name}", 32)
        payload = bytes(Connection().send(Probe(seq=number)))[HEADER_LEN:]
        header = b"\x08" + (len(payload) + 16).to_bytes(8, "big")
        nonce = bytes(4) + number.to_bytes(8, "big")
        sealed = cipher(key).encrypt(nonce, payload, header)
        assert bytes(sender.send(Probe(seq=number))) == header + sealed


@each_protected
def test_rekeying_by_frames(suite: AeadSuite) -> None:
    """Catches a key kept too long, and a nonce that starts again under the next one."""
    spy = Spy(suite)
    a, b = pair(spy.suite(rekey_frames=3), replace(suite, rekey_frames=3))
    for seq in range(8):
        (received,) = b.receive_data(bytes(a.send(Probe(seq=seq))))
        assert received.message == Probe(seq=seq)
    keys = [key for key, _ in spy.used]
    assert [keys.index(key) for key in keys] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert [nonce for _, nonce in spy.used] == [seq.to_bytes(12, "big") for seq in range(8)]


@each_protected
@pytest.mark.parametrize(("more", "changes"), [(0, [0, 0, 2, 2]), (1, [0, 0, 0, 3])])
def test_rekeying_by_bytes(suite: AeadSuite, more: int, changes: list[int]) -> None:
    """Catches bytes counted without tags, or a limit that is off by one."""
    body_len = len(pair(suite)[0].send(Probe(seq=1))) - HEADER_LEN
    spy, limit = Spy(suite), 2 * body_len + more
    a, b = pair(spy.suite(rekey_bytes=limit), replace(suite, rekey_bytes=limit))
    for _ in range(4):
        (received,) = b.receive_data(bytes(a.send(Probe(seq=1))))
        assert received.message == Probe(seq=1)
    keys = [key for key, _ in spy.used]
    assert [keys.index(key) for key in keys] == changes


@each_protected
def test_rekeying_at_different_frames_loses_sync(suite: AeadSuite) -> None:
    """Catches a boundary that means nothing: the first frame past it must not open."""
    a, b = pair(replace(suite, rekey_frames=3), replace(suite, rekey_frames=4))
    for seq in range(3):
        list(b.receive_data(bytes(a.send(Probe(seq=seq)))))
    with pytest.raises(FrameRejected):
        list(b.receive_data(bytes(a.send(Probe(seq=3)))))


@each_protected
@pytest.mark.parametrize("lost", [2, 3])
def test_a_frame_lost_at_the_boundary(suite: AeadSuite, lost: int) -> None:
    """Catches a counter that starts again with each key: the frame behind would open."""
    small = replace(suite, rekey_frames=3)
    a, b = pair(small)
    frames = [bytes(a.send(Probe(seq=seq))) for seq in range(5)]
    for frame in frames[:lost]:
        list(b.receive_data(frame))
    with pytest.raises(FrameRejected):
        list(b.receive_data(frames[lost + 1]))


@each_protected
def test_frames_of_an_earlier_key_do_not_come_back(suite: AeadSuite) -> None:
    """Catches a replay across the change of keys."""
    small = replace(suite, rekey_frames=2)
    for replayed in range(4):
        a, b = pair(small)
        frames = [bytes(a.send(Probe(seq=seq))) for seq in range(4)]
        assert len(list(b.receive_data(b"".join(frames)))) == 4
        with pytest.raises(FrameRejected):
            list(b.receive_data(frames[replayed]))


@each_protected
def test_last_nonce(suite: AeadSuite) -> None:
    """Catches a counter that wraps or is used again; what was not sealed must not be sent."""
    sealer = replace(suite, max_frames=2).sealer(TO_B)
    header = memoryview(bytearray(HEADER_LEN))
    for _ in range(2):
        sealer.seal(header, memoryview(bytearray(4 + suite.tag_len)))
    body = bytearray(4 + suite.tag_len)
    for _ in range(2):
        with pytest.raises(LocalProtocolError, match="open a new connection"):
            sealer.seal(header, memoryview(body))
        assert body == bytes(len(body))
    a, b = pair(suite, replace(suite, max_frames=2))
    frames = b"".join(bytes(a.send(Probe(seq=seq))) for seq in range(3))
    messages = b.receive_data(frames)
    assert [next(messages).message, next(messages).message] == [Probe(seq=0), Probe(seq=1)]
    with pytest.raises(FrameRejected):
        next(messages)


@each_protected
def test_the_suites_name_is_bound_into_its_keys(suite: AeadSuite) -> None:
    """Catches two suites that share a key."""
    a, b = pair(suite, replace(suite, name="another"))
    with pytest.raises(FrameRejected):
        list(b.receive_data(bytes(a.send(Probe(seq=1)))))


@each_protected
def test_limits_leave_a_margin(suite: AeadSuite) -> None:
    """Catches limits raised beyond what the ciphers' bounds allow (RFC 8446 section 5.5)."""
    assert suite.rekey_frames <= 2**24
    assert suite.rekey_bytes + MAX_PAYLOAD_LEN < 2**33
    assert suite.max_frames < 2**64
    assert suite.tag_len <= MAX_TAG_LEN


@each_protected
@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_secrets_of_another_length(suite: AeadSuite, secret: bytes) -> None:
    """Catches frames sealed under next to nothing."""
    for make in (suite.sealer, suite.opener):
        with pytest.raises(LocalProtocolError, match="32 bytes"):
            make(secret)


class Credulous:
    """A cipher that finds everything authentic."""

    def encrypt_into(self, *args: object) -> int:
        return 0

    def decrypt_into(self, *args: object) -> int:
        return 0


@each_protected
@pytest.mark.parametrize("short_by", [1, 2, 100])
def test_bodies_too_short_for_a_tag(suite: AeadSuite, short_by: int) -> None:
    """Catches a tag cut from the wrong end of too few bytes; no cipher is even asked."""
    body = memoryview(bytearray(max(0, suite.tag_len - short_by)))
    opener = replace(suite, cipher=lambda key: Credulous()).opener(TO_B)
    with pytest.raises(SealBrokenError):
        opener.open(memoryview(bytes(HEADER_LEN)), body)


def test_unknown_suite_lists_the_valid_ones() -> None:
    """Catches a misspelt suite that falls back to another one, above all to plain."""
    with pytest.raises(ConfigError, match="aes-256-gcm, chacha20-poly1305, plain"):
        suite_named("none")
    assert suite_named("plain") is PLAIN
    assert issubclass(SealBrokenError, RemoteProtocolError)
