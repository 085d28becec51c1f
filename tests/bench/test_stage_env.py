"""Studies that compute start anew in a stage's environment, once, with the threads asked for."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from bench.studies import cpu_speed, kernels
from engine.model.threads import openmp_env

THREADS_IDX = {cpu_speed: 0, kernels: 3}  # where `measure` takes them


class RestartedError(Exception):
    """Stands for the process that `execve` replaces."""


@pytest.mark.parametrize("module", THREADS_IDX)
def test_a_study_starts_anew_once_and_is_told_its_threads(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches words lost on the way, a restart without end, and threads read off a bound core."""
    started: list[tuple[list[str], dict[str, str]]] = []

    def execve(program: str, words: list[str], env: dict[str, str]) -> None:
        assert program == words[0] == sys.executable
        started.append((words, env))
        raise RestartedError

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setattr(sys, "argv", ["study", "--reps", "7"])
    monkeypatch.setattr(module, "available_cores", lambda: [0, 1, 2])
    wanted = openmp_env(3)
    with pytest.raises(RestartedError):
        module.main()
    ((words, env),) = started
    assert words[1:5] == ["-m", module.__name__, "--reps", "7"] and wanted.items() <= env.items()

    monkeypatch.setenv("GOMP_SPINCOUNT", env["GOMP_SPINCOUNT"])
    monkeypatch.setattr(sys, "argv", ["study", *words[3:]])
    monkeypatch.setattr(module, "available_cores", lambda: [0])
    measured: list[tuple[object, ...]] = []
    monkeypatch.setattr(module, "measure", lambda *asked: measured.append(asked) or {})
    assert module.main() == 0
    assert len(started) == 1 and measured[0][THREADS_IDX[module]] == 3
