"""A side of a comparison in a process of its own, asked and answering in lines of JSON.

Guarantees: one answer a question; the process ends with its standard input. Must never know what
is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from engine.cluster.launch import CHECKOUT_DIR
from engine.errors import ConfigError

STOP_TIMEOUT_S = 30.0  # what it was asked last may still be computed


class JsonWorker:
    """A process that answers lines; a context manager.

    Args:
        module: run as `python -m module *words`.
        env: on top of this process's.
    """

    def __init__(self, module: str, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=CHECKOUT_DIR,
            env={**os.environ, **env},
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):  # it ended before it read all that was asked
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask and wait.

        Raises:
            ConfigError: the process ended; its messages are on standard error.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ConfigError(f"{self._module} ended; its messages are on standard error")
        answer: dict[str, Any] = json.loads(line)
        return answer
