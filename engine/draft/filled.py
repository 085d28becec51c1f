"""A drafter that always drafts: the n-gram's tokens, or the last token again and again.

For the acceptance study, whose tests need frames of one length (DESIGN section 14); no way to be
fast. Guarantees: exactly as many tokens as asked for; those made up are marked `filler`, match 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.draft.drafter import NO_DRAFT, Draft, Drafter
from engine.draft.ngram import NgramDrafter


class FilledDrafter(Drafter):
    """See the module's header; takes what `NgramDrafter` takes."""

    name = "ngram-filled"  # and a filler goes on along nothing

    def __init__(self, min_match_len: int) -> None:
        self._ngram = NgramDrafter(min_match_len)
        self._last_id = 0

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a job."""
        self._ngram.begin(prompt_ids)
        self._last_id = prompt_ids[-1]

    def extend(self, ids: Sequence[int]) -> None:
        """Committed tokens, in order."""
        self._ngram.extend(ids)
        self._last_id = ids[-1] if ids else self._last_id

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        """Exactly `max_len` tokens."""
        found = self._ngram.draft(speculative, max_len)
        if found.ids or max_len < 1:
            return found if found.ids else NO_DRAFT
        last_id = speculative[-1] if speculative else self._last_id
        return Draft((last_id,) * max_len, "filler", 0)
