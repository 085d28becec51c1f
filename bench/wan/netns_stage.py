"""Starts a stage on its host: `python -m bench.wan.netns_stage TOKEN NAMESPACE ADDRESS`.

Guarantees: the process is in the namespace before it opens anything, listens on the host's address
and is otherwise the stage service, started as a launcher starts it.
Must never know: the ring, the links' shapes.
"""

from __future__ import annotations

import signal
import sys

from bench.wan.netns_kernel import enter_network
from engine.errors import ConfigError
from engine.stage import service


def main(arguments: list[str]) -> int:
    """Enter, then serve; return the exit status if there is no such namespace."""
    _, namespace, address = arguments  # the token only marks the process as one of its run
    try:
        enter_network(namespace)
    except ConfigError as error:
        print(f"stage at {address}: {error}", file=sys.stderr)
        return 2
    # Ctrl-C reaches the whole process group; the launcher decides when stages end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    service.main()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
