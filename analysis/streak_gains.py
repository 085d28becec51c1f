"""What an adaptive draft length gains in each world of `bench.studies.streaks`, and from what.

Guarantees: a gain is over the fixed length that is best in that world for all its requests, the
same one; worlds are compared request by request; intervals are bootstraps over requests and draws,
seeded by what they estimate, in which the best fixed length is chosen anew. Must never know files
or axes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.study_records import StudyRecord
from engine.errors import ReceiptError

Floats = NDArray[np.float64]

STUDY = "streaks"
FIXED = "fixed-k"
ADAPTIVE = ("two-state", "streak")
# world -> what a reader is told of it; the first one is what happened
WORLDS: Mapping[str, str] = {
    "recorded": "as recorded",
    "chained": "own rates, chained",
    "shuffled": "own rates, no streaks",
    "equalised": "one rate, chained",
    "pooled": "one rate, no streaks",
}
# cause -> weights of the worlds' log gains. Two by two: rates own or one, streaks or none; a cause
# is the mean of its two differences, so that `pooled` and the two causes make `recorded`. Both: how
# much more streaks bring where rates are own. Beyond: what a chain does not tell of the order.
CAUSES: Mapping[str, Mapping[str, float]] = {
    "heterogeneity": {"recorded": 0.5, "equalised": -0.5, "shuffled": 0.5, "pooled": -0.5},
    "streaks": {"recorded": 0.5, "shuffled": -0.5, "equalised": 0.5, "pooled": -0.5},
    "both": {"recorded": 1.0, "shuffled": -1.0, "equalised": -1.0, "pooled": 1.0},
    "beyond": {"recorded": 1.0, "chained": -1.0},
}
NUM_RESAMPLES = 2000
CENTRAL = (0.025, 0.975)  # ends of a 95 % interval
COLUMNS = (
    "texts", "world", "seed", "cell", "receipt", "ones", "runs", "policy", "draft_len",
    "draft_len_max", "depth", "decode_ns", "output_tokens", "rounds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gain:
    """A ratio of speeds, or a factor on it, with its 95 % interval."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Replays:
    """One experiment's texts at one depth.

    Attributes:
        contenders: policy and base draft length, in the record's order.
        log_ns: by world, ln of decoding times; Shapes: [draws, contenders, requests].
        spread: by world, standard deviation over requests of their share of right drafts.
        runs: by world, runs per position.
    """

    texts: str
    depth: int
    contenders: tuple[tuple[str, int], ...]
    log_ns: Mapping[str, Floats]
    spread: Mapping[str, float]
    runs: Mapping[str, float]
    receipt_ids: tuple[str, ...]

    @property
    def fixed(self) -> list[int]:
        """Which contenders have one length."""
        return [idx for idx, (policy, _) in enumerate(self.contenders) if policy == FIXED]

    def base_of(self, policy: str) -> list[int]:
        """The fixed length that a policy starts from and falls back to."""
        lengths = {length for name, length in self.contenders if name == policy}
        return [idx for idx in self.fixed if self.contenders[idx][1] in lengths]

    def best_fixed(self, world: str) -> int:
        """The fixed length that is best in a world, over all its requests and draws."""
        means = self.log_ns[world].mean(axis=(0, 2))
        return self.contenders[min(self.fixed, key=lambda idx: means[idx])][1]


def replays_of(found: StudyRecord) -> list[Replays]:
    """Every experiment and depth of a record.

    Raises:
        ReceiptError: a row lacks a column, or a request, draw, world or contender is missing.
    """
    rows = pd.DataFrame(found.record.rows)
    lacking = [name for name in COLUMNS if name not in rows or rows[name].isna().any()]
    if lacking:
        raise ReceiptError(
            f"record {found.record_id}: rows lack {', '.join(lacking)}; it is no record of "
            "bench.studies.streaks as it is now"
        )
    places = rows.groupby(["texts", "depth"], sort=False)
    return [_replays(found, str(texts), int(depth), own) for (texts, depth), own in places]


def _replays(found: StudyRecord, texts: str, depth: int, rows: pd.DataFrame) -> Replays:
    contenders = list(dict.fromkeys(zip(rows["policy"], rows["draft_len"], strict=True)))
    receipts = list(dict.fromkeys(rows["receipt"]))
    log_ns, spread, runs = {}, {}, {}
    for world in WORLDS:
        own = rows[rows["world"] == world]
        draws = own["seed"].nunique()
        shape = (draws, len(contenders), len(receipts))
        order = ["seed", "policy", "draft_len", "receipt"]
        if not draws or len(own) != np.prod(shape) or own.duplicated(order).any():
            raise ReceiptError(
                f"record {found.record_id}: texts {texts!r}, depth {depth}, world {world!r}: "
                f"{len(own)} rows; needed: one for each of {len(contenders)} contenders and "
                f"{len(receipts)} requests in every draw, at least one draw"
            )
        indexed = own.set_index(order)["decode_ns"]
        wanted = [
            (draw, *contender, receipt)
            for draw in sorted(own["seed"].unique())
            for contender in contenders
            for receipt in receipts
        ]
        log_ns[world] = np.log(indexed.loc[wanted].to_numpy(dtype=float)).reshape(shape)
        once = own.drop_duplicates(["seed", "receipt"])
        positions = once["output_tokens"] - 1
        rates = (once["ones"] / positions).groupby(once["seed"])
        spread[world] = float(rates.std(ddof=0).mean())
        runs[world] = float(once["runs"].sum() / positions.sum())
    return Replays(texts, depth, tuple(contenders), log_ns, spread, runs, tuple(receipts))


def gains(replays: Replays, policy: str, rivals: Sequence[int]) -> dict[str, Gain]:
    """Speed of a policy over the best of its rivals, by world; and the factor of each cause.

    Geometric means over requests. Requests are drawn with replacement, the same ones in every
    world, and a world's draws too; deviations are stretched as in `analysis.effects`. With one
    request the interval is NaN.

    Args:
        rivals: contenders, of which the one counts that is best for all requests of a world.
    """
    means = {world: spent.mean(axis=(0, 2)) for world, spent in replays.log_ns.items()}
    middles = _log_gains(replays, policy, rivals, means)
    ends = {name: np.full(2, np.nan) for name in middles}
    num_requests = len(replays.receipt_ids)
    if num_requests > 1:
        drawn = _log_gains(replays, policy, rivals, _resampled(replays, policy))
        stretch = np.sqrt(num_requests / (num_requests - 1))
        for name, middle in middles.items():
            ends[name] = np.quantile((drawn[name] - middle) * stretch, CENTRAL)
    return {
        name: Gain(*(float(np.exp(middle + step)) for step in (0.0, *ends[name])))
        for name, middle in middles.items()
    }


def _resampled(replays: Replays, policy: str) -> dict[str, Floats]:
    """Mean ln time by world in every resample; Shapes: [contenders, resamples]."""
    name = f"streaks/{replays.texts}/{replays.depth}/{policy}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    generator = np.random.default_rng(seed)
    shares = _shares(generator, len(replays.receipt_ids))
    return {
        world: np.einsum(
            "dcr,bd,br->cb", spent, _shares(generator, len(spent)), shares, optimize=True
        )
        for world, spent in replays.log_ns.items()
    }


def _shares(generator: np.random.Generator, num_members: int) -> Floats:
    """How often each member is drawn, as a share; Shapes: [resamples, members]."""
    even = np.full(num_members, 1 / num_members)
    shares: Floats = generator.multinomial(num_members, even, NUM_RESAMPLES) / num_members
    return shares


def _log_gains(
    replays: Replays, policy: str, rivals: Sequence[int], means: Mapping[str, Floats]
) -> dict[str, Floats]:
    """ln of the gain by world and of each cause's factor.

    Shapes: means [contenders, …] each; returns […] each.
    """
    own = [name for name, _ in replays.contenders].index(policy)
    found = {world: mean[list(rivals)].min(axis=0) - mean[own] for world, mean in means.items()}
    for cause, weights in CAUSES.items():
        parts = [weight * found[world] for world, weight in weights.items()]
        found[cause] = np.sum(parts, axis=0)
    return found
