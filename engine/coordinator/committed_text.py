"""What is committed, and when output ends: EOS, a stop string or its longest length. Sans-IO.

Guarantees: append-only; ends exactly, with the token that ends it. Must never know frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.coordinator.records import FinishReason, RoundLimits


class CommittedText:
    """Prompt and output of one job.

    Args:
        should_stop: called with the output so far after each token; True ends output there.

    Attributes:
        finish_reason: "none" while more may come.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        limits: RoundLimits,
        should_stop: Callable[[Sequence[int]], bool],
    ) -> None:
        self.finish_reason: FinishReason = "none"
        self.prompt_len = len(prompt_ids)
        self._ids = list(prompt_ids)  # by position
        self._limits = limits
        self._should_stop = should_stop

    @property
    def frontier(self) -> int:
        """Number of committed tokens, prompt included."""
        return len(self._ids)

    @property
    def output_ids(self) -> list[int]:
        return self._ids[self.prompt_len :]

    @property
    def finished(self) -> bool:
        return self.finish_reason != "none"

    @property
    def last_position(self) -> int:
        """Of the longest output. The position before decides its token: no draft stands there."""
        return self.prompt_len + self._limits.max_new_tokens - 1

    def between(self, start: int, end: int | None = None) -> tuple[int, ...]:
        """Tokens of these positions."""
        return tuple(self._ids[start:end])

    def append(self, token: int) -> None:
        """Commit one token at the frontier."""
        self._ids.append(token)
        if token in self._limits.eos_ids:
            self.finish_reason = "eos"
        elif self._should_stop(self.output_ids):
            self.finish_reason = "stop"
        elif self.frontier > self.last_position:
            self.finish_reason = "length"
