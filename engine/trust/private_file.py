"""Files that only their owner may read: created whole or not at all, read only if private.

Guarantees: a private file never exists half written or, even for a moment, under a wider mode than
0600; of two processes that create one, exactly one does, and the other is told; reading refuses
what others could have read. Must never know what the file holds.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from pathlib import Path

from engine.errors import ConfigError

MAX_LEN = 16 * 1024  # bytes; no key is longer


def create_private_file(path: Path, content: bytes) -> None:
    """Create a file of mode 0600, its folder too if need be.

    Raises:
        FileExistsError: it exists; the content that is there stays.
        ConfigError: nothing can be written there.
    """
    # A private name first, then a link that fails if the file exists: nobody sees it half written.
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.link(staging, path)
    finally:
        os.unlink(staging)


def read_private_file(path: Path, what: str) -> bytes:
    """Read a file that must be ours alone.

    Args:
        what: name for messages, such as "private key".

    Raises:
        ConfigError: it cannot be read, is no regular file, belongs to somebody else, or others may
            use it.
    """
    try:
        # Not to wait for a writer, should it be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{path}: the {what} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)  # of the file that is open, whatever the name means by now
        _require_private(path, what, status)
        return os.read(descriptor, MAX_LEN)
    finally:
        os.close(descriptor)


def _require_private(path: Path, what: str, status: os.stat_result) -> None:
    quoted, owner, mode = shlex.quote(str(path)), os.geteuid(), stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: the {what} must be a regular file; move it away")
    if status.st_uid != owner:
        raise ConfigError(
            f"{path}: {what} belongs to user {status.st_uid}, this process runs as {owner}; "
            f"run: chown {owner} {quoted}"
        )
    if mode & 0o077:
        raise ConfigError(f"{path}: {what} has mode {mode:04o}; run: chmod 600 {quoted}")
