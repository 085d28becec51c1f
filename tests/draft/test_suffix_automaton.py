"""The automaton against a search of the text, forwards and undone, and what it costs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.suffix_automaton import SuffixAutomaton


def searched(text: list[int]) -> tuple[int, list[int]]:
    for length in range(len(text) - 1, 0, -1):
        suffix = text[-length:]
        ends = [end for end in range(length, len(text)) if text[end - length : end] == suffix]
        if ends:
            return length, ends
    return 0, []


def built(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    return automaton


def state_of(automaton: SuffixAutomaton) -> dict[str, object]:
    return dict(vars(automaton))


TEXTS = st.sampled_from((1, 2, 3, 6)).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), max_size=40)
)


@settings(max_examples=400)
@given(TEXTS)
def test_every_prefix_has_its_longest_repeat(text: list[int]) -> None:
    """Catches a class that is not split, an end that is lost, the suffix itself among the ends."""
    automaton = SuffixAutomaton()
    for idx, token in enumerate(text):
        automaton.append(token)
        assert automaton.longest_repeat() == searched(text[: idx + 1])


@settings(max_examples=400)
@given(st.lists(st.tuples(TEXTS, st.integers(0, 40)), max_size=6))
def test_what_is_undone_leaves_no_trace(steps: list[tuple[list[int], int]]) -> None:
    """Catches a transition, link or class of tokens that were taken back."""
    automaton, text = SuffixAutomaton(), list[int]()
    for added, kept_len in steps:
        for token in added:
            automaton.append(token)
        text += added
        automaton.truncate(kept_len)
        del text[kept_len:]
        assert state_of(automaton) == state_of(built(text))


@pytest.mark.parametrize("alphabet", [1, 2, 50])
def test_growing_costs_a_few_steps_a_token(alphabet: int) -> None:
    """Catches work that grows with the text: transitions changed, over all appends."""
    rng = random.Random(3)
    automaton = built([rng.randrange(alphabet) for _ in range(5000)])
    changed = sum(len(undo) for undo in automaton._undo)
    assert changed <= 3 * 5000  # Blumer et al. 1985: at most 3n - 4 transitions, and redirections
    assert len(automaton._link) <= 2 * 5000


class Visited(list[set[int]]):
    """Children by state, which counts whose were asked for."""

    num = 0

    def __getitem__(self, at: int) -> set[int]:
        self.num += 1
        return super().__getitem__(at)


def test_a_search_visits_the_occurrences_and_little_else() -> None:
    """Catches a walk over the whole text for a passage that occurs once more."""
    words = random.Random(4)
    text = [words.randrange(400) for _ in range(3000)]
    automaton = built([*text, *text[100:140]])
    automaton._children = visited = Visited(automaton._children)
    assert automaton.longest_repeat() == (40, [140])
    assert visited.num <= 4
