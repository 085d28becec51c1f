"""Runs a program that ends with whoever started it: `python -m bench.peers.tether PROGRAM WORDS…`.

Guarantees: when standard input closes, by whatever end of the process that holds it, the program is
killed; its exit status is this process's. Must never know what it runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run it and wait."""
    # Ctrl-C is for whoever started this one; it closes standard input when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_kill_at_end_of_input, args=(process,), daemon=True).start()
    return process.wait()


def _kill_at_end_of_input(process: subprocess.Popen[bytes]) -> None:
    sys.stdin.buffer.read()
    process.kill()


if __name__ == "__main__":
    sys.exit(main())
