"""One prompt decoded once by one side of a comparison, timed the same way for every side.

Guarantees: prefill ends when the first tokens are there, whoever makes them; decode is what comes
after, counted in tokens that came after. Must never know who decodes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.errors import ConfigError

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side made of a prompt.

    Attributes:
        first_len: tokens that were there first, at once; drafts may come with the prompt.
        prefill_ns: from asking to those.
        decode_ns: from those to the last; 0 if all came at once.
    """

    ids: tuple[int, ...]
    prompt_len: int
    first_len: int
    prefill_ns: int
    decode_ns: int

    @property
    def prefill_tok_per_s(self) -> float:
        return self.prompt_len / self.prefill_ns * NS_PER_S

    @property
    def decode_tok_per_s(self) -> float:
        """Of the tokens that came after the first ones.

        Raises:
            ConfigError: none did.
        """
        if not self.decode_ns:
            raise ConfigError("all tokens came at once: no decode to time; ask for more of them")
        return (len(self.ids) - self.first_len) / self.decode_ns * NS_PER_S


class Clock:
    """Notes when tokens came; it starts when it is made."""

    def __init__(self) -> None:
        self._began_ns = time.perf_counter_ns()
        self._noted: list[tuple[int, int]] = []  # tokens, when

    def note(self, num_tokens: int = 1) -> None:
        """So many tokens are there now."""
        if num_tokens:
            self._noted.append((num_tokens, time.perf_counter_ns()))

    def turn(self, ids: list[int], prompt_len: int) -> Turn:
        """Up to the first tokens is prefill, the rest is decode.

        Raises:
            ConfigError: none came, or some were not noted.
        """
        if not self._noted:
            raise ConfigError("no token came: nothing to time")
        if sum(num for num, _ in self._noted) != len(ids):
            raise ConfigError(f"{self._noted} tokens were noted, {len(ids)} came: no speed is told")
        first_len, first_ns = self._noted[0]
        _, last_ns = self._noted[-1]
        return Turn(
            tuple(ids), prompt_len, first_len, first_ns - self._began_ns, last_ns - first_ns
        )
