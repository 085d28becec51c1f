"""The Noise machine for exactly one protocol: `Noise_XXpsk3_25519_ChaChaPoly_SHA256`.

    -> e
    <- e, ee, s, es
    -> s, se, psk

Guarantees: both sides end with the same two secrets, or one of them raises; whatever arrives, the
only error about it is `HandshakeError`, after which the machine does nothing more; the peer's
static key is handed out only once the message that carried it has authenticated. Sans-IO: it takes
nothing from outside but a fresh ephemeral key. Must never know node ids, roles or payloads.

Source: The Noise Protocol Framework, revision 34; sections are named where they apply.
"""

from __future__ import annotations

import enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from engine.errors import HandshakeError, LocalProtocolError

PROTOCOL_NAME = b"Noise_XXpsk3_25519_ChaChaPoly_SHA256"
KEY_LEN = 32  # of every key, secret and hash here: sections 12.1, 12.3, 12.5 and 9.1
TAG_LEN = 16  # section 4.2
MAX_MESSAGE_LEN = 65535  # section 3


class Side(enum.Enum):
    """Who speaks first."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


# Who writes each message, and its tokens. Source: section 7.5 (XX), with psk3 of section 9.4.
_PATTERN = (
    (Side.INITIATOR, ("e",)),
    (Side.RESPONDER, ("e", "ee", "s", "es")),
    (Side.INITIATOR, ("s", "se", "psk")),
)
NUM_MESSAGES = len(_PATTERN)
# Bytes of each message beside its payload: `e` goes in the clear, `s` and the payload with a tag.
OVERHEAD_LEN = tuple(
    sum({"e": KEY_LEN, "s": KEY_LEN + TAG_LEN}.get(token, 0) for token in tokens) + TAG_LEN
    for _, tokens in _PATTERN
)


def _hash(message: bytes) -> bytes:
    """HASH. Source: sections 4.3 and 12.5."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(message)
    return digest.finalize()


def _hmac(key: bytes, message: bytes) -> bytes:
    mac = hmac.HMAC(key, hashes.SHA256())
    mac.update(message)
    return mac.finalize()


def _hkdf(chaining_key: bytes, material: bytes) -> tuple[bytes, bytes, bytes]:
    """HKDF with three outputs; the first two are those of HKDF with two. Source: section 4.3."""
    temp_key = _hmac(chaining_key, material)
    first = _hmac(temp_key, b"\x01")
    second = _hmac(temp_key, first + b"\x02")
    return first, second, _hmac(temp_key, second + b"\x03")


def _diffie_hellman(private: X25519PrivateKey, public: bytes) -> bytes:
    """DH. Source: section 12.1, which allows to refuse an all-zero result; we do.

    Raises:
        HandshakeError: the peer's key is of low order, so that anyone knows the result.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise HandshakeError("the peer's public key is of low order and gives no secret") from None


class CipherState:
    """A key and its nonce. Source: section 5.1.

    Without a key the specification passes bytes through in the clear; this one refuses, since with
    a psk the first token mixes a key (section 9.2). A key seals two messages at most here.
    """

    def __init__(self) -> None:
        self._aead: ChaCha20Poly1305 | None = None
        self._nonce = 0

    def initialize_key(self, key: bytes) -> None:
        self._aead, self._nonce = ChaCha20Poly1305(key), 0

    def encrypt_with_ad(self, associated: bytes, plaintext: bytes) -> bytes:
        return self._keyed().encrypt(self._next_nonce(), plaintext, associated)

    def decrypt_with_ad(self, associated: bytes, ciphertext: bytes) -> bytes:
        try:
            return self._keyed().decrypt(self._next_nonce(), ciphertext, associated)
        except InvalidTag:
            raise HandshakeError("it does not authenticate") from None

    def _keyed(self) -> ChaCha20Poly1305:
        if self._aead is None:
            raise LocalProtocolError("nothing is encrypted before a key is mixed in")
        return self._aead

    def _next_nonce(self) -> bytes:
        """32 zero bits, then the counter, little-endian. Source: section 12.3."""
        nonce = bytes(4) + self._nonce.to_bytes(8, "little")
        self._nonce += 1
        return nonce


class SymmetricState:
    """Chaining key, transcript hash and the cipher they key. Source: section 5.2."""

    def __init__(self) -> None:
        self.transcript = _hash(PROTOCOL_NAME)  # hashed, since the name is longer than a hash
        self._chaining_key = self.transcript
        self._cipher = CipherState()

    def mix_key(self, material: bytes) -> None:
        self._chaining_key, key, _ = _hkdf(self._chaining_key, material)
        self._cipher.initialize_key(key)

    def mix_hash(self, part: bytes) -> None:
        self.transcript = _hash(self.transcript + part)

    def mix_key_and_hash(self, material: bytes) -> None:
        """Source: section 9.1."""
        self._chaining_key, part, key = _hkdf(self._chaining_key, material)
        self.mix_hash(part)
        self._cipher.initialize_key(key)

    def encrypt_and_hash(self, plaintext: bytes) -> bytes:
        ciphertext = self._cipher.encrypt_with_ad(self.transcript, plaintext)
        self.mix_hash(ciphertext)
        return ciphertext

    def decrypt_and_hash(self, ciphertext: bytes) -> bytes:
        plaintext = self._cipher.decrypt_with_ad(self.transcript, ciphertext)
        self.mix_hash(ciphertext)
        return plaintext

    def split(self) -> tuple[bytes, bytes]:
        """Secrets initiator → responder and back."""
        forth, back, _ = _hkdf(self._chaining_key, b"")
        return forth, back


class NoiseXXpsk3:
    """One side of one handshake. Source: section 5.3, HandshakeState.

    Args:
        side: who we are.
        static_private, psk: 32 bytes each.
        prologue: what both must agree on before the first message (section 6).
        ephemeral_private: 32 bytes, for test vectors only; None draws a fresh key.

    Raises:
        LocalProtocolError: a key of another length.
    """

    def __init__(
        self,
        side: Side,
        static_private: bytes,
        psk: bytes,
        prologue: bytes,
        ephemeral_private: bytes | None = None,
    ) -> None:
        if ephemeral_private is None:
            ephemeral_private = X25519PrivateKey.generate().private_bytes_raw()
        for key in (static_private, psk, ephemeral_private):
            if len(key) != KEY_LEN:
                raise LocalProtocolError(f"a key of {len(key)} bytes; every key has {KEY_LEN}")
        self._side = side
        self._static = X25519PrivateKey.from_private_bytes(static_private)
        self._ephemeral = X25519PrivateKey.from_private_bytes(ephemeral_private)
        self._psk = psk
        self._remote_ephemeral = self._remote_static = b""
        self._symmetric = SymmetricState()
        self._symmetric.mix_hash(prologue)
        self._message_idx = 0
        self._failed = False

    @property
    def finished(self) -> bool:
        return self._message_idx == NUM_MESSAGES and not self._failed

    @property
    def remote_static(self) -> bytes:
        """The peer's static public key, known once a message has authenticated it."""
        # The initiator learns the key in the second message, the responder in the third.
        if self._failed or self._message_idx < (2 if self._side is Side.INITIATOR else 3):
            raise LocalProtocolError("the peer has not authenticated a static key")
        return self._remote_static

    def write_message(self, payload: bytes = b"") -> bytes:
        """The next message.

        Raises:
            LocalProtocolError: it is not our turn, or the payload is too long for a message.
            HandshakeError: the key that the peer sent before is of low order.
        """
        if self._failed or self.finished or not self._our_turn():
            raise LocalProtocolError("it is not our turn to write a handshake message")
        if len(payload) > MAX_MESSAGE_LEN - OVERHEAD_LEN[self._message_idx]:
            raise LocalProtocolError(f"{len(payload)} bytes are too long for a handshake payload")
        self._failed = True  # until all of it has worked
        message = b"".join(self._write(token) for token in _PATTERN[self._message_idx][1])
        message += self._symmetric.encrypt_and_hash(payload)
        self._message_idx += 1
        self._failed = False
        return message

    def read_message(self, message: bytes) -> bytes:
        """Check the peer's next message and return its payload.

        Raises:
            HandshakeError: out of turn, too short, too long, altered, or a key of low order.
        """
        due = not (self._failed or self.finished) and not self._our_turn()
        self._failed = True  # until all of it has worked
        if not due:
            raise HandshakeError("no handshake message is due from the peer")
        overhead_len = OVERHEAD_LEN[self._message_idx]
        if not overhead_len <= len(message) <= MAX_MESSAGE_LEN:
            allowed = f"{overhead_len}..{MAX_MESSAGE_LEN}"
            raise HandshakeError(f"it has {len(message)} bytes; allowed: {allowed}")
        rest = message
        for token in _PATTERN[self._message_idx][1]:
            rest = self._read(token, rest)
        payload = self._symmetric.decrypt_and_hash(rest)
        self._message_idx += 1
        self._failed = False
        return payload

    @property
    def handshake_hash(self) -> bytes:
        """Names this session, once finished. Source: section 11.2."""
        self._require_finished()
        return self._symmetric.transcript

    def split(self) -> tuple[bytes, bytes]:
        """The secrets of this side, once finished: (send, receive), 32 bytes each."""
        self._require_finished()
        forth, back = self._symmetric.split()
        return (forth, back) if self._side is Side.INITIATOR else (back, forth)

    def _our_turn(self) -> bool:
        return _PATTERN[self._message_idx][0] is self._side

    def _require_finished(self) -> None:
        if not self.finished:
            raise LocalProtocolError("the handshake is not finished")

    def _write(self, token: str) -> bytes:
        if token == "e":
            public = self._ephemeral.public_key().public_bytes_raw()
            self._mix_ephemeral(public)
            return public
        if token == "s":
            return self._symmetric.encrypt_and_hash(self._static.public_key().public_bytes_raw())
        self._mix(token)
        return b""

    def _read(self, token: str, rest: bytes) -> bytes:
        """Take a token off the front of a message; returns what is left of it."""
        if token == "e":
            self._remote_ephemeral = rest[:KEY_LEN]
            self._mix_ephemeral(self._remote_ephemeral)
            return rest[KEY_LEN:]
        if token == "s":
            self._remote_static = self._symmetric.decrypt_and_hash(rest[: KEY_LEN + TAG_LEN])
            return rest[KEY_LEN + TAG_LEN :]
        self._mix(token)
        return rest

    def _mix_ephemeral(self, public: bytes) -> None:
        self._symmetric.mix_hash(public)
        self._symmetric.mix_key(public)  # because the pattern holds a psk: section 9.2

    def _mix(self, token: str) -> None:
        """The tokens that both sides mix in without sending anything."""
        if token == "psk":
            self._symmetric.mix_key_and_hash(self._psk)
            return
        # The first letter names the initiator's key, the second the responder's.
        ours = 0 if self._side is Side.INITIATOR else 1
        private = self._static if token[ours] == "s" else self._ephemeral
        public = self._remote_static if token[1 - ours] == "s" else self._remote_ephemeral
        self._symmetric.mix_key(_diffie_hellman(private, public))
