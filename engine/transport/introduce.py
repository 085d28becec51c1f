"""Runs handshakes over links: the shell around `handshake.py`.

Guarantees: no link leaves here before both ends have proved who they are (or a plain ring was asked
for by name); a stranger costs a bounded amount of memory for a bounded time and holds nobody else
up; every caller turned away is counted and logged at a limited rate. Must never know what a link is
used for after that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from engine.errors import HandshakeError, LinkClosedError, RemoteProtocolError
from engine.transport.handshake import (
    CallerHandshake,
    Credentials,
    Established,
    ListenerHandshake,
    Progress,
)
from engine.transport.link import Link, Listener, connect
from engine.transport.roles import ROLES

HANDSHAKE_TIMEOUT_S = 10.0  # as a whole: two round trips of the longest link, and a busy host
MAX_STRANGERS = 16  # callers in the middle of a handshake; more are turned away unheard

Handshake = CallerHandshake | ListenerHandshake


def call(
    address: tuple[str, int],
    credentials: Credentials,
    role: str,
    to_node_id: str,
    timeout_s: float,
) -> Link:
    """Dial, introduce ourselves and check who answers.

    Args:
        timeout_s: how long to wait for somebody to listen there.

    Raises:
        ConfigError: the plan does not know `to_node_id`.
        LinkClosedError: nobody there, or no agreement with whoever is; the message says why.
    """
    handshake = CallerHandshake(credentials, role, to_node_id)
    link = connect(address, to_node_id, timeout_s)
    try:
        established = _run(link, credentials.node_id, handshake, handshake.start())
    except (LinkClosedError, RemoteProtocolError) as error:
        link.abort()
        raise LinkClosedError(
            f"{credentials.node_id} and {to_node_id} did not agree on their {role} link: {error}"
        ) from error
    link.welcome(ROLES[established.role].listener_sends)
    return link


def answer_callers(
    listener: Listener,
    credentials: Credentials,
    on_link: Callable[[str, Link], None],
    on_refused: Callable[[Exception], None],
) -> None:
    """Take callers in until the listener is closed, several at a time.

    Args:
        on_link: gets the role and the link of each caller that proved who it is; any thread.
        on_refused: gets the reason for each one turned away; any thread.
    """
    places = threading.Semaphore(MAX_STRANGERS)

    def greet(link: Link) -> None:
        try:
            established = _answer(link, credentials)
        except (LinkClosedError, RemoteProtocolError) as error:
            link.abort()
            on_refused(error)
        else:
            on_link(established.role, link)
        finally:
            places.release()

    while True:
        try:
            link = listener.accept()
        except LinkClosedError:
            return
        if places.acquire(blocking=False):
            threading.Thread(target=greet, args=(link,), name="greet", daemon=True).start()
        else:
            link.abort()
            on_refused(HandshakeError(f"{MAX_STRANGERS} callers are being greeted already"))


def _answer(link: Link, credentials: Credentials) -> Established:
    handshake = ListenerHandshake(credentials)
    established = _run(link, credentials.node_id, handshake, Progress())
    link.welcome(ROLES[established.role].caller_sends)
    return established


def _run(link: Link, node_id: str, handshake: Handshake, progress: Progress) -> Established:
    """Exchange messages until the handshake is finished.

    Raises:
        LinkClosedError: the peer went away or took too long.
        RemoteProtocolError: it could not prove who it is, or refused us.
    """
    deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
    established: Established | None = None
    while True:
        if progress.send is not None:
            link.send(progress.send)
        if progress.established is not None:
            established = progress.established
            direction = f"{established.peer} -> {node_id} ({established.role})"
            link.protect(established, direction)
        if progress.send_sealed is not None:
            link.send(progress.send_sealed)
        if progress.failure is not None:
            link.close()  # flushes the refusal, so that the peer can say why
            raise progress.failure
        if progress.finished and established is not None:
            return established
        try:
            message = link.receive(deadline_s).message
        except LinkClosedError as error:
            raise LinkClosedError(f"{error}: {handshake.on_close()}") from error
        progress = handshake.on_message(message)
