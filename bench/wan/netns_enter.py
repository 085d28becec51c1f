"""`python -m bench.wan.netns_enter COMMAND …`: a command in a user namespace of its own.

Guarantees: the command replaces this process, is root in its namespaces and nowhere else, and finds
the loopback interface up. A module of its own, since the kernel lets no process with threads in,
and importing torch starts some. Must never know: rings.
"""

from __future__ import annotations

import os
import sys

from bench.wan.netns_kernel import become_user_root
from engine.errors import ConfigError


def main(command: list[str]) -> int:
    """Enter and become the command; return the exit status if that fails."""
    try:
        become_user_root()
        os.execvp(command[0], command)
    except (ConfigError, OSError) as error:
        print(f"error: {' '.join(command)}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
