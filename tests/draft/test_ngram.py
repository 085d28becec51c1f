"""The n-gram drafter against a brute-force search of every suffix at every place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.drafter import NO_DRAFT, Draft, NoDrafter
from engine.draft.ngram import NgramDrafter
from engine.errors import ConfigError


def brute_force(text: list[int], min_match_len: int, max_len: int) -> Draft:
    """Longest earlier occurrence of a suffix, overlap allowed; then the majority at each token."""
    for match_len in range(len(text) - 1, min_match_len - 1, -1):
        suffix = text[-match_len:]
        ends = [end for end in range(match_len, len(text)) if text[end - match_len : end] == suffix]
        if ends:
            return majority(text, ends, match_len, max_len)
    return NO_DRAFT


def majority(text: list[int], ends: list[int], match_len: int, max_len: int) -> Draft:
    if max_len < 1:
        return NO_DRAFT
    grown, counts = list(text), []
    for idx in range(max_len):
        follows = {end: grown[end + idx] for end in ends}
        best = max(
            follows.values(),
            key=lambda token: (
                sum(follow == token for follow in follows.values()),
                max(end for end, follow in follows.items() if follow == token),
            ),
        )
        ends = [end for end in ends if follows[end] == best]
        grown.append(best)
        counts.append(len(ends))
    return Draft(tuple(grown[len(text) :]), "ngram", match_len, tuple(counts))


def texts(max_size: int) -> st.SearchStrategy[list[int]]:
    """Small alphabets repeat themselves; wide ones seldom do."""
    return st.sampled_from((1, 2, 3, 5)).flatmap(
        lambda size: st.lists(st.integers(0, size - 1), max_size=max_size)
    )


@settings(max_examples=600)
@given(
    prompt=texts(30),
    output=st.lists(texts(6), max_size=4),
    speculative=texts(6),
    min_match_len=st.integers(1, 4),
    max_len=st.integers(0, 9),
)
def test_draft_equals_brute_force(
    prompt: list[int],
    output: list[list[int]],
    speculative: list[int],
    min_match_len: int,
    max_len: int,
) -> None:
    """Catches a shorter match taken for the longest, an older one for the latest, a wrong copy."""
    drafter = NgramDrafter(min_match_len)
    drafter.begin(prompt)
    text = list(prompt)
    for ids in output:
        drafter.extend(ids)
        text += ids
    found = drafter.draft(speculative, max_len)
    assert found == brute_force(text + speculative, min_match_len, max_len)


@settings(max_examples=200)
@given(
    prompt=texts(25),
    tries=st.lists(st.tuples(texts(6), st.integers(0, 6)), min_size=1, max_size=6),
    min_match_len=st.integers(1, 4),
)
def test_speculative_tokens_leave_no_trace(
    prompt: list[int], tries: list[tuple[list[int], int]], min_match_len: int
) -> None:
    """Catches refuted tokens that stay in the index and are copied into later drafts."""
    drafter = NgramDrafter(min_match_len)
    drafter.begin(prompt)
    for speculative, max_len in tries:
        drafter.draft(speculative, max_len)
        assert drafter.draft([], 5) == brute_force(prompt, min_match_len, 5)
    drafter.extend([0, 1])
    assert drafter.draft([], 5) == brute_force([*prompt, 0, 1], min_match_len, 5)


@given(first=texts(20), second=texts(20))
def test_begin_forgets(first: list[int], second: list[int]) -> None:
    """Catches one job's text that leaks into the next job's drafts."""
    drafter = NgramDrafter(1)
    drafter.begin(first)
    drafter.draft([1, 2], 4)
    drafter.begin(second)
    assert drafter.draft([], 4) == brute_force(second, 1, 4)


def test_begin_does_not_keep_the_callers_list() -> None:
    """Catches an alias: the session's list grows, and the index would not know."""
    prompt = [1, 2, 3, 1, 2]
    drafter = NgramDrafter(2)
    drafter.begin(prompt)
    prompt.append(9)
    assert drafter.draft([], 2) == Draft((3, 1), "ngram", 2, (1, 1))


def test_most_recent_among_equals() -> None:
    """Catches the first occurrence taken instead of the last."""
    drafter = NgramDrafter(2)
    drafter.begin([1, 2, 8, 1, 2, 9, 1, 2])
    assert drafter.draft([], 1) == Draft((9,), "ngram", 2, (1,))


def test_the_majority_is_followed_until_it_parts() -> None:
    """Catches the most recent occurrence believed against two others, and counts of all."""
    drafter = NgramDrafter(1)
    drafter.begin([5, 1, 2, 5, 1, 3, 5, 4, 7, 5])
    assert drafter.draft([], 3) == Draft((1, 3, 5), "ngram", 1, (2, 1, 1))


def test_longer_beats_more_recent() -> None:
    """Catches a search that stops at the latest occurrence."""
    drafter = NgramDrafter(2)
    drafter.begin([5, 1, 2, 8, 6, 1, 2, 9, 5, 1, 2])
    assert drafter.draft([], 1) == Draft((8,), "ngram", 3, (1,))


def test_overlap_continues_a_periodic_text() -> None:
    """Catches a draft that ends where the text does."""
    drafter = NgramDrafter(2)
    drafter.begin([1, 2, 1, 2])
    assert drafter.draft([], 7) == Draft((1, 2, 1, 2, 1, 2, 1), "ngram", 2, (1,) * 7)


@pytest.mark.parametrize("min_match_len", [1, 2, 3, 4])
def test_matches_below_the_minimum_are_not_believed(min_match_len: int) -> None:
    """Catches a threshold off by one."""
    text = [7, 1, 2, 3, 9, 8, 1, 2, 3]  # suffix 1 2 3 occurs earlier, no longer one
    drafter = NgramDrafter(min_match_len)
    drafter.begin(text)
    expected = Draft((9,), "ngram", 3, (1,)) if min_match_len <= 3 else NO_DRAFT
    assert drafter.draft([], 1) == expected


@pytest.mark.parametrize("min_match_len", [0, -1])
def test_impossible_minimum_is_refused(min_match_len: int) -> None:
    """Catches an empty suffix, which matches everywhere."""
    with pytest.raises(ConfigError, match="allowed"):
        NgramDrafter(min_match_len)


def test_no_drafter_never_proposes() -> None:
    """Catches an `ar` arm that drafts."""
    drafter = NoDrafter()
    drafter.begin([1, 1, 1])
    drafter.extend([1])
    assert drafter.draft([], 8) == NO_DRAFT
