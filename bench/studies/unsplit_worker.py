"""The unsplit engine in a process of its own, so that it has a stage's threads and waits.

Reads one JSON object a line from standard input, `{"prompt_ids": […], "num_new": n}`, and answers
with `{"ids": […], "decode_ns": t}`; the clock starts with the prefill's token. Ends when standard
input closes. Started by `bench.studies.ring_overhead`.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from engine.model.decoder import Decoder
from engine.model.threads import set_threads
from engine.model.unsplit import prefill
from engine.model.weights import prepare_model


def decode(decoder: Decoder, prompt_ids: list[int], num_new: int) -> tuple[list[int], int]:
    """Decode greedily, one position a forward, to exactly `num_new` tokens.

    Returns:
        The ids and the time from the first to the last of them, ns.
    """
    cache = decoder.new_cache()
    output = [prefill(decoder, prompt_ids, cache)]
    began_ns = time.monotonic_ns()
    while len(output) < num_new:
        hidden = decoder.embed(torch.tensor(output[-1:]))
        output += decoder.greedy(decoder.forward(hidden, cache.kv_len, cache))
    return output, time.monotonic_ns() - began_ns


def main() -> None:
    """Serve until standard input closes."""
    set_threads(int(sys.argv[1]))
    files = prepare_model()
    decoder = Decoder.load(files, 0, files.config.num_layers)
    for line in sys.stdin:
        asked = json.loads(line)
        ids, decode_ns = decode(decoder, asked["prompt_ids"], asked["num_new"])
        print(json.dumps({"ids": ids, "decode_ns": decode_ns}), flush=True)


if __name__ == "__main__":
    main()
