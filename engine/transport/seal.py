"""Frame protection: suites, and the sealer and opener of one direction.

Guarantees: every frame passes one `FrameSealer` or `FrameOpener`, so protection is a choice of
suite and never a second code path; sealing and opening happen in the frame's own buffer; the header
is associated data; a nonce is a counter that is never sent and never used twice; both ends change
keys at the same frame. Sans-IO. Must never know sockets, peers or what a payload means.

Key schedule of one direction (docs/protocol.md): `chain` starts as the secret of the handshake;
HKDF-SHA256 without salt makes of it the key (info `longhaul key SUITE`) and, when that key has
protected enough, the next chain (info `longhaul next SUITE`). The counter runs on across keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engine.errors import LocalProtocolError, RemoteProtocolError, unknown_name

SECRET_LEN = 32  # bytes: what the handshake gives each direction
# AES-GCM loses its margin first: 2^32 bytes are 2^28 blocks under a key, where an observer's
# advantage is below 2^-70 (the square of the blocks over 2^129). A last frame may run over by 2^28.
REKEY_FRAMES = 2**20
REKEY_BYTES = 2**32
MAX_FRAMES = 2**64 - 1  # of a direction, ever: the nonce has eight bytes for the counter


class SealBrokenError(RemoteProtocolError):
    """A frame does not authenticate; `Connection` adds whose it was (`FrameRejected`)."""


class FrameSealer(Protocol):
    """Protects outgoing frames of one direction, in place."""

    @property
    def tag_len(self) -> int:
        """Bytes by which `seal` grows a payload."""

    def seal(self, header: bytes | memoryview, payload_and_tag: memoryview) -> None:
        """Encrypt the payload in place, the header as associated data, the tag behind it.

        Raises:
            LocalProtocolError: this direction has used its last nonce; nothing was sealed.
        """


class FrameOpener(Protocol):
    """Checks and opens incoming frames of one direction, in place."""

    def open(self, header: memoryview, payload_and_tag: memoryview) -> memoryview:
        """Return the payload, a part of the same buffer.

        Raises:
            SealBrokenError: this is not the next frame that the peer sealed; never anything else.
        """


class FrameSuite(Protocol):
    """A way to protect frames; makes one sealer and one opener per direction."""

    @property
    def name(self) -> str:
        """As in `Hello.suite`."""

    @property
    def protected(self) -> bool:
        """True: a frame means nothing, not even its kind, before it opens."""

    @property
    def tag_len(self) -> int:
        """Bytes that a sealed payload has more."""

    def sealer(self, secret: bytes) -> FrameSealer:
        """For frames that leave, from the secret of their direction."""

    def opener(self, secret: bytes) -> FrameOpener:
        """For frames that arrive, from the secret of their direction."""


class Cipher(Protocol):
    """An authenticated cipher under one key, in place; `cryptography`'s AEADs are such."""

    def encrypt_into(
        self,
        nonce: bytes,
        payload: memoryview,
        header: bytes | memoryview,
        payload_and_tag: memoryview,
        /,
    ) -> int:
        """Write ciphertext and tag into `payload_and_tag`, whose front `payload` is."""

    def decrypt_into(
        self,
        nonce: bytes,
        payload_and_tag: memoryview,
        header: bytes | memoryview,
        payload: memoryview,
        /,
    ) -> int:
        """Write the plaintext into `payload`; raises `InvalidTag`."""


@dataclass(frozen=True, slots=True)
class AeadSuite:
    """Authenticated encryption with a counter nonce.

    Args:
        name: as in `Hello.suite`; bound into every key.
        cipher: makes the cipher of a key of `key_len` bytes.
        tag_len: bytes of its tag, at most `frame.MAX_TAG_LEN`.
        rekey_frames: frames that one key protects.
        rekey_bytes: once a key has protected so many bytes (payloads with tags), the next frame
            has the next key.
        max_frames: frames of a direction; the sealer refuses the one behind.
    """

    name: str
    cipher: Callable[[bytes], Cipher]
    key_len: int
    tag_len: int
    rekey_frames: int = REKEY_FRAMES
    rekey_bytes: int = REKEY_BYTES
    max_frames: int = MAX_FRAMES
    protected: bool = True

    def sealer(self, secret: bytes) -> AeadSealer:
        return AeadSealer(self, secret)

    def opener(self, secret: bytes) -> AeadOpener:
        return AeadOpener(self, secret)


class _Direction:
    """Keys and counter of one direction; the same steps at both ends."""

    def __init__(self, suite: AeadSuite, secret: bytes) -> None:
        if len(secret) != SECRET_LEN:
            raise LocalProtocolError(
                f"suite {suite.name} needs a secret of {SECRET_LEN} bytes, got {len(secret)}"
            )
        self._suite = suite
        self._chain = secret
        self._counter = 0
        self._num_under_key = 0
        self._bytes_under_key = 0
        self._cipher = suite.cipher(self._derive("key", suite.key_len))

    @property
    def tag_len(self) -> int:
        return self._suite.tag_len

    @property
    def _exhausted(self) -> bool:
        return self._counter >= self._suite.max_frames

    def _next(self, body_len: int) -> tuple[Cipher, bytes]:
        """Cipher and nonce of the next frame, whose payload and tag have `body_len` bytes."""
        suite = self._suite
        if self._num_under_key >= suite.rekey_frames or self._bytes_under_key >= suite.rekey_bytes:
            self._chain = self._derive("next", SECRET_LEN)
            self._cipher = suite.cipher(self._derive("key", suite.key_len))
            self._num_under_key = self._bytes_under_key = 0
        nonce = self._counter.to_bytes(12, "big")
        self._counter += 1
        self._num_under_key += 1
        self._bytes_under_key += body_len
        return self._cipher, nonce

    def _derive(self, purpose: str, length: int) -> bytes:
        label = f"longhaul {purpose} {self._suite.name}"
        return HKDF(SHA256(), length, salt=None, info=label.encode()).derive(self._chain)


class AeadSealer(_Direction):
    """Sealer of an `AeadSuite`."""

    def seal(self, header: bytes | memoryview, payload_and_tag: memoryview) -> None:
        if self._exhausted:
            raise LocalProtocolError(
                f"this connection has sealed {self._suite.max_frames} frames, its nonces are used "
                "up; open a new connection"
            )
        cipher, nonce = self._next(len(payload_and_tag))
        payload = payload_and_tag[: len(payload_and_tag) - self.tag_len]
        cipher.encrypt_into(nonce, payload, header, payload_and_tag)


class AeadOpener(_Direction):
    """Opener of an `AeadSuite`."""

    def open(self, header: memoryview, payload_and_tag: memoryview) -> memoryview:
        # Neither could have been sealed: there is no nonce for the one, no tag in the other.
        if self._exhausted or len(payload_and_tag) < self.tag_len:
            raise SealBrokenError("a frame that cannot have been sealed")
        cipher, nonce = self._next(len(payload_and_tag))
        payload = payload_and_tag[: len(payload_and_tag) - self.tag_len]
        try:
            cipher.decrypt_into(nonce, payload_and_tag, header, payload)
        except InvalidTag:
            raise SealBrokenError("a frame does not authenticate") from None
        return payload


@dataclass(frozen=True, slots=True)
class PlainSuite:
    """No protection: for measurement on trusted machines; must be asked for by name."""

    name: str = "plain"
    protected: bool = False
    tag_len: int = 0

    def sealer(self, secret: bytes) -> PlainSealer:
        return PlainSealer()

    def opener(self, secret: bytes) -> PlainOpener:
        return PlainOpener()


class PlainSealer:
    """Leaves frames as they are."""

    tag_len = 0

    def seal(self, header: bytes | memoryview, payload_and_tag: memoryview) -> None:
        return None


class PlainOpener:
    """Takes frames as they are."""

    def open(self, header: memoryview, payload_and_tag: memoryview) -> memoryview:
        return payload_and_tag


PLAIN = PlainSuite()
SUITES: Mapping[str, FrameSuite] = {
    suite.name: suite
    for suite in (
        PLAIN,
        AeadSuite("chacha20-poly1305", ChaCha20Poly1305, key_len=32, tag_len=16),
        AeadSuite("aes-256-gcm", AESGCM, key_len=32, tag_len=16),
    )
}


def suite_named(name: str) -> FrameSuite:
    """Look a suite up.

    Raises:
        ConfigError: no such suite.
    """
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    return SUITES[name]
