"""llama.cpp as a peer: `llama-bench`, where it is on the path and the model is one GGUF file.

Guarantees: it takes part as a whole or not at all. It computes with the file's quantised weights,
another numeric configuration, so its speed is no ratio's. Must never know what it is shown beside.
"""

from __future__ import annotations

import json
import shutil
import subprocess

from engine.errors import ConfigError
from engine.model.weights import ModelFiles

_TIMEOUT_S = 300


def llama_command(
    files: ModelFiles, num_threads: int, prompt_len: int, num_new: int
) -> list[str] | None:
    """Return the command that times llama.cpp once, or None where it cannot take part."""
    program = shutil.which("llama-bench")
    if program is None or files.source_path.suffix != ".gguf":
        return None
    numbers = {"-p": prompt_len, "-n": num_new, "-t": num_threads, "-r": 1, "-ngl": 0}
    options = [text for option, number in numbers.items() for text in (option, str(number))]
    return [program, "-m", str(files.source_path), "-o", "json", *options]


def llama_rates(command: list[str]) -> tuple[float, float]:
    """Run llama.cpp once; returns prefill and decode tok/s.

    Raises:
        ConfigError: it failed, or printed something else than a table of two tests.
    """
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if ended.returncode:
        raise ConfigError(f"{command[0]} ended with {ended.returncode}: {ended.stderr[-400:]}")
    try:
        tests = json.loads(ended.stdout)
        prompt_rate = next(test["avg_ts"] for test in tests if test["n_gen"] == 0)
        decode_rate = next(test["avg_ts"] for test in tests if test["n_prompt"] == 0)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise ConfigError(f"{command[0]} printed no table: {ended.stdout[:200]!r}") from error
    return float(prompt_rate), float(decode_rate)
