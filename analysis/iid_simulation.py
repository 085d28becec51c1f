"""Simulated requests: decoding by the engine's rules over drafts whose fate is drawn.

Guarantees: rounds, the stop at N tokens and the cut of the last frames are those of the engine at
any depth; mean acceptance is the one asked for, whatever departs from the null. Must never know
receipts, a test or how results are printed.

Source: DESIGN section 5 (rounds) and section 14 ("Power").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import expit, logit

from analysis.iid_bits import Study, bits_of_rounds, drafted, ruled_study
from analysis.iid_result import Round

Floats = NDArray[np.float64]
Chances = Callable[[np.random.Generator, tuple[int, int, int]], Floats]
SWITCH_CHANCE = 0.2  # of a regime, a round
MAX_LOGIT = 60.0  # where a probability is 0 or 1 to the last bit


@dataclass(frozen=True, slots=True)
class Text:
    """What a request's text decides, however it is decoded.

    Attributes:
        num_committed: N, tokens committed after the prefill token.
        ends_unforeseen: whether the text was over before its budget, which is known beforehand.
    """

    num_committed: int
    ends_unforeseen: bool

    def cut(self, left: int) -> int:
        """The longest draft that can be decided with `left` tokens to go.

        Of a budget the last position is never drafted: the reply before it brings its token.
        """
        return left if self.ends_unforeseen else left - 1

    def counted(self, sent_len: int, left: int, is_last: bool) -> int:
        """k of a round: drafts at or before the last position, which is known once it is there."""
        return min(sent_len, left) if is_last else sent_len


@dataclass(frozen=True, slots=True)
class LengthRule:
    """The two-state rule; low = high: always K."""

    low: int
    high: int
    up: int = 6

    def following(self, draft_len: int, accepted_len: int) -> int:
        """The next frame's k after a round."""
        is_up = accepted_len == draft_len or accepted_len >= self.up
        return self.high if is_up else self.low


def pipelined_rounds(
    is_accepted: Callable[[], bool], text: Text, rule: LengthRule, depth: int
) -> list[Round]:
    """Rounds (k, a) of one request decoded with `depth` frames in flight.

    Args:
        is_accepted: draws the fate of the next tested draft.
    """
    rounds: list[Round] = []
    in_flight: deque[int] = deque()
    asked, left = rule.low, text.num_committed
    while left:
        while len(in_flight) < depth:
            in_flight.append(asked)
        before, sent_len = left, in_flight.popleft()
        if not text.ends_unforeseen:
            sent_len = min(sent_len, left - 1)
        testable = min(sent_len, left)
        accepted_len = 0
        while accepted_len < testable and is_accepted():
            accepted_len += 1
        left -= accepted_len
        is_refused = accepted_len < testable
        # The correction; or the bonus token, which a frame in flight has a draft for already.
        if left and (is_refused or not in_flight or testable == text.cut(before)):
            left -= 1
        draft_len = text.counted(sent_len, before, is_last=not left)
        rounds.append((draft_len, accepted_len))
        if is_refused:
            in_flight.clear()
        asked = rule.following(draft_len, accepted_len)
    return rounds


def drawn_study(
    generator: np.random.Generator, chances: Chances, texts: tuple[Text, ...], draft_len: int
) -> Study:
    """A study at depth 1 with frames of K, by the data rule.

    Args:
        chances: gives the chance of each draft, were it tested.

    Shapes: chances returns what broadcasts to [requests, rounds, K].
    """
    longest = max(text.num_committed for text in texts)
    shape = (len(texts), longest, draft_len)
    right = generator.random(shape) < chances(generator, shape)
    accepted = np.cumprod(right, axis=2, dtype=np.int64).sum(axis=2)
    rounds = [_stopped(row, text, draft_len) for row, text in zip(accepted, texts, strict=True)]
    return ruled_study(
        bits=[bits_of_rounds(request) for request in rounds],
        nums_committed=[text.num_committed for text in texts],
        k_min=draft_len,
        k_max=draft_len,
        all_rounds=[drafted(request) for request in rounds],
    )


def _stopped(accepted: NDArray[np.int64], text: Text, draft_len: int) -> list[Round]:
    """Rounds at depth 1 until the text's N tokens are committed."""
    before = np.cumsum(accepted + 1) - (accepted + 1)
    rounds: list[Round] = []
    num_rounds = int(np.searchsorted(before, text.num_committed))
    for idx in range(num_rounds):
        left = text.num_committed - int(before[idx])
        sent_len = draft_len if text.ends_unforeseen else min(draft_len, left - 1)
        counted = text.counted(sent_len, left, is_last=idx == num_rounds - 1)
        rounds.append((counted, min(counted, int(accepted[idx]))))
    return rounds


def independent(alpha: float) -> Chances:
    """The null: one α."""
    return lambda generator, shape: np.full((1, 1, 1), alpha)


def rising(alpha: float, slope: float, draft_len: int) -> Chances:
    """Within a round: the logit of acceptance rises by `slope` with each draft of a frame."""
    depths = slope * np.arange(draft_len)
    middle = _solved(lambda shift: _mean_acceptance([expit(shift + depths)]), alpha)
    levels = expit(middle + depths)[None, None, :]
    return lambda generator, shape: levels


def switching(alpha: float, delta: float, draft_len: int) -> Chances:
    """Between rounds: two regimes ± delta logit, which switch with SWITCH_CHANCE a round.

    The first regime is drawn as a place in a long text meets it, by tested bits, not by rounds:
    else the bits of a short text would hold too many of the low one.
    """

    def levels_at(shift: float) -> Floats:
        return np.array([expit(shift - delta), expit(shift + delta)])

    def kinds_at(shift: float) -> list[Floats]:
        return [np.full(draft_len, level) for level in levels_at(shift)]

    middle = _solved(lambda shift: _mean_acceptance(kinds_at(shift)), alpha)
    levels = levels_at(middle)
    low_bits, high_bits = (_expected(kind)[1] for kind in kinds_at(middle))

    def chances(generator: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        switches = generator.random(shape[:2]) < SWITCH_CHANCE
        switches[:, 0] = generator.random(shape[0]) < high_bits / (low_bits + high_bits)
        regimes = np.cumsum(switches, axis=1) % 2
        drawn: Floats = levels[regimes][:, :, None]
        return drawn

    return chances


def varying(alpha: float, correlation: float, draft_len: int) -> Chances:
    """Between prompts: each request's α from a beta law with this intraclass correlation."""
    strength = 1 / correlation - 1

    def chances(generator: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        drawn = generator.beta(alpha * strength, (1 - alpha) * strength, size=shape[0])
        return drawn[:, None, None]

    return chances


# How a study may depart from the null, by (mean acceptance, effect, K).
FAMILIES: Mapping[str, Callable[[float, float, int], Chances]] = {
    "within rounds": rising,
    "between rounds": switching,
    "between prompts": varying,
}


def chances_of(family: str, alpha: float, effect: float, draft_len: int) -> Chances:
    """The law of a family at an effect; at 0 the null."""
    return FAMILIES[family](alpha, effect, draft_len) if effect else independent(alpha)


def _expected(chances: Floats) -> tuple[float, float]:
    """Expected ones, and tested bits, of a round with these chances by depth."""
    reached = np.concatenate([[1.0], np.cumprod(chances)[:-1]])
    return float(reached @ chances), float(reached.sum())


def _mean_acceptance(kinds: list[Floats]) -> float:
    """E(ones) / E(tested) over equally frequent kinds of round."""
    ones, tested = zip(*map(_expected, kinds), strict=True)
    return float(sum(ones) / sum(tested))


def _solved(mean: Callable[[float], float], alpha: float) -> float:
    """The shift in logits at which mean acceptance is alpha."""
    start = float(logit(alpha))
    return float(
        optimize.brentq(lambda shift: mean(shift) - alpha, start - MAX_LOGIT, start + MAX_LOGIT)
    )
