"""Ed25519 identities: create once, sign exact bytes, verify exact bytes.

Guarantees: the only file with signing imports; a signature covers a type name and the exact bytes
(the pre-authentication encoding of DSSE), so bytes signed as one kind of document never verify as
another; private keys are created with mode 0600 and refused when others can read them. Must never
know what it signs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from engine.errors import ConfigError, ReceiptError
from engine.trust.private_file import create_private_file, read_private_file

_KEY_ID_NAME = re.compile(r"[0-9a-f]{16}")
KEY_ID_LEN = 16  # hex digits of the SHA-256 of the raw public key


def longhaul_home() -> Path:
    """Folder of this user's keys: `$LONGHAUL_HOME`, else the XDG data folder."""
    explicit = os.environ.get("LONGHAUL_HOME")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "longhaul"


def pre_authentication_encoding(type_name: str, body: bytes) -> bytes:
    """Bind a document's type to its bytes before signing.

    Source: DSSE protocol v1.0, "PAE".
    """
    type_bytes = type_name.encode()
    return b"DSSEv1 %d %s %d %s" % (len(type_bytes), type_bytes, len(body), body)


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """A public key and its fingerprint."""

    raw: bytes  # 32 bytes

    @property
    def key_id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:KEY_ID_LEN]

    def verify(self, type_name: str, body: bytes, signature: bytes) -> None:
        """Check a signature over (type, bytes).

        Raises:
            ReceiptError: the signature does not hold.
        """
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        try:
            key.verify(signature, pre_authentication_encoding(type_name, body))
        except InvalidSignature as error:
            raise ReceiptError(
                f"the signature of key {self.key_id} does not match these bytes"
            ) from error

    def to_text(self) -> str:
        """One line for a key file: `ed25519 <base64>`."""
        return f"ed25519 {base64.b64encode(self.raw).decode()}\n"

    @staticmethod
    def from_text(text: str, source: str) -> PublicIdentity:
        """Parse a key file.

        Args:
            source: where the text came from, for the message.

        Raises:
            ReceiptError: it is not one `ed25519 <base64 of 32 bytes>` line.
        """
        parts = text.split()
        try:
            if len(parts) != 2 or parts[0] != "ed25519":
                raise ValueError("expected one line 'ed25519 <base64>'")
            raw = base64.b64decode(parts[1], validate=True)
            if len(raw) != 32:
                raise ValueError(f"{len(raw)} bytes instead of 32")
        except ValueError as error:
            raise ReceiptError(f"{source}: not a public key: {error}") from error
        return PublicIdentity(raw)


def verify_raw(key: bytes, signature: bytes, body: bytes) -> bool:
    """Whether an Ed25519 signature over the bare bytes holds; for formats that bind no type."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, body)
    except (InvalidSignature, ValueError):  # ValueError: that is no key
        return False
    return True


class Identity:
    """A private key held by this process."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public = PublicIdentity(private_key.public_key().public_bytes_raw())

    @property
    def key_id(self) -> str:
        return self.public.key_id

    def sign(self, type_name: str, body: bytes) -> bytes:
        """Sign (type, bytes); 64 bytes."""
        return self._private_key.sign(pre_authentication_encoding(type_name, body))

    @staticmethod
    def load_or_create(path: Path) -> Identity:
        """Load the key at `path`; the first call creates it (mode 0600) with its `.pub` beside it.

        Raises:
            ConfigError: the file is not ours alone or is no Ed25519 key.
        """
        if not path.exists():
            _create(path)
        pem = read_private_file(path, "private key")
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:  # TypeError: it is encrypted
            raise ConfigError(f"{path}: not a private key ({error}); move it away") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{path}: not an Ed25519 key; move it away")
        identity = Identity(key)
        public_path = path.with_suffix(".pub")
        if not public_path.exists():
            public_path.write_text(identity.public.to_text())
        return identity


def _create(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with contextlib.suppress(FileExistsError):  # another process was first; its key is the key
        create_private_file(path, pem)


def load_public_keys(*folders: Path) -> dict[str, PublicIdentity]:
    """Read every `*.pub` file of the folders into key id → key.

    Raises:
        ReceiptError: a file is not a public key, or its name is a key id other than its own.
    """
    keys: dict[str, PublicIdentity] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.pub")):
            try:
                text = path.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ReceiptError(f"{path}: not a public key: {error}") from error
            identity = PublicIdentity.from_text(text, str(path))
            if _KEY_ID_NAME.fullmatch(path.stem) and path.stem != identity.key_id:
                raise ReceiptError(f"{path}: holds key {identity.key_id}, not the one it is named")
            keys[identity.key_id] = identity
    return keys
