"""What an experiment is: arms, cells, repetitions, and what was expected beforehand.

Guarantees: plain immutable values; words that plans share are written once. Must never know which
experiments there are, or how jobs run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine import defaults


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of an experiment is run."""

    cells: Literal["all", "quick", "study"] | tuple[str, ...]
    max_new_tokens: int | None  # None: each cell's own budget
    reps: int


FAILED_JOBS = "Failed jobs and jobs of a block whose reference failed; each is listed."
REFERENCES = "Reference jobs enter no speed."
SPEED = "Primary metric: decode_tok_per_s, as paired log-ratios within a block."
STOPPING = "All planned jobs; no ratio is looked at before the last one is done."
QUICK = Scale(cells="quick", max_new_tokens=32, reps=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A registry entry.

    Attributes:
        base_arm: what the null arm repeats; None: nothing is timed, so no null is needed, and
            whoever reads the receipts must compare no speed.
        scales: by name; what is committed was run as `full`.
        num_stages: of the ring that arms do not leave.
        alpha: level of the tests, as a decimal string.
        links: how they are emulated unless the caller says otherwise.
    """

    name: str
    arms: tuple[str, ...]
    base_arm: str | None
    profile: str
    scales: Mapping[str, Scale]
    hypotheses: tuple[str, ...]
    num_stages: int = defaults.NUM_STAGES
    alpha: str = "0.05"
    links: Literal["relay", "netns"] = "relay"
    exclusions: tuple[str, ...] = (FAILED_JOBS, REFERENCES)
    stopping: str = STOPPING
