"""n-gram drafter: copy what followed the longest earlier occurrence of the current suffix.

Guarantees: exact. The match is the longest suffix of committed + speculative tokens that occurs
earlier (overlap allowed), the most recent occurrence among equally long ones; a draft that runs off
the end of the text goes on with its own tokens, as a periodic text does. Index updates are one
append a token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from engine.draft.drafter import NO_DRAFT, Draft
from engine.errors import ConfigError


class NgramDrafter:
    """Longest-suffix-match drafter over prompt and output.

    Args:
        min_match_len: shortest suffix to believe, in tokens. Shorter values draft more often and
            are refused more often.
    """

    name = "ngram"
    goes_on = True

    def __init__(self, min_match_len: int) -> None:
        if min_match_len < 1:
            raise ConfigError(f"min_match_len is {min_match_len}; allowed: 1 or more")
        self._min_match_len = min_match_len
        self._text: list[int] = []
        # Key: min_match_len consecutive tokens; value: the positions just behind each occurrence.
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._text = []
        self._ends = defaultdict(list)
        self.extend(prompt_ids)

    def extend(self, ids: Sequence[int]) -> None:
        for token in ids:
            self._text.append(token)
            self._index_tail()

    def draft(self, speculative: Sequence[int], max_len: int) -> Draft:
        """Propose at most `max_len` tokens after committed + `speculative`.

        The speculative tokens join the index for the search and leave it again.
        """
        committed_len = len(self._text)
        self.extend(speculative)
        try:
            end, match_len = self._longest_match()
            if match_len == 0 or max_len < 1:
                return NO_DRAFT
            return Draft(self._continue_from(end, max_len), self.name, match_len)
        finally:
            self._truncate(committed_len)

    def _index_tail(self) -> None:
        if len(self._text) >= self._min_match_len:
            self._ends[tuple(self._text[-self._min_match_len :])].append(len(self._text))

    def _truncate(self, text_len: int) -> None:
        while len(self._text) > text_len:
            if len(self._text) >= self._min_match_len:
                self._ends[tuple(self._text[-self._min_match_len :])].pop()
            self._text.pop()

    def _longest_match(self) -> tuple[int, int]:
        """Return (position behind the best earlier occurrence, its length); (0, 0) for none."""
        text = self._text
        if len(text) < self._min_match_len:
            return 0, 0
        candidates = self._ends[tuple(text[-self._min_match_len :])]
        best_end, best_len = 0, 0
        for end in reversed(candidates):
            if end == len(text):
                continue  # the suffix itself
            if end <= best_len:
                break  # an earlier occurrence has too little text before it to be longer
            # Longer than the best so far only if it also agrees at that distance; cheap reject.
            if best_len and text[end - 1 - best_len] != text[-1 - best_len]:
                continue
            match_len = self._min_match_len
            while match_len < end and text[end - 1 - match_len] == text[-1 - match_len]:
                match_len += 1
            if match_len > best_len:
                best_end, best_len = end, match_len
        return best_end, best_len

    def _continue_from(self, end: int, max_len: int) -> tuple[int, ...]:
        text_len = len(self._text)
        period = text_len - end
        proposed: list[int] = []
        for idx in range(max_len):
            at = end + idx
            proposed.append(self._text[at] if at < text_len else proposed[idx - period])
        return tuple(proposed)
