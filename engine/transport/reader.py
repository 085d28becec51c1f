"""Threads that read links.

Guarantees: every message is handed over in order with the time it was read; the end of a link is
told once. Must never know sockets or what a message means.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from engine.errors import LinkClosedError, RemoteProtocolError
from engine.transport.connection import Received
from engine.transport.link import Link


def read_in_background(
    link: Link,
    on_message: Callable[[Received, int], None],
    on_stray: Callable[[Received], None],
    on_end: Callable[[Exception], None],
) -> threading.Thread:
    """Start a daemon thread that hands over every message with its arrival time (monotonic ns).

    Args:
        on_stray: gets what the peer may not send on this link.
        on_end: called once, with the reason, when the link ends.
    """

    def run() -> None:
        try:
            while True:
                received = link.receive()
                if isinstance(received.message, link.peer_may_send):
                    on_message(received, time.monotonic_ns())
                else:
                    on_stray(received)
        except (LinkClosedError, RemoteProtocolError) as error:
            on_end(error)

    thread = threading.Thread(target=run, name=f"read {link.peer}", daemon=True)
    thread.start()
    return thread
