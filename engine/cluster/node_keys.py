"""Files of the keys that the nodes of a cluster meet with: the cluster secret and static keys.

Guarantees: neither is taken from a file that others can read, nor from a command line; the two file
formats differ, so that one is never taken for the other; a file that exists is never replaced. Must
never know what the keys protect.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from engine.errors import ConfigError
from engine.trust.private_file import create_private_file, read_private_file

SECRET_LEN = 32
_SECRET_LINE = re.compile(rb"([0-9a-fA-F]{64})\n?")
_STATIC_LINE = re.compile(rb"x25519 ([0-9a-f]{64})\n")


def load_cluster_secret(path: Path) -> bytes:
    """Read the secret that every node of a cluster holds; 32 bytes.

    Raises:
        ConfigError: no such file, not ours alone, or not exactly one line of 64 hex digits.
    """
    quoted = shlex.quote(str(path))
    how = f"make one with: (umask 077; openssl rand -hex {SECRET_LEN} > {quoted})"
    if not os.path.exists(path):  # false also where we may not look
        raise ConfigError(f"{path}: no cluster secret there; copy the cluster's file, or {how}")
    line = _SECRET_LINE.fullmatch(read_private_file(path, "cluster secret"))
    if line is None:
        raise ConfigError(
            f"{path}: a cluster secret is exactly one line of {2 * SECRET_LEN} hex digits, this is "
            f"not; move it away, then {how}"
        )
    return bytes.fromhex(line[1].decode())


def create_cluster_secret(path: Path) -> bytes:
    """Draw a new secret and write its file; 32 bytes.

    Raises:
        ConfigError: the file exists; it is left alone.
    """
    secret = secrets.token_bytes(SECRET_LEN)
    try:
        create_private_file(path, f"{secret.hex()}\n".encode())
    except FileExistsError:
        message = f"{path} exists; a cluster secret is never replaced: load it, or move it away"
        raise ConfigError(message) from None
    return secret


def new_static_key() -> tuple[bytes, bytes]:
    """Draw an X25519 key: (private, public), 32 bytes each."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def load_or_create_static_key(path: Path) -> tuple[bytes, bytes]:
    """The key of a node that keeps its own: (private, public); the first call creates it.

    Raises:
        ConfigError: the file is not ours alone or not one line `x25519 <64 hex digits>`.
    """
    if not os.path.exists(path):
        private, _ = new_static_key()
        with contextlib.suppress(FileExistsError):  # another process was first; its key is the key
            create_private_file(path, f"x25519 {private.hex()}\n".encode())
    line = _STATIC_LINE.fullmatch(read_private_file(path, "static key"))
    if line is None:
        raise ConfigError(
            f"{path}: a static key is one line 'x25519 <64 hex digits>', this is not; move it away "
            f"and a new one is made"
        )
    private = bytes.fromhex(line[1].decode())
    return private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
