"""Prefill and decode on this processor: this engine, the transformers library and llama.cpp.

Guarantees: engine and library compute in float32 with the same weights and threads, take turns
within every repetition, and must give the same ids, or there is no result. llama.cpp takes part
when `llama-bench` is on the path and the model is one GGUF file; it computes with that file's
quantised weights, another numeric configuration, so it is shown beside and never as a ratio.

    python -m bench.studies.cpu_speed [--threads 2] [--reps 5] [--prompt-len 512] [--new-tokens 64]

Prints a row a repetition; the last line is JSON: medians and the median ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.peers.transformers_speed import build_peer
from engine.errors import ConfigError, LonghaulError
from engine.model.decoder import Decoder
from engine.model.threads import available_cores, openmp_env, set_threads
from engine.model.tokenizer import Tokenizer
from engine.model.unsplit import prefill
from engine.model.weights import ModelFiles, prepare_model

_PROMPT_DIR = Path(__file__).parents[1] / "prompts"
_LLAMA_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, decoded once by one side."""

    ids: tuple[int, ...]
    prefill_tok_per_s: float
    decode_tok_per_s: float


class Clock:
    """Notes when each token came; also a streamer as the library's `generate` takes it."""

    def __init__(self, prompt_len: int) -> None:
        self._prompt_len = prompt_len
        self._stamps_ns = [time.perf_counter_ns()]

    def put(self, ids: torch.Tensor) -> None:
        """Stamp one token; the library also hands over the prompt, before it computes."""
        if ids.numel() == 1:
            self._stamps_ns.append(time.perf_counter_ns())

    def end(self) -> None:
        """Called by the library after the last token."""

    def turn(self, ids: list[int]) -> Turn:
        """Turn stamps into rates: up to the first token is prefill, the rest is decode.

        Raises:
            ConfigError: a single token came, so there is no decode.
        """
        if len(self._stamps_ns) < 3:
            raise ConfigError("one token has no decode speed; ask for 2 or more, another prompt")
        began_ns, first_ns, *_, last_ns = self._stamps_ns
        return Turn(
            tuple(ids),
            self._prompt_len * 1e9 / (first_ns - began_ns),
            (len(ids) - 1) * 1e9 / (last_ns - first_ns),
        )


def our_turn(decoder: Decoder, prompt_ids: list[int], num_new: int) -> Turn:
    """Decode with this engine, one position a forward."""
    clock = Clock(len(prompt_ids))
    cache = decoder.new_cache()
    output = [prefill(decoder, prompt_ids, cache)]
    clock.put(torch.tensor(output))
    while len(output) < num_new and output[-1] not in decoder.config.eos_ids:
        last = torch.tensor(output[-1:])
        output += decoder.greedy(decoder.forward(decoder.embed(last), cache.kv_len, cache))
        clock.put(last)
    return clock.turn(output)


@torch.inference_mode()
def peer_turn(peer: torch.nn.Module, prompt_ids: list[int], num_new: int) -> Turn:
    """Decode with the library's own loop."""
    ids = torch.tensor([prompt_ids])
    clock = Clock(len(prompt_ids))
    output = peer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=num_new,
        streamer=clock,
    )
    return clock.turn(output[0, len(prompt_ids) :].tolist())


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
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_LLAMA_TIMEOUT_S)
    if ended.returncode:
        raise ConfigError(f"{command[0]} ended with {ended.returncode}: {ended.stderr[-400:]}")
    try:
        tests = json.loads(ended.stdout)
        prompt_rate = next(test["avg_ts"] for test in tests if test["n_gen"] == 0)
        decode_rate = next(test["avg_ts"] for test in tests if test["n_prompt"] == 0)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise ConfigError(f"{command[0]} printed no table: {ended.stdout[:200]!r}") from error
    return float(prompt_rate), float(decode_rate)


def long_prompt(files: ModelFiles, prompt_len: int) -> list[int]:
    """Return the first ids of the packaged texts, one after another.

    Raises:
        ConfigError: the texts are shorter than that.
    """
    text = "\n\n".join(path.read_text("utf-8") for path in sorted(_PROMPT_DIR.glob("*.txt")))
    ids = Tokenizer.load(files).encode(text)
    if not 2 <= prompt_len <= len(ids):
        raise ConfigError(f"a prompt of {prompt_len} tokens; allowed: 2..{len(ids)}")
    return ids[:prompt_len]


def measure(num_threads: int, num_reps: int, prompt_len: int, num_new: int) -> dict[str, object]:
    """Let the sides take turns and return medians and ratios.

    Raises:
        ConfigError: the sides disagree on a token.
    """
    set_threads(num_threads)
    files = prepare_model()
    decoder = Decoder.load(files, 0, files.config.num_layers)
    peer = build_peer(files)
    prompt_ids = long_prompt(files, prompt_len)
    command = llama_command(files, num_threads, prompt_len, num_new)
    rows: list[tuple[float, ...]] = []
    for rep_idx in range(num_reps + 1):
        theirs, ours = peer_turn(peer, prompt_ids, num_new), our_turn(decoder, prompt_ids, num_new)
        if ours.ids != theirs.ids:
            raise ConfigError(f"the sides disagree; no speed is reported: {ours.ids} {theirs.ids}")
        llama = llama_rates(command) if command else ()
        if rep_idx:  # the first turn warms all sides up
            rates = (theirs.prefill_tok_per_s, ours.prefill_tok_per_s)
            rows.append((*rates, theirs.decode_tok_per_s, ours.decode_tok_per_s, *llama))
            print("  ".join(f"{rate:10.1f}" for rate in rows[-1]), flush=True)
    medians = [round(statistics.median(column), 1) for column in zip(*rows, strict=True)]
    return {
        "kernel": decoder.kernel.name,
        "num_threads": num_threads,
        "num_reps": num_reps,
        "prompt_len": prompt_len,
        "output_len": len(ours.ids),
        "prefill_tok_per_s": {"transformers": medians[0], "engine": medians[1]},
        "decode_tok_per_s": {"transformers": medians[2], "engine": medians[3]},
        "prefill_ratio": round(statistics.median(row[1] / row[0] for row in rows), 2),
        "decode_ratio": round(statistics.median(row[3] / row[2] for row in rows), 2),
        "llama_cpp": {"prefill": medians[4], "decode": medians[5]} if command else None,
    }


def main() -> int:
    """Parse, start anew under the environment of stages, measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.cpu_speed")
    parser.add_argument("--threads", type=int, default=len(available_cores()))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    asked = parser.parse_args()
    if os.environ.get("GOMP_SPINCOUNT") is None:  # OpenMP and the C library read theirs on load
        module = ["-m", "bench.studies.cpu_speed", *sys.argv[1:], "--threads", str(asked.threads)]
        environment = {**os.environ, **openmp_env(asked.threads)}
        os.execve(sys.executable, [sys.executable, *module], environment)
    print("tok/s: prefill transformers, engine; decode transformers, engine; llama.cpp if present")
    try:
        result = measure(asked.threads, asked.reps, asked.prompt_len, asked.new_tokens)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
