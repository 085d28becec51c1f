"""The other end of `bench.studies.seal_cost`: answers probes, one listener a suite.

Reads one JSON line from standard input (a list of `PeerConfig`), writes one line with the ports,
and serves until standard input closes.
"""

from __future__ import annotations

import sys
import threading

import msgspec

from engine.stage.config import NodeKeys
from engine.transport.connection import Received
from engine.transport.credentials import Credentials
from engine.transport.introduce import answer_callers
from engine.transport.link import Link, Listener
from engine.transport.message import Probe, ProbeAck
from engine.transport.reader import read_in_background


class PeerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who this end is under one suite."""

    cluster_id: str
    suite: str
    keys: NodeKeys

    def credentials(self) -> Credentials:
        """As the handshake wants them."""
        return Credentials(
            node_id="stage-0",
            cluster_id=self.cluster_id,
            suite=self.suite,
            callers={"input": "coordinator"},
            static_private=self.keys.static_private,
            cluster_secret=self.keys.cluster_secret,
            peer_keys=self.keys.peer_keys,
        )


def _answer_probes(_: str, link: Link) -> None:
    def on_message(received: Received, _: int) -> None:
        assert isinstance(received.message, Probe), "the study sends nothing else"
        link.send(ProbeAck(seq=received.message.seq))

    read_in_background(link, on_message, _complain, _discard)


def _complain(reason: object) -> None:
    print(f"echo peer: {reason}", file=sys.stderr, flush=True)


def _discard(reason: Exception) -> None:
    """The study has closed the link: it is over."""


def main() -> None:
    """Serve until standard input closes."""
    ports = []
    for config in msgspec.json.decode(sys.stdin.buffer.readline(), type=list[PeerConfig]):
        listener = Listener()
        ports.append(listener.address[1])
        threading.Thread(
            target=answer_callers,
            args=(listener, config.credentials(), _answer_probes, _complain),
            daemon=True,
        ).start()
    sys.stdout.buffer.write(msgspec.json.encode(ports) + b"\n")
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
