"""Every substring of a growing text and where it ends, as a suffix automaton that can be undone.

Blumer et al. 1985: states are classes of substrings that end at the same places; a state's link
leads to the class of its longest suffix that ends at more places. Guarantees: exact; appending a
token costs O(1) amortised over a text that only grows; `truncate` restores what was, at the cost of
the appends that it undoes. Must never know what the text is for.
"""

from __future__ import annotations

ROOT = 0
NONE = -1


class SuffixAutomaton:
    """The automaton of `text`, which `append` and `truncate` alone may change."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [NONE]
        self._len = [0]  # of a state's longest substring
        self._end = [0]  # where it ended first; a clone's is nowhere of its own
        self._children: list[set[int]] = [set()]  # states that link here
        self._lasts = [ROOT]  # by length of the text: the state of all of it
        self._undo: list[list[tuple[int, int, int]]] = []  # by token: state, token, target before
        self._relinked: list[tuple[int, int]] = []  # by token: a state and its link before

    def append(self, token: int) -> None:
        """The text grows by one token."""
        undo: list[tuple[int, int, int]] = []
        last = self._lasts[-1]
        state = self._new_state(self._len[last] + 1, len(self.text) + 1)
        at = last
        while at != NONE and token not in self._next[at]:
            self._next[at][token] = state
            undo.append((at, token, NONE))
            at = self._link[at]
        relinked = (NONE, NONE)
        if at == NONE:
            self._set_link(state, ROOT)
        else:
            target = self._next[at][token]
            if self._len[target] > self._len[at] + 1:
                relinked = (target, self._link[target])
                target = self._split(at, token, target, undo)
            self._set_link(state, target)
        self.text.append(token)
        self._lasts.append(state)
        self._undo.append(undo)
        self._relinked.append(relinked)

    def truncate(self, text_len: int) -> None:
        """Take the last tokens back, down to so many."""
        while len(self.text) > text_len:
            self.text.pop()
            state = self._lasts.pop()
            self._children[self._link[state]].discard(state)
            target, link = self._relinked.pop()
            if target != NONE:
                clone = self._link[target]
                self._children[self._link[clone]].discard(clone)
                self._children[clone].discard(target)
                self._link[target] = link
                self._children[link].add(target)
            for at, token, before in reversed(self._undo.pop()):
                if before == NONE:
                    del self._next[at][token]
                else:
                    self._next[at][token] = before
            del self._next[state:], self._link[state:], self._len[state:]
            del self._end[state:], self._children[state:]

    def longest_repeat(self) -> tuple[int, list[int]]:
        """The longest suffix of the text that ends elsewhere too.

        Returns:
            Its length and the positions just behind its earlier ends, in order; (0, []) for none.
        """
        last = self._lasts[-1]
        state = self._link[last] if last != ROOT else ROOT
        if state <= ROOT:
            return 0, []
        ends, pending = [], [state]
        while pending:
            at = pending.pop()
            if self._end[at] and at != last:
                ends.append(self._end[at])
            pending.extend(self._children[at])
        return self._len[state], sorted(ends)

    def _split(self, at: int, token: int, target: int, undo: list[tuple[int, int, int]]) -> int:
        """Give the shorter substrings of a class, which end at one more place, one of their own."""
        clone = self._new_state(self._len[at] + 1, 0)
        self._next[clone] = dict(self._next[target])
        self._set_link(clone, self._link[target])
        while at != NONE and self._next[at].get(token) == target:
            self._next[at][token] = clone
            undo.append((at, token, target))
            at = self._link[at]
        self._children[self._link[target]].discard(target)
        self._set_link(target, clone)
        return clone

    def _new_state(self, length: int, end: int) -> int:
        self._next.append({})
        self._link.append(NONE)
        self._len.append(length)
        self._end.append(end)
        self._children.append(set())
        return len(self._link) - 1

    def _set_link(self, state: int, link: int) -> None:
        self._link[state] = link
        self._children[link].add(state)
