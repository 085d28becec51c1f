"""What a process logs about its peers: rejected frames, strays and refused callers.

Guarantees: one rate limiter for all of it, so that nobody floods the log from outside; the lines go
to the logger `longhaul`, which reaches standard error unless the caller has set up logging. Must
never know what a job is.
"""

from __future__ import annotations

import logging
import time

from engine.errors import FrameRejected
from engine.transport.limited_log import LimitedLog
from engine.transport.message import AnyMessage

LOGGER = logging.getLogger("longhaul")


class PeerLog:
    """The log of one node.

    Args:
        node_id: whose log it is.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._log = LimitedLog(time.monotonic_ns, self._write)

    def ended(self, reason: Exception) -> None:
        """A link has ended; only a rejected frame is worth a line, all else is reported by jobs."""
        if isinstance(reason, FrameRejected):
            self._log.record((reason.peer, reason.direction), str(reason))

    def stray(self, peer: str, message: AnyMessage) -> None:
        """A peer sent what it may not send on that link."""
        name = type(message).__name__
        self._log.record(
            (peer, "stray"), f"dropped a {name} from {peer}: not its to send, or not now"
        )

    def refused(self, reason: Exception) -> None:
        """A caller was turned away."""
        self._log.record(("callers", "refused"), f"turned a caller away: {reason}")

    def _write(self, line: str) -> None:
        LOGGER.warning("%s: %s", self._node_id, line)
