"""From logits to a token id.

Guarantees: the id is a function of the logits row alone; of equal logits the lowest id wins.
Sampling with noise keyed by (seed, position) belongs here too. Never knows about text or layers.
"""

from __future__ import annotations

import torch


def greedy_ids(logits: torch.Tensor) -> list[int]:
    """Return the id of the largest logit of every row, the lowest of equals.

    Shapes:
        logits: [T, V] float32
    """
    # numpy documents the first of equals; torch.argmax does not promise which
    return logits.numpy().argmax(axis=1).tolist()
