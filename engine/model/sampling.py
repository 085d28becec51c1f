"""From logits to token ids: greedy, or sampled with noise keyed by seed and position.

Guarantees: an id is a function of its logits row, the parameters and its position alone, so it
never depends on how the position was verified (chunk, batch, split, draft); of equals the lowest id
wins. Noise comes from integers, and where float logarithms cannot tell two candidates apart
decimals decide, so no processor or library version changes a choice between given candidates.
Never knows about text or layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import ConfigError, JobError

MAX_TEMPERATURE = 100.0
SEED_HEX_LEN = 16
# Float64 scores near the best are good to 1e-12: candidates further apart than this are decided.
SCORE_MARGIN = 1e-9
EXACT = Context(prec=50)

# no sign, exponent or name such as "nan"; 17 places, so that no text but zero becomes 0.0
_DECIMAL = re.compile(r"[0-9]{1,3}(\.[0-9]{1,17})?", re.ASCII)
_SEED = re.compile(rf"[0-9a-f]{{{SEED_HEX_LEN}}}", re.ASCII)
_ID_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one job chooses its tokens.

    Attributes:
        temperature: the logits are divided by it; 0 is greedy, whatever the others say.
        top_k: choose among the k largest logits; 0 for no limit.
        top_p: of those, choose among the fewest that hold this share of their probability mass.
        seed: keys the noise, 64 bits.

    Raises:
        ConfigError: if a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigError(
                f"temperature {self.temperature}: must be from 0 (greedy) to {MAX_TEMPERATURE:g}"
            )
        if self.top_k < 0:
            raise ConfigError(f"top_k {self.top_k}: must be 0 (no limit) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p {self.top_p}: must be above 0 and at most 1 (no limit)")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed {self.seed}: must be an unsigned number of 64 bits")

    @classmethod
    def parse(cls, temperature: str, top_k: int, top_p: str, seed: str) -> SamplingParams:
        """Read the parameters as the wire carries them.

        Args:
            temperature: plain decimal such as "0.7".
            top_k: one above the vocabulary is no limit.
            top_p: plain decimal such as "0.95".
            seed: 16 lower-case hex digits.

        Raises:
            ConfigError: if a text is malformed or a value out of range.
        """
        if not _SEED.fullmatch(seed):
            raise ConfigError(f"seed {seed!r}: must be {SEED_HEX_LEN} hex digits of 0-9 and a-f")
        return cls(
            temperature=_decimal("temperature", temperature),
            top_k=top_k,
            top_p=_decimal("top_p", top_p),
            seed=int(seed, 16),
        )


def greedy_ids(logits: torch.Tensor) -> list[int]:
    """Return the id of the largest logit of every row, the lowest of equals.

    Shapes:
        logits: [T, V] float32

    Raises:
        JobError: `bad_logits` if a row has a NaN or +inf, or nothing but -inf.
    """
    rows = logits.numpy()
    # numpy documents the first of equals, and a NaN before all; torch.argmax does not promise which
    ids: list[int] = rows.argmax(axis=1).tolist()
    for row, idx in zip(rows, ids, strict=True):
        if not np.isfinite(row[idx]):
            raise JobError("bad_logits", f"the largest logit of a row is {row[idx]}, not finite")
    return ids


def sample_ids(logits: torch.Tensor, positions: Sequence[int], params: SamplingParams) -> list[int]:
    """Choose one token for every row.

    The token at position t is the id with the largest `logit / temperature + g(seed, t, id)` among
    the candidates of its row, g being standard Gumbel noise: a draw from the softmax over the
    candidates. The noise of an id does not depend on which others are candidates.

    Args:
        logits: one row a position.
        positions: of the token that each row chooses, one after the position that computed the
            row. This answer position keys the noise; nodes of a tree may have one in common.
        params: temperature 0 takes the path of `greedy_ids`.

    Shapes:
        logits: [T, V] float32 -> T ids

    Raises:
        JobError: `bad_logits` if a row has a NaN or +inf, or nothing but -inf; -inf elsewhere is
            an id that is never chosen.

    Source:
        Gumbel-max: the argmax of logits plus independent standard Gumbel noise has the softmax's
        distribution.
    """
    if params.temperature == 0:
        return greedy_ids(logits)
    ids = []
    for position, row in zip(positions, logits.numpy(), strict=True):
        peak = float(row.max())
        if not np.isfinite(peak):
            raise JobError(
                "bad_logits", f"the largest logit for position {position} is {peak}, not finite"
            )
        candidates = candidate_ids(row, params)
        gaps = (row[candidates].astype(np.float64) - peak) / params.temperature
        uniforms = noise_uniforms(params.seed, position, row.size)[candidates]
        ids.append(_choose(candidates, gaps, uniforms))
    return ids


def noise_uniforms(seed: int, position: int, num_ids: int) -> npt.NDArray[np.float64]:
    """Return the uniform behind the noise of each id, the same bits everywhere and for good.

    The stream: id i has word `i % 4` of the Philox4x64-10 block with key (seed, 0) and counter
    (i // 4 + 1, position, 0, 0), low words first; its upper 52 bits b give (b + 1/2) / 2^52, which
    float64 holds exactly and which is never 0 or 1. Of numpy only raw words are used, whose stream
    `numpy.random.Philox` promises to keep; the methods of `Generator` come without that promise.

    Shapes:
        return: [num_ids] float64, each within (0, 1)

    Source:
        Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    key = np.array([seed, 0], dtype=np.uint64)
    counter = np.array([0, position, 0, 0], dtype=np.uint64)  # numpy steps it before each block
    words = np.random.Philox(key=key, counter=counter).random_raw(num_ids)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def candidate_ids(row: npt.NDArray[np.float32], params: SamplingParams) -> npt.NDArray[np.int64]:
    """Return the ids to choose from: top-k, then top-p of what is left, at least one.

    Both count from the largest logit down, of equal logits the lowest id first; with neither, all
    ids are returned. Masses are float64 sums at the given temperature in that order, so where one
    lies within rounding of `top_p` the sum says on which side.

    Shapes:
        row: [V] float32, its largest finite; temperature above 0 -> [N] distinct ids
    """
    limits_mass = params.top_p < 1
    limits_count = 0 < params.top_k < row.size
    if not limits_mass and not limits_count:
        return np.arange(row.size)
    keys = _order_keys(row)
    if limits_count:
        keys = np.partition(keys, params.top_k - 1)[: params.top_k]
    ids = np.sort(keys) & _ID_MASK
    if limits_mass:
        logits = row[ids].astype(np.float64)
        mass = np.cumsum(np.exp((logits - logits[0]) / params.temperature))
        ids = ids[: np.searchsorted(mass, params.top_p * mass[-1]) + 1]
    return ids


def _order_keys(row: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return one distinct key per id: ascending keys are descending logits, then ascending ids.

    Distinct keys have one order, so the fast sort gives it too; a stable sort takes six times as
    long. The upper half is the negated logit's bits, which order like the floats once the
    magnitude bits of the negative ones are flipped; the lower half is the id.
    """
    bits = (0.0 - row).view(np.int32)  # a subtraction, since negating 0.0 would give -0.0
    ranks = bits ^ (bits >> 31 & 0x7FFF_FFFF)  # bits >> 31: all ones if negative, else zero
    return ranks.astype(np.int64) << 32 | np.arange(row.size)


def _choose(
    ids: npt.NDArray[np.int64], gaps: npt.NDArray[np.float64], uniforms: npt.NDArray[np.float64]
) -> int:
    """Return the candidate with the largest score, its gap minus ln(-ln(uniform)).

    Logarithms differ in their last bit between processors. So float64 scores only nominate, and
    decimals, equal on every processor, decide among those too close to call.

    Shapes:
        ids, gaps, uniforms: [N], one entry per candidate; a gap is (logit - largest) / temperature
    """
    scores = gaps - np.log(-np.log(uniforms))
    nominees = np.flatnonzero(scores >= scores.max() - SCORE_MARGIN)
    if nominees.size == 1:
        return int(ids[nominees[0]])
    ranked = [
        (_exact_score(float(gaps[idx]), float(uniforms[idx])), -int(ids[idx])) for idx in nominees
    ]
    return -max(ranked)[1]


def _exact_score(gap: float, uniform: float) -> Decimal:
    """Return the score to 50 digits; both arguments are exact as they are."""
    exponential = EXACT.ln(Decimal(uniform)).copy_negate()  # a unary minus would round it
    return EXACT.subtract(Decimal(gap), EXACT.ln(exponential))


def _decimal(name: str, text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise ConfigError(
            f"{name} {text!r}: must be a plain decimal such as 0.7, with at most 17 places"
        )
    return float(text)
