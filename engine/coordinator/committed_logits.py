"""Which rows of a reply's logits belong to the tokens that it committed. Must never know links."""

from __future__ import annotations

import torch

from engine.transport.message import Reply


def committed_rows(
    reply: Reply, logits: torch.Tensor, prompt_len: int, num_before: int, num_new: int
) -> tuple[int, torch.Tensor]:
    """The rows of the new tokens; what is behind them was refuted.

    Args:
        num_before, num_new: output tokens before the reply, and those that it committed.

    Returns:
        Position of the first new token, and its row with the following ones.

    Shapes:
        logits: [answered, V]
        return: [num_new, V]
    """
    # The prefill is answered for its last position only, a decode frame from its first on.
    answered_from = prompt_len if num_before == 0 else reply.start + 1
    first_position = prompt_len + num_before
    row_idx = first_position - answered_from
    return first_position, logits[row_idx : row_idx + num_new]
