"""Which rows of a reply's logits belong to the tokens that it committed. Must never know links."""

from __future__ import annotations

import torch

from engine.coordinator.records import CommitTokens
from engine.errors import RemoteProtocolError


def committed_rows(commit: CommitTokens, logits: torch.Tensor, num_ids: int) -> torch.Tensor:
    """The rows of the new tokens; the others were refuted, or stand beside a tree's path.

    Args:
        num_ids: answered by the reply.

    Shapes:
        logits: [answered, V]
        return: [committed, V]

    Raises:
        RemoteProtocolError: the reply has not one row an id.
    """
    if logits.dim() != 2 or logits.shape[0] != num_ids:
        raise RemoteProtocolError(f"logits {list(logits.shape)} in a reply of {num_ids} ids")
    return logits[list(commit.rows)]
