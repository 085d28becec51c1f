"""The requests that `bench.studies.streaks` replays: recorded texts in worlds of acceptances.

Guarantees: fates are those of the acceptance study's own drafter; every draw is seeded by what it
is of, so that neither other worlds nor other texts change it. Must never know policies or rings.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.arms import get_arm
from bench.streak_drafter import position_bits
from bench.streak_worlds import RECORDED, WORLDS, Bits, chain_rates, fit_clumping
from bench.traces import Recorded, Trace
from engine.draft.registry import make_drafter
from engine.errors import ReceiptError

BITS_ARM = "accept-k8"  # of the acceptance study: its drafter always drafts


@dataclass(frozen=True, slots=True)
class Texts:
    """The requests of one experiment and the fates of their drafts, in the plan's order."""

    experiment: str
    traces: tuple[Trace, ...]
    streams: tuple[Bits, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One request in one draw of a world."""

    experiment: str
    world: str
    draw: int
    trace: Trace
    bits: Bits


def texts_of(recorded: Recorded) -> Texts:
    """What an experiment's requests give.

    Raises:
        ReceiptError: none of its texts has a token behind the first one.
    """
    arm = get_arm(BITS_ARM)
    drafter = make_drafter(arm.drafter, arm.min_match_len, arm.drafter_params)
    # Of one token nothing is decoded.
    traces = tuple(trace for trace in recorded.traces() if len(trace.output_ids) > 1)
    if not traces:
        raise ReceiptError(
            f"experiment {recorded.plan.experiment!r}: no reference job that ended well and gave "
            "two tokens or more: there is no text to replay"
        )
    streams = tuple(position_bits(trace, drafter) for trace in traces)
    return Texts(recorded.plan.experiment, traces, streams)


def cases_of(texts: Texts, num_requests: int, seed: int) -> Iterator[Case]:
    """Every request in every draw of every world.

    Args:
        num_requests: of a drawn world, at least; nothing is drawn in the recorded one.

    Raises:
        ConfigError: see `fit_clumping`.
    """
    clumping = fit_clumping(texts.streams)
    num_draws = math.ceil(num_requests / len(texts.traces))
    for world, make in WORLDS.items():
        for draw in range(1 if world == RECORDED else num_draws):
            generator = seeded_generator(seed, texts.experiment, world, draw)
            drawn = make(generator, texts.streams, clumping)
            for trace, bits in zip(texts.traces, drawn, strict=True):
                yield Case(texts.experiment, world, draw, trace, bits)


def seeded_generator(seed: int, experiment: str, world: str, draw: int) -> np.random.Generator:
    """Random numbers of one draw, seeded by SHA-256 of what it is of."""
    name = f"{seed}/{experiment}/{world}/{draw}"
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest(), "big"))


def fitted_settings(texts: Texts) -> dict[str, str | int]:
    """What an experiment's worlds were drawn from; decimals as words."""
    bits, ones = sum(map(len, texts.streams)), sum(map(sum, texts.streams))
    clumping = fit_clumping(texts.streams)
    rates = chain_rates(ones / bits, clumping)
    values: dict[str, str | int] = {
        "requests": len(texts.traces),
        "bits": bits,
        "ones": ones,
        "clumping": f"{clumping:.6f}",
        "after_accept": f"{rates.after_accept:.6f}",
        "after_refusal": f"{rates.after_refusal:.6f}",
    }
    return {f"{texts.experiment}.{name}": value for name, value in values.items()}
