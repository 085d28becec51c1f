"""Test only: a suite with a 32-byte tag and a 64-byte key, so that nothing assumes 16 and 32.

AES-256 in counter mode, then HMAC-SHA256 over nonce, header and ciphertext. The engine knows it
only as `AeadSuite`; header and nonce have fixed lengths, so the tag's input needs no separators.
"""

from __future__ import annotations

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from engine.transport.seal import AeadSuite

TAG_LEN = 32


class CtrHmac:
    """Encrypt-then-MAC in place."""

    def __init__(self, key: bytes) -> None:
        self._keystream = Cipher(algorithms.AES(key[:32]), modes.CTR(bytes(16))).encryptor()
        self._keyed = HMAC(key[32:], SHA256())

    def encrypt_into(
        self,
        nonce: bytes,
        payload: memoryview,
        header: bytes | memoryview,
        payload_and_tag: memoryview,
    ) -> int:
        self._crypt(nonce, payload)
        payload_and_tag[-TAG_LEN:] = self._tag(nonce, header, payload)
        return len(payload_and_tag)

    def decrypt_into(
        self,
        nonce: bytes,
        payload_and_tag: memoryview,
        header: bytes | memoryview,
        payload: memoryview,
    ) -> int:
        tag = self._tag(nonce, header, payload)
        if not hmac.compare_digest(tag, payload_and_tag[-TAG_LEN:]):
            raise InvalidTag
        self._crypt(nonce, payload)
        return len(payload)

    def _crypt(self, nonce: bytes, payload: memoryview) -> None:
        self._keystream.reset_nonce(nonce + bytes(4))
        self._keystream.update_into(payload, payload)

    def _tag(self, nonce: bytes, header: bytes | memoryview, ciphertext: memoryview) -> bytes:
        mac = self._keyed.copy()
        mac.update(nonce)
        mac.update(header)
        mac.update(ciphertext)
        return mac.finalize()


LONG_TAG = AeadSuite("aes-256-ctr-hmac-sha256", CtrHmac, key_len=64, tag_len=TAG_LEN)
