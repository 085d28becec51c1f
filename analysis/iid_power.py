"""Power and size: how often a test rejects simulated studies, with exact intervals.

Guarantees: a study is drawn from a seed of its own (inputs, family, effect, number), so that a
result does not hang on how the work was shared out; the digest of the inputs stands with the
result. Must never know receipts, files or how results are printed.

Source: DESIGN section 14, "Power and size".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
from scipy import stats

from analysis.iid import TESTS, Study, run_test
from analysis.iid_bits import bits_of_rounds, drafted, ruled_study
from analysis.iid_result import IidResult, Round, enough_for
from analysis.iid_simulation import (
    SWITCH_CHANCE,
    LengthRule,
    Text,
    chances_of,
    drawn_study,
    pipelined_rounds,
)

NUM_DRAWS = 1_999
NUM_STUDIES = 2_000
# In every digest: counts the changes of what is simulated that no number below shows.
RULES_VERSION = 1
# Pre-registered in the plan of the acceptance experiment; 0 is the null row of each family.
EFFECTS: Mapping[str, tuple[float, ...]] = {
    "within rounds": (0.0, 0.05, 0.1, 0.2, 0.4),
    "between rounds": (0.0, 0.25, 0.5, 1.0, 2.0),
    "between prompts": (0.0, 0.02, 0.05, 0.1, 0.2),
}


@dataclass(frozen=True, slots=True)
class PowerInputs:
    """What a power table rests on: the study's own requests, K, mean acceptance and level."""

    texts: tuple[Text, ...]
    draft_len: int
    alpha: float
    level: float
    num_studies: int = NUM_STUDIES
    num_draws: int = NUM_DRAWS

    def digest(self) -> str:
        """SHA-256 of the inputs, families and effects included."""
        families = {"effects": dict(EFFECTS), "switch_chance": SWITCH_CHANCE}
        return inputs_digest({**asdict(self), **families})


@dataclass(frozen=True, slots=True)
class SizeInputs:
    """What a size table rests on."""

    alphas: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 0.97)
    rules: tuple[LengthRule, ...] = (LengthRule(8, 8), LengthRule(16, 16), LengthRule(8, 16))
    depths: tuple[int, ...] = (1, 4)
    level: float = 0.05
    num_studies: int = 1_000
    num_draws: int = NUM_DRAWS
    num_requests: int = 16
    budget: int = 64  # tokens after the prefill token
    eos_chance: float = 0.01  # a token

    def digest(self) -> str:
        """SHA-256 of the inputs."""
        return inputs_digest(asdict(self))


def inputs_digest(inputs: Mapping[str, Any]) -> str:
    """SHA-256 over canonical JSON of the inputs, the tests and the version of the rules."""
    whole = {**inputs, "tests": TESTS, "rules_version": RULES_VERSION}
    return hashlib.sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()


def generator_of(*parts: object) -> np.random.Generator:
    """Random numbers of one study."""
    digest = hashlib.sha256("‖".join(map(str, parts)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def rejections(study: Study, level: float, num_draws: int) -> dict[str, bool]:
    """Whether each applicable test rejects a study at a level, from at most so many draws."""
    enough = enough_for(level, num_draws)
    found = {test: run_test(test, study, num_draws, enough) for test in TESTS}
    return {
        test: result.p <= level for test, result in found.items() if isinstance(result, IidResult)
    }


def power_study(inputs: PowerInputs, family: str, effect: float, idx: int) -> dict[str, bool]:
    """One simulated study of a family, tested."""
    generator = generator_of(inputs.digest(), family, effect, idx)
    chances = chances_of(family, inputs.alpha, effect, inputs.draft_len)
    study = drawn_study(generator, chances, inputs.texts, inputs.draft_len)
    return rejections(study, inputs.level, inputs.num_draws)


def size_study(
    inputs: SizeInputs, alpha: float, rule: LengthRule, depth: int, idx: int
) -> dict[str, bool]:
    """One i.i.d. study decoded by the engine's rules, tested."""
    generator = generator_of(inputs.digest(), alpha, rule, depth, idx)
    requests, texts = [], []
    for _ in range(inputs.num_requests):
        over_after = int(generator.geometric(inputs.eos_chance))
        # A text that is over with its budget is cut like one that goes on: the engine knows where.
        text = Text(min(over_after, inputs.budget), over_after < inputs.budget)
        requests.append(_decoded(generator, alpha, text, rule, depth))
        texts.append(text)
    study = ruled_study(
        bits=[bits_of_rounds(request) for request in requests],
        nums_committed=[text.num_committed for text in texts],
        k_min=rule.low,
        k_max=rule.high,
        all_rounds=[drafted(request) for request in requests],
    )
    return rejections(study, inputs.level, inputs.num_draws)


def _decoded(
    generator: np.random.Generator, alpha: float, text: Text, rule: LengthRule, depth: int
) -> list[Round]:
    fates = iter((generator.random(2 * text.num_committed + rule.high) < alpha).tolist())
    return pipelined_rounds(lambda: next(fates), text, rule, depth)


def share_interval(count: int, total: int) -> tuple[float, float, float]:
    """A share and its exact 95 % interval (Clopper and Pearson 1934)."""
    found = stats.binomtest(count, total).proportion_ci(0.95, "exact")
    return count / total, float(found.low), float(found.high)


def size_limit(level: float, num_studies: int) -> float:
    """The greatest share of rejections that a test of this level may show: three errors above."""
    return float(level + 3 * np.sqrt(level * (1 - level) / num_studies))
