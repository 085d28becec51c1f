"""The data rule: which tested bits and rounds of a request the tests may use.

Guarantees: the number of bits is fixed by a property of the text, so that no test sees where
decoding happened to stop; fewer bits than that is an error, never a shorter sample. Must never know
receipts or a statistic.

Source: DESIGN section 14, "Data" and "Applicability".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.iid_result import Bits, Round, Rounds
from engine.errors import ConfigError

# fixed: every frame has K drafts. bounded: k varies between known limits. open: anything else.
Kind = Literal["fixed", "bounded", "open", "as given"]


@dataclass(frozen=True, slots=True)
class Study:
    """One study: what each test reads of it; requests in plan order."""

    kind: Kind
    bits: Sequence[Bits]
    rounds: Sequence[Rounds]  # complete ones; none where k varies
    all_rounds: Sequence[Rounds]  # for context_e: every round, the last and cut one too
    draft_len: int | None  # K, where every round has it


def drafted(rounds: Rounds) -> list[Round]:
    """Rounds with at least one draft; the others test nothing."""
    return [(draft_len, accepted_len) for draft_len, accepted_len in rounds if draft_len]


def bits_of_rounds(rounds: Rounds) -> list[int]:
    """Tested bits in position order: a ones, then a zero unless every draft was accepted."""
    bits: list[int] = []
    for draft_len, accepted_len in rounds:
        bits += [1] * accepted_len
        if accepted_len < draft_len:
            bits.append(0)
    return bits


def ruled_len(num_committed: int, k_min: int, k_max: int) -> int:
    """How many tested bits of a request the tests use: n = max(0, ⌈(N − K_max)·K_min/(K_min + 1)⌉).

    A round with k drafts decides at least k bits for every k + 1 tokens that it commits, and the
    last round commits at most K_max + 1, so the first n bits exist wherever decoding stopped.

    Args:
        num_committed: N, tokens committed after the prefill token, EOS included.
        k_min: shortest draft that the arm may use.
        k_max: longest draft that the arm may use.

    Raises:
        ConfigError: not 1 ≤ k_min ≤ k_max.
    """
    if not 1 <= k_min <= k_max:
        raise ConfigError(f"draft lengths {k_min} … {k_max}; needed: 1 ≤ K_min ≤ K_max")
    return max(0, -(-(num_committed - k_max) * k_min // (k_min + 1)))


def first_bits(bits: Bits, num_bits: int) -> list[int]:
    """The first n tested bits.

    Raises:
        ConfigError: fewer exist.
    """
    if len(bits) < num_bits:
        raise ConfigError(
            f"{len(bits)} tested bits where the data rule asks for the first {num_bits}; a shorter "
            "sample would depend on where decoding stopped"
        )
    return list(bits[:num_bits])


def parse_rounds(bits: Bits, draft_len: int) -> list[Round]:
    """Complete rounds of a bit stream at K = draft_len; an incomplete last one is no round.

    A round ends at its first zero or at its K-th one.
    """
    rounds: list[Round] = []
    accepted_len = 0
    for bit in bits:
        accepted_len += bit
        if not bit or accepted_len == draft_len:
            rounds.append((draft_len, accepted_len))
            accepted_len = 0
    return rounds


def round_outside(
    rounds: Rounds, committed_lens: Sequence[int], k_min: int, k_max: int
) -> int | None:
    """Index of the first round with k outside K_min … K_max; None: the limits hold.

    Rounds that start among the last K_max tokens do not count: the end of output cuts their k.

    Args:
        rounds: of one request, in position order, rounds without drafts among them.
        committed_lens: tokens that each round committed.
        k_min: shortest draft that the arm may use.
        k_max: longest draft that the arm may use.
    """
    last_start = sum(committed_lens) - k_max
    committed = 0
    for idx, ((k, _), committed_len) in enumerate(zip(rounds, committed_lens, strict=True)):
        if not k_min <= k <= k_max and committed < last_start:
            return idx
        committed += committed_len
    return None


def ruled_study(
    bits: Sequence[Bits],
    nums_committed: Sequence[int],
    k_min: int,
    k_max: int,
    all_rounds: Sequence[Rounds],
    names: Sequence[str] = (),
) -> Study:
    """Apply the data rule to an arm whose draft lengths are bounded; K_min = K_max: fixed.

    Args:
        bits: every tested bit of each request, in position order.
        nums_committed: N of each request.
        k_min: shortest draft that the arm may use.
        k_max: longest draft that the arm may use.
        all_rounds: for `context_e`, in plan order; may hold further requests, such as jobs ended
            by an error.
        names: of the requests, for the error; none: their numbers from 1.

    Raises:
        ConfigError: a request has fewer bits than the rule asks for.
    """
    used = []
    for idx, (stream, num_committed) in enumerate(zip(bits, nums_committed, strict=True)):
        try:
            used.append(first_bits(stream, ruled_len(num_committed, k_min, k_max)))
        except ConfigError as error:
            name = names[idx] if names else f"request {idx + 1}"
            raise ConfigError(f"{name}: {error}") from error
    is_fixed = k_min == k_max
    return Study(
        kind="fixed" if is_fixed else "bounded",
        bits=used,
        rounds=[parse_rounds(stream, k_min) for stream in used] if is_fixed else [],
        all_rounds=all_rounds,
        draft_len=k_min if is_fixed else None,
    )


def open_study(all_rounds: Sequence[Rounds]) -> Study:
    """A study of an arm whose drafter or policy decides k freely: `context_e` alone applies."""
    return Study("open", [], [], all_rounds, None)


def given_study(requests: Sequence[Rounds]) -> Study:
    """Every round and bit as given, the data rule left out: right only if none was cut."""
    rounds = [drafted(request) for request in requests]
    lengths = {draft_len for request in rounds for draft_len, _ in request}
    return Study(
        kind="as given",
        bits=[bits_of_rounds(request) for request in rounds],
        rounds=rounds,
        all_rounds=rounds,
        draft_len=lengths.pop() if len(lengths) == 1 else None,
    )


def depth_1_study(requests: Sequence[Rounds]) -> Study:
    """The study that a log of rounds allows, if decoding ran at depth 1.

    N = Σ(a + 1); K_min and K_max are the extremes of k over all rounds but the last of each
    request, which the end of output may have cut; one longer than K_max raises it. Rounds with
    k = 0 are dropped. Without a round before a last one K is unknown: the study is open.
    """
    rounds = [drafted(request) for request in requests]
    whole = [draft_len for request in rounds for draft_len, _ in request[:-1]]
    if not whole:
        return open_study(rounds)
    longest_last = max(request[-1][0] for request in rounds if request)
    return ruled_study(
        bits=[bits_of_rounds(request) for request in rounds],
        nums_committed=[sum(accepted + 1 for _, accepted in request) for request in rounds],
        k_min=min(whole),
        k_max=max(*whole, longest_last),
        all_rounds=rounds,
    )
