"""The drafter that always drafts: length, marks, and where its tokens come from."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.drafter import NO_DRAFT, Draft
from engine.draft.filled import FilledDrafter
from engine.draft.ngram import NgramDrafter
from engine.draft.registry import make_drafter
from engine.errors import ConfigError

IDS = st.sampled_from((1, 2, 3, 30)).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), max_size=15)
)


@settings(max_examples=150)
@given(
    prompt=IDS.filter(bool),
    output=st.lists(IDS, max_size=4),
    speculative=IDS,
    min_match_len=st.integers(1, 4),
    max_len=st.integers(1, 20),
)
def test_it_always_drafts_exactly_what_was_asked(
    prompt: list[int],
    output: list[list[int]],
    speculative: list[int],
    min_match_len: int,
    max_len: int,
) -> None:
    """Catches a short frame, a filler that passes for a match, and a match that is lost."""
    filled, ngram = FilledDrafter(min_match_len), NgramDrafter(min_match_len)
    text = list(prompt)
    filled.begin(prompt)
    ngram.begin(prompt)
    for ids in output:
        filled.extend(ids)
        ngram.extend(ids)
        text += ids
    found = filled.draft(speculative, max_len)
    assert len(found.ids) == max_len
    expected = ngram.draft(speculative, max_len)
    if expected.ids:
        assert found == expected
    else:
        assert found == Draft(([*text, *speculative][-1],) * max_len, "filler", 0)
    assert found == filled.draft(speculative, max_len), "asking changed it"


@pytest.mark.parametrize("max_len", [0, -1])
@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 1, 1]])
def test_nothing_asked_is_no_draft(prompt: list[int], max_len: int) -> None:
    """Catches an empty draft that is counted as a filler's."""
    drafter = FilledDrafter(1)
    drafter.begin(prompt)
    assert drafter.draft((), max_len) == NO_DRAFT


def test_the_last_token_is_that_of_the_current_text() -> None:
    """Catches a filler from the job before, from before the last commit, or from old drafts."""
    drafter = FilledDrafter(3)
    drafter.begin([1, 2, 3])
    assert drafter.draft((), 2) == Draft((3, 3), "filler", 0)
    drafter.extend([4, 5])
    assert drafter.draft((), 1) == Draft((5,), "filler", 0)
    drafter.extend([])
    assert drafter.draft((), 1) == Draft((5,), "filler", 0)
    assert drafter.draft((7, 8), 2) == Draft((8, 8), "filler", 0)
    assert drafter.draft((), 1) == Draft((5,), "filler", 0), "drafts are not the text"
    drafter.begin([9])
    assert drafter.draft((), 1) == Draft((9,), "filler", 0)


def test_it_is_registered_and_refuses_what_the_ngram_refuses() -> None:
    """Catches a name that reaches another drafter, or a parameter that does not reach it."""
    drafter = make_drafter("ngram-filled", 2)
    assert isinstance(drafter, FilledDrafter)
    assert (drafter.name, drafter.goes_on) == ("ngram-filled", False)
    drafter.begin([1, 2, 1])
    assert drafter.draft((), 2).source == "filler", "one token is no match of two"
    drafter.begin([1, 2, 1, 2])
    assert drafter.draft((), 2) == Draft((1, 2), "ngram", 2, (1, 1))
    with pytest.raises(ConfigError, match="min_match_len"):
        make_drafter("ngram-filled", 0)
