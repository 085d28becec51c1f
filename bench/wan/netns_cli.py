"""`python -m bench wan clean | check | enter -- COMMAND …`.

Guarantees: `clean` touches only what dead runs left; `check` says what is missing for namespaced
links; `enter` gives an ordinary user a user namespace to run them in.
Must never know: rings, receipts.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from bench.wan.netns_process import why_unavailable
from bench.wan.netns_runs import clean_dead_runs
from engine.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("clean", help="remove what dead runs left: processes, devices, namespaces")
    actions.add_parser("check", help="say whether this user can use namespaced links, or why not")
    entering = actions.add_parser("enter", help="run a command in a user namespace of its own")
    entering.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND …")


def run(asked: argparse.Namespace) -> int:
    """Do one action; return the exit status.

    Raises:
        ConfigError: there is no command to enter with.
    """
    if asked.action == "clean":
        return clean()
    if asked.action == "check":
        return check()
    return enter(asked.words)


def clean() -> int:
    """Remove what dead runs left and say what that was."""
    print("\n".join(clean_dead_runs()) or "nothing left by dead runs")
    return 0


def check() -> int:
    """Say whether namespaced links work here; 2 if not."""
    reason = why_unavailable()
    print(reason or "namespaced links work here")
    return 2 if reason else 0


def enter(words: list[str]) -> NoReturn:
    """Become a command in a user namespace of its own.

    Raises:
        ConfigError: there is no command.
    """
    command = words[1:] if words[:1] == ["--"] else words
    if not command:
        raise ConfigError("wan enter: give a command, such as: wan enter -- python -m bench run")
    os.execv(sys.executable, [sys.executable, "-m", "bench.wan.netns_enter", *command])
