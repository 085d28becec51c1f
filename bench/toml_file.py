"""Reads a TOML file that is named after what it holds: a cell, a link profile.

Guarantees: strict; every way it can be wrong is a `ConfigError` with the file's name, what is
allowed where. Must never know what the fields mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from engine.errors import ConfigError

FileT = TypeVar("FileT", bound=msgspec.Struct)


def read_named(
    path: Path, kind: type[FileT], entry_key: str, entry_kind: type[msgspec.Struct]
) -> FileT:
    """Read one file.

    Args:
        path: `<name>.toml`.
        kind: the file's struct; it has a `name`, which must be the file's.
        entry_key: its list of tables, for the message.
        entry_kind: the struct of one such table, for the message.

    Raises:
        ConfigError: the file is unreadable, not TOML, does not fit, or is named otherwise.
    """
    try:
        written = msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"{path.name}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path.name}: {error}; allowed keys: {', '.join(kind.__struct_fields__)}; "
            f"in [[{entry_key}]]: {', '.join(entry_kind.__struct_fields__)}"
        ) from error
    name = getattr(written, "name", None)
    if name != path.stem:
        raise ConfigError(f"{path.name}: name is {name!r}, the file says {path.stem!r}")
    return written
