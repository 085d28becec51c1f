"""A drafter whose right and wrong tokens follow a script, and the script of a real drafter.

Guarantees: at every output position the script alone says whether the proposed token is the
target's, whatever was drafted or committed before, so that a draft of any length at any time is
well defined; it is told the text, so it is never a claim. Must never know policies or rings.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.bounds import ORACLE, KnownTextDrafter
from bench.traces import Trace
from engine.draft.drafter import Draft, Drafter
from engine.errors import ConfigError

BEHIND_END = 0  # what is drafted behind the last output token, where nothing is ever right


class ScriptedDrafter(KnownTextDrafter):
    """Proposes the target's next token where its bit is 1, another token where it is 0.

    Args:
        output_ids: the target's own continuation.
        bits: of the output positions from the second on: the prompt pass brings the first.

    Raises:
        ConfigError: the bits do not fit the text.
    """

    name = "scripted"

    def __init__(self, output_ids: Sequence[int], bits: Sequence[int]) -> None:
        if len(bits) != len(output_ids) - 1 or not set(bits) <= {0, 1}:
            raise ConfigError(
                f"{len(bits)} bits for {len(output_ids)} output tokens; needed: a 0 or 1 for each "
                "but the first"
            )
        first, *others = output_ids
        # A wrong token is the right one with its lowest bit turned over.
        wrong_or_right = (token ^ (1 - bit) for token, bit in zip(others, bits, strict=True))
        super().__init__((first, *wrong_or_right))

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        """Exactly `max_len` tokens."""
        ids = self.upcoming(speculative, max_len)
        return Draft(ids + (BEHIND_END,) * (max_len - len(ids)), ORACLE, 0)


def position_bits(trace: Trace, drafter: Drafter) -> tuple[int, ...]:
    """By output position from the second on: is the drafter's next token the target's?

    The drafter is shown the text up to each position and asked for one token; none is a wrong one.

    Args:
        drafter: one that drafts from tokens alone.
    """
    drafter.begin(trace.prompt_ids)
    bits = []
    for before, token in zip(trace.output_ids, trace.output_ids[1:], strict=False):
        drafter.extend((before,))
        bits.append(int(drafter.draft((), 1, True).ids[:1] == (token,)))
    return tuple(bits)
