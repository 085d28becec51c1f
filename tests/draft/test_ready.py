"""Prepared drafts equal the drafter's own, whatever was accepted, refused or prepared meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.drafter import NO_DRAFT, Draft, Drafter, NoDrafter
from engine.draft.filled import FilledDrafter
from engine.draft.ngram import NgramDrafter
from engine.draft.ready import ReadyDrafts

AHEAD_LEN = 12
MAX_LEN = 8


class Counting(NgramDrafter):
    """Counts how often it was asked."""

    num_asked = 0

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        self.num_asked += 1
        return super().draft(speculative, max_len)


class Stale(ReadyDrafts):
    """Mutation: believes that the text always goes along the prepared path."""

    def _remainder(self, speculative: Sequence[int]) -> list[int]:
        taken_len = len(self._since) + len(speculative)
        return self._path[taken_len:] if taken_len >= self._behind_len else []


class Forgetful(ReadyDrafts):
    """Mutation: looks at what is speculative and not at what was committed since."""

    def _remainder(self, speculative: Sequence[int]) -> list[int]:
        path = self._path[len(self._since) :]
        return path[len(speculative) :] if path[: len(speculative)] == list(speculative) else []


class WrongMatch(ReadyDrafts):
    """Mutation: the right tokens, said to come from the match of long ago."""

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool = False) -> Draft:
        ready = self._remainder(speculative)
        if len(ready) < max_len:
            return self._drafter.draft(speculative, max_len, is_idle)
        return replace(self._draft, ids=tuple(ready[:max_len]))


@dataclass(slots=True)
class Text:
    """A text that is written, with drafts on their way, as the round machine does it."""

    ready: ReadyDrafts
    plain: Drafter  # asked anew each time
    speculative: list[int] = field(default_factory=list)
    differences: list[tuple[Draft, Draft]] = field(default_factory=list)

    def begin(self, prompt: list[int]) -> None:
        self.ready.begin(prompt)
        self.plain.begin(prompt)
        self.speculative = []

    def step(self, verb: str, amount: int, token: int) -> None:
        """`amount` is taken modulo what there is."""
        if verb == "prepare":
            self.ready.prepare(tuple(self.speculative))
        elif verb == "send":
            self.speculative += self.ask(1 + amount % MAX_LEN).ids
        elif verb == "probe":
            self.ask(1 + amount % MAX_LEN)
        elif verb == "accept":  # a frame's reply: some drafts are right
            accepted = self.speculative[: amount % (len(self.speculative) + 1)]
            self.commit(accepted)
            self.speculative = self.speculative[len(accepted) :]
        elif verb == "bonus" and not self.speculative:
            self.commit([token])
        elif verb == "diverge":
            self.commit([*self.speculative[: amount % (len(self.speculative) + 1)], token])
            self.speculative = []

    def commit(self, ids: list[int]) -> None:
        self.ready.extend(ids)
        self.plain.extend(ids)

    def ask(self, max_len: int, is_idle: bool = False) -> Draft:
        found = self.ready.draft(tuple(self.speculative), max_len, False)
        expected = self.plain.draft(tuple(self.speculative), max_len, False)
        if found != expected:
            self.differences.append((found, expected))
        return expected


def copied(ids: tuple[int, ...], match_len: int, count: int = 1) -> Draft:
    return Draft(ids, "ngram", match_len, (count,) * len(ids))


Step = tuple[str, int, int]
VERBS = ("prepare", "prepare", "send", "send", "probe", "accept", "bonus", "diverge")


def steps_over(alphabet: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.tuples(st.sampled_from(VERBS), st.integers(0, 99), st.integers(0, alphabet - 1)),
        max_size=25,
    )


CASES = st.sampled_from((1, 2, 3, 4)).flatmap(
    lambda alphabet: st.tuples(
        st.lists(st.integers(0, alphabet - 1), min_size=1, max_size=25), steps_over(alphabet)
    )
)


@settings(max_examples=200)
@given(case=CASES, min_match_len=st.integers(1, 3), ahead_len=st.sampled_from((1, 4, AHEAD_LEN)))
def test_it_is_the_drafters_own_draft(
    case: tuple[list[int], list[Step]], min_match_len: int, ahead_len: int
) -> None:
    """Catches a stale path, a wrong match length and a draft that ignores what came since."""
    prompt, steps = case
    drafter = NgramDrafter(min_match_len)
    text = Text(ReadyDrafts(drafter, ahead_len), NgramDrafter(min_match_len))
    text.begin(prompt)
    for step in steps:
        text.step(*step)
    assert text.differences == []


def random_jobs(
    make_ready: Callable[[Drafter, int], ReadyDrafts], num_jobs: int
) -> tuple[list[tuple[Draft, Draft]], int, int]:
    """Differences, requests and how many of them the drafter had to answer: several jobs a time."""
    differences: list[tuple[Draft, Draft]] = []
    num_requests = num_on_path = 0
    rng = random.Random(7)
    drafter = Counting(2)
    text = Text(make_ready(drafter, AHEAD_LEN), NgramDrafter(2))
    for _ in range(num_jobs):
        alphabet = rng.randrange(1, 5)
        text.begin([rng.randrange(alphabet) for _ in range(rng.randrange(1, 30))])
        for _ in range(30):
            verb = rng.choice(VERBS)
            before = drafter.num_asked
            text.step(verb, rng.randrange(100), rng.randrange(alphabet))
            if verb in ("send", "probe"):
                num_requests += 1
                num_on_path += drafter.num_asked - before
    differences += text.differences
    return differences, num_requests, num_on_path


def test_random_jobs_one_after_another() -> None:
    """Catches a path that outlives its job, and a test whose drafts never come ready."""
    differences, num_requests, num_on_path = random_jobs(ReadyDrafts, 60)
    assert differences == []
    assert 0 < num_on_path < 0.9 * num_requests, "both ways of answering are exercised"


@pytest.mark.parametrize("mutation", [Stale, Forgetful, WrongMatch])
def test_a_mutation_is_caught(mutation: type[ReadyDrafts]) -> None:
    """Catches a property test that would let a wrong ready draft pass."""
    differences, _, _ = random_jobs(mutation, 60)
    assert differences


def periodic() -> tuple[Counting, ReadyDrafts]:
    """A text that repeats itself: prompt 1 2 3 1 2 3."""
    drafter = Counting(2)
    ready = ReadyDrafts(drafter, AHEAD_LEN)
    ready.begin([1, 2, 3, 1, 2, 3])
    return drafter, ready


def test_along_the_path_the_drafter_is_not_asked_again() -> None:
    """Catches drafting that comes back onto the critical path."""
    drafter, ready = periodic()
    ready.prepare(())
    assert drafter.num_asked == 1
    assert ready.draft((), 4) == copied((1, 2, 3, 1), 3)
    assert ready.draft((1, 2, 3, 1), 4) == copied((2, 3, 1, 2), 7)
    ready.extend([1, 2, 3])
    ready.prepare((1,))
    assert ready.draft((1,), 3) == copied((2, 3, 1), 7)
    ready.extend([1, 2])
    assert ready.draft((), 2) == copied((3, 1), 8)
    assert drafter.num_asked == 1


def test_a_draft_that_is_too_short_is_made_anew() -> None:
    """Catches an answer cut to what happens to be ready."""
    drafter, ready = periodic()
    ready.prepare(())
    path = (1, 2, 3, 1, 2, 3, 1, 2)
    assert ready.draft(path, 4) == copied((3, 1, 2, 3), 11)
    assert drafter.num_asked == 1, "exactly as long as what is left"
    assert ready.draft(path, 5) == copied((3, 1, 2, 3, 1), 11)
    assert drafter.num_asked == 2


def test_a_divergence_makes_it_void() -> None:
    """Catches a draft that follows what was refused."""
    drafter, ready = periodic()
    ready.prepare((1, 2))
    ready.extend([1, 9])
    assert ready.draft((), 4) == NO_DRAFT
    ready.extend([1, 2])
    assert ready.draft((), 2) == copied((3, 1), 2, count=2)
    assert drafter.num_asked == 3


def test_a_text_that_is_behind_the_prepared_place_is_not_served() -> None:
    """Catches drafts sent twice: fewer tokens are speculative now than when it was prepared."""
    drafter, ready = periodic()
    ready.prepare((1, 2, 3))
    assert ready.draft((1,), 3) == copied((2, 3, 1), 4)
    assert drafter.num_asked == 2


def test_preparing_twice_drafts_once_and_a_new_job_forgets() -> None:
    """Catches time spent on what is ready, and a draft of the job before."""
    drafter, ready = periodic()
    ready.prepare(())
    ready.prepare(())
    assert drafter.num_asked == 1
    ready.begin([5, 6])
    assert ready.draft((), 3) == NO_DRAFT
    assert drafter.num_asked == 2


@pytest.mark.parametrize("prepared", [False, True])
def test_no_tokens_asked_for_is_no_draft(prepared: bool) -> None:
    """Catches an empty draft that claims a source and a match."""
    _, ready = periodic()
    if prepared:
        ready.prepare(())
    assert ready.draft((), 0) == NO_DRAFT
    assert ready.draft((1, 2), 0) == NO_DRAFT


@settings(max_examples=60)
@given(CASES)
@pytest.mark.parametrize("make", [NoDrafter, lambda: FilledDrafter(2)], ids=["none", "filled"])
def test_drafters_that_do_not_go_on_are_passed_through(
    make: Callable[[], Drafter], case: tuple[list[int], list[Step]]
) -> None:
    """Catches a prepared filler, which follows from the last token and from nothing else."""
    prompt, steps = case
    text = Text(ReadyDrafts(make(), AHEAD_LEN), make())
    assert text.ready.name == text.plain.name
    text.begin(prompt)
    for step in steps:
        text.step(*step)
    assert text.differences == []


def test_a_drafter_that_does_not_go_on_is_never_asked_ahead() -> None:
    """Catches work that could not be used."""
    drafter = Counting(2)
    drafter.goes_on = False
    ready = ReadyDrafts(drafter, AHEAD_LEN)
    ready.begin([1, 2, 1, 2])
    ready.prepare(())
    assert drafter.num_asked == 0
    assert ready.draft((), 2).ids == (1, 2)
