"""Prefill, decode and verification on this processor, against the transformers library.

Guarantees: engine and library compute in float32 with the same weights and threads, take turns
within every repetition, and must give the same ids, or there is no result. Verification is this
engine's alone: forwards of a frame's positions, as a ratio to what the library decodes. llama.cpp
is shown beside where it is installed (`bench.peers.llama_cpp`), and never as a ratio.

    python -m bench.studies.cpu_speed [--threads 2] [--reps 5] [--prompt-len 512] [--new-tokens 64]

Prints a row a repetition; the last line is JSON: medians and the median ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch

from bench.peers.llama_cpp import llama_command, llama_rates
from bench.peers.transformers_speed import build_peer, peer_turn
from bench.peers.turn import Clock, Turn
from bench.studies.stage_env import restart_as_stage
from engine.defaults import DRAFT_LEN
from engine.errors import ConfigError, LonghaulError
from engine.model.decoder import Decoder
from engine.model.threads import available_cores, set_threads
from engine.model.tokenizer import Tokenizer
from engine.model.unsplit import prefill, verify_ms
from engine.model.weights import ModelFiles, prepare_model

_MODULE = "bench.studies.cpu_speed"
_PROMPT_DIR = Path(__file__).parents[1] / "prompts"
VERIFIED_POSITIONS = DRAFT_LEN + 1  # of a frame: drafts and their anchor
_NUM_VERIFIES = 15


def our_turn(decoder: Decoder, prompt_ids: list[int], num_new: int) -> Turn:
    """Decode with this engine, one position a forward."""
    clock = Clock()
    cache = decoder.new_cache()
    output = [prefill(decoder, prompt_ids, cache)]
    clock.note()
    while len(output) < num_new and output[-1] not in decoder.config.eos_ids:
        last = torch.tensor(output[-1:])
        output += decoder.greedy(decoder.forward(decoder.embed(last), cache.kv_len, cache))
        clock.note()
    return clock.turn(output, len(prompt_ids))


def verify_rate(decoder: Decoder, context_ids: list[int]) -> float:
    """Positions a second that this engine verifies behind a context; the median of forwards."""
    times_ms = verify_ms(decoder, context_ids, VERIFIED_POSITIONS, _NUM_VERIFIES)
    return VERIFIED_POSITIONS * 1e3 / statistics.median(times_ms)


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
        verified = verify_rate(decoder, [*prompt_ids, *ours.ids])
        llama = llama_rates(command) if command else ()
        if rep_idx:  # the first turn warms all sides up
            prefills = (theirs.prefill_tok_per_s, ours.prefill_tok_per_s)
            decodes = (theirs.decode_tok_per_s, ours.decode_tok_per_s)
            rows.append((*prefills, *decodes, verified, *llama))
            print("  ".join(f"{rate:10.1f}" for rate in rows[-1]), flush=True)
    settings = {"num_threads": num_threads, "num_reps": num_reps, "prompt_len": prompt_len}
    return {
        "kernel": decoder.kernel.name,
        **settings,
        "output_len": len(ours.ids),
        **summary(rows),
    }


def summary(rows: list[tuple[float, ...]]) -> dict[str, object]:
    """Medians of the columns, and of their ratios within a row.

    Args:
        rows: tok/s of prefill by the library and the engine, of decode likewise, verified
            positions/s, and llama.cpp's prefill and decode if it took part.
    """
    medians = [round(statistics.median(column), 1) for column in zip(*rows, strict=True)]
    llama = medians[5:]

    def ratio(above: int, below: int) -> float:
        return round(statistics.median(row[above] / row[below] for row in rows), 2)

    return {
        "prefill_tok_per_s": {"transformers": medians[0], "engine": medians[1]},
        "decode_tok_per_s": {"transformers": medians[2], "engine": medians[3]},
        "verify_positions_per_s": medians[4],
        "prefill_ratio": ratio(1, 0),
        "decode_ratio": ratio(3, 2),
        "verify_ratio": ratio(4, 2),
        "llama_cpp": dict(zip(("prefill", "decode"), llama, strict=True)) if llama else None,
    }


def main() -> int:
    """Parse, start anew under the environment of stages, measure."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--threads", type=int, default=len(available_cores()))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    asked = parser.parse_args()
    restart_as_stage(_MODULE, asked.threads)
    print(
        "tok/s: prefill transformers, engine; decode transformers, engine; positions verified/s; "
        "llama.cpp if present"
    )
    try:
        result = measure(asked.threads, asked.reps, asked.prompt_len, asked.new_tokens)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
