"""Every error that Longhaul raises on purpose, in one tree.

Guarantees: whatever a user, a peer or the environment can get wrong raises a subclass of
`LonghaulError` whose message says what was wrong, where, what is allowed and what to do. Any other
exception is a bug. Imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable


class LonghaulError(Exception):
    """Base of all errors raised on purpose; entry points print it and exit with status 2."""


class ConfigError(LonghaulError):
    """The caller asked for something that does not exist or cannot be (name, value, plan)."""


class ModelError(LonghaulError):
    """A model file is missing, truncated, altered or of an unsupported kind."""


class ProtocolError(LonghaulError):
    """The wire protocol was broken."""


class LocalProtocolError(ProtocolError):
    """Our own code misused a protocol object."""


class RemoteProtocolError(ProtocolError):
    """A peer sent what it must not; its connection is closed for good."""


class HandshakeError(RemoteProtocolError):
    """A peer could not prove who it is, or may not have the link it asks for."""


class FrameRejected(RemoteProtocolError):  # noqa: N818 - the design's word
    """A frame of a protected connection does not authenticate: altered, replayed or out of order.

    Args:
        peer: authenticated node id of the other end.
        direction: which way the frame went, such as "stage-0 -> stage-1 (input)".
    """

    def __init__(self, peer: str, direction: str) -> None:
        self.peer = peer
        self.direction = direction
        super().__init__(
            f"a frame from {peer} ({direction}) does not authenticate: it was altered, replayed or "
            "sent out of order; this connection is closed for good"
        )


class UnmatchedReplyError(RemoteProtocolError):
    """A reply that answers no frame that is due; it decides nothing and is dropped and counted."""


class LinkClosedError(LonghaulError):
    """A link ended: the peer closed it, it stalled or it could not be reached."""


class JobError(LonghaulError):
    """One job failed; the ring lives on.

    Args:
        code: stable machine-readable name, such as `kv_gap` or `context_overflow`.
        detail: sentence for people.
        stage_idx: the stage that reported it; None for the coordinator.
    """

    def __init__(self, code: str, detail: str, stage_idx: int | None = None) -> None:
        self.code = code
        self.detail = detail
        self.stage_idx = stage_idx
        where = "coordinator" if stage_idx is None else f"stage {stage_idx}"
        super().__init__(f"{code} ({where}): {detail}")


class ReceiptError(LonghaulError):
    """A receipt, plan or signature does not hold; the message names the file and the reason."""


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> ConfigError:
    """Make the one error for a misspelt name: it lists every valid one.

    Args:
        kind: what was looked up, such as "arm".
        name: what the caller wrote.
        valid: iterable of the allowed names.
    """
    names = ", ".join(sorted(valid))
    return ConfigError(f"unknown {kind} {name!r}; valid: {names}")


def shown(text: str, limit: int = 64) -> str:
    """What a peer or a file says, fit for a message: bounded and printable."""
    kept = "".join(char if char.isprintable() else "?" for char in text[:limit])
    return kept if len(text) <= limit else f"{kept}…"
