"""The transformers library in a process of its own, so that it has a stage's threads and waits.

Reads one JSON object a line from standard input, `{"prompt_ids": […], "num_new": n, "lookup": k}`,
and answers with the fields of `bench.peers.turn.Turn`; `lookup` 0 decodes greedily, k drafts up to
k tokens by the library's own prompt lookup. Ends when standard input closes. Started by
`bench.studies.peers`.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from bench.peers.transformers_speed import build_peer, peer_turn
from engine.model.threads import set_threads
from engine.model.weights import prepare_model


def main() -> None:
    """Serve until standard input closes."""
    set_threads(int(sys.argv[1]))
    peer = build_peer(prepare_model())
    for line in sys.stdin:
        asked = json.loads(line)
        turn = peer_turn(peer, asked["prompt_ids"], asked["num_new"], asked["lookup"])
        print(json.dumps(dataclasses.asdict(turn)), flush=True)


if __name__ == "__main__":
    main()
