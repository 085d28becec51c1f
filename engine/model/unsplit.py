"""Decode in one process, without a ring: the reference for tests and measurements.

Guarantees: `generate_greedy` yields the ids that any lossless ring must. Never knows about
transport, stages or drafters.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import torch

from engine.defaults import PREFILL_CHUNK
from engine.errors import ConfigError
from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache


def prefill(
    decoder: Decoder, prompt_ids: Sequence[int], cache: KVCache, chunk: int = PREFILL_CHUNK
) -> int:
    """Fill the cache with a prompt and return the first output token.

    Args:
        decoder: all layers.
        prompt_ids: at least one id.
        cache: an empty cache.
        chunk: positions a forward.

    Raises:
        ConfigError: if the prompt is empty.
    """
    if not prompt_ids:
        raise ConfigError("an empty prompt has no next token; give at least one id")
    ids = torch.tensor(prompt_ids)
    hidden = decoder.embed(ids[:0])
    for start in range(0, len(prompt_ids), chunk):
        hidden = decoder.forward(decoder.embed(ids[start : start + chunk]), start, cache)
    return decoder.greedy(hidden[-1:])[0]


def generate_greedy(
    decoder: Decoder,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int],
    chunk: int = PREFILL_CHUNK,
) -> list[int]:
    """Decode one token at a time.

    Returns:
        Output ids; an end-of-generation id is the last one.
    """
    cache = decoder.new_cache()
    output = [prefill(decoder, prompt_ids, cache, chunk)]
    while len(output) < max_new_tokens and output[-1] not in eos_ids:
        hidden = decoder.embed(torch.tensor(output[-1:]))
        output += decoder.greedy(decoder.forward(hidden, cache.kv_len, cache))
    return output


def verify_ms(
    decoder: Decoder, prompt_ids: Sequence[int], num_positions: int, num_forwards: int
) -> list[float]:
    """Time forwards that verify a span of positions, head and choice included.

    Args:
        decoder: all layers.
        prompt_ids: context; the span is its last `num_positions` ids, again and again.
        num_positions: rows a forward.
        num_forwards: how many to time.

    Returns:
        Wall time of each in milliseconds.
    """
    cache = decoder.new_cache()
    prefill(decoder, prompt_ids, cache)
    start = len(prompt_ids) - num_positions
    ids = torch.tensor(prompt_ids[start:])
    times_ms = []
    for _ in range(num_forwards):
        began_ns = time.perf_counter_ns()
        decoder.greedy(decoder.forward(decoder.embed(ids), start, cache))
        times_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return times_ms
