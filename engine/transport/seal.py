"""The seam where frames get protected.

Guarantees: everything that is sent or received passes one `FrameSealer` or `FrameOpener`, so that
protection is a choice of suite and never a second code path. `plain` is the only suite until the
handshake exists; it is asked for by name and is for measurement on a trusted machine only.
"""

from __future__ import annotations

from typing import Protocol


class FrameSealer(Protocol):
    """Protects outgoing frames of one direction, in place."""

    tag_len: int  # bytes by which `seal` grows a payload

    def seal(self, header: memoryview, payload_and_tag: memoryview) -> None:
        """Encrypt the payload in place, the header as associated data, the tag behind it."""


class FrameOpener(Protocol):
    """Checks and opens incoming frames of one direction, in place."""

    protected: bool  # True: the kind is interpreted only after `open` succeeds
    tag_len: int

    def open(self, header: memoryview, payload_and_tag: memoryview) -> memoryview:
        """Return the payload, or raise `RemoteProtocolError`."""


class PlainSealer:
    """No protection."""

    tag_len = 0

    def seal(self, header: memoryview, payload_and_tag: memoryview) -> None:
        return None


class PlainOpener:
    """No protection."""

    protected = False
    tag_len = 0

    def open(self, header: memoryview, payload_and_tag: memoryview) -> memoryview:
        return payload_and_tag
