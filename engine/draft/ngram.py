"""n-gram drafter: copy what followed the earlier occurrences of the longest suffix that has any.

Guarantees: exact. The match is the longest suffix of committed + speculative tokens that occurs
earlier, overlap allowed. Where its occurrences were followed by different tokens, the draft goes on
as most of them did, among equals as the most recent one; an occurrence that did otherwise has no
say from there on. A draft that runs off the end of the text goes on with its own tokens, as a
periodic text does. What is speculative stays in the index while the next request builds on it, and
leaves no trace when it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.draft.drafter import NO_DRAFT, Draft, Drafter
from engine.draft.suffix_automaton import SuffixAutomaton
from engine.errors import ConfigError


class NgramDrafter(Drafter):
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
        self._committed: list[int] = []
        self._index = SuffixAutomaton()
        self._agreed_len = 0  # tokens of the index that are known to be committed ones

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self._committed = []
        self._index = SuffixAutomaton()
        self._agreed_len = 0
        self.extend(prompt_ids)

    def extend(self, ids: Sequence[int]) -> None:
        self._committed += ids

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        """Propose at most `max_len` tokens after committed + `speculative`."""
        self._bring_up_to(speculative)
        match_len, ends = self._index.longest_repeat()
        if match_len < self._min_match_len or max_len < 1:
            return NO_DRAFT
        ids, counts = self._continue_from(ends, max_len)
        return Draft(ids, self.name, match_len, counts)

    def _bring_up_to(self, speculative: Sequence[int]) -> None:
        """Have the index hold committed + speculative tokens, and keep what it has of them."""
        text, committed_len = self._index.text, len(self._committed)
        at, most = self._agreed_len, min(len(self._index.text), committed_len + len(speculative))
        while at < most and text[at] == self._token_at(at, speculative):
            at += 1
        self._index.truncate(at)
        for idx in range(at, committed_len + len(speculative)):
            self._index.append(self._token_at(idx, speculative))
        self._agreed_len = committed_len

    def _token_at(self, idx: int, speculative: Sequence[int]) -> int:
        committed_len = len(self._committed)
        return self._committed[idx] if idx < committed_len else speculative[idx - committed_len]

    def _continue_from(
        self, ends: list[int], max_len: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What most occurrences went on with, and how many had gone along up to each token."""
        text, proposed, counts = self._index.text, list[int](), list[int]()
        text_len = len(text)
        for idx in range(max_len):
            follows = [
                text[end + idx] if end + idx < text_len else proposed[end + idx - text_len]
                for end in ends
            ]
            token = follows[-1]
            if len(ends) > 1:
                # Equal counts keep the order in which they came: the most recent one first.
                token, _ = Counter(reversed(follows)).most_common(1)[0]
                ends = [end for end, follow in zip(ends, follows, strict=True) if follow == token]
            proposed.append(token)
            counts.append(len(ends))
        return tuple(proposed), tuple(counts)
