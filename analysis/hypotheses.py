"""What the plan said before the first job, and what came of it.

Guarantees: the rules are those of the experiment's hypotheses, word for word in its signed plan; a
rule takes its ratios and bands from `effects`, as the tables do, and says what it measured; one
that finds nothing to judge says so, never that its hypothesis holds or does not. An experiment
without rules here, or a line of a plan that claims nothing, is printed as not evaluated. A further
experiment is one entry of `RULES`. Must never know files or axes.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analysis.attest_tables import cheap_enough
from analysis.counted_rules import fp8_bytes, fp8_text, frames_a_traversal, lossless, same_ids
from analysis.effects import FASTER, INSIDE, SLOWER
from analysis.load import Experiment
from analysis.pair_rules import (
    Pair,
    at_least,
    mean_at_least,
    never_slower_than,
    no_difference,
    over_all_cells,
)
from analysis.rule_parts import UNJUDGED, Rule, every
from analysis.speed_rules import (
    faster_everywhere,
    never_slower,
    seal_speed,
    verbatim_gain,
    verdict_on,
)
from analysis.study_rules import independence_rejected, match_predicts

MIN_OF_BOUND, MIN_TWO_STATE_GAIN, MIN_LONG_GAIN = 0.95, 1.10, 12
TO_BOUND = Pair("planner", "clairvoyant", null_of="chain-k8")
TO_TWO_STATE = Pair("planner", "two-state", null_of="chain-k8")
TO_AR = Pair("planner", "ar", null_of="ar")
AR_WARM, MIN_WARM = Pair("ar-warm", "ar", null_of="ar"), 0.98
DRAFTABLE = {  # experiment -> the cells that its H2 names
    "planner": ("verbatim-long", "json-extraction", "quoting", "mixed"),
    "planner-eu": ("verbatim-long", "mixed"),
    "planner-six": ("verbatim-long", "mixed"),
}
MIN_ATTESTED = 0.98
BASE = "chain-k8"
SINGLE_SOURCE = (BASE, "chain-eagle", "tree")
MIN_OF_SINGLE, MIN_HYBRID_GAIN = 0.98, 1.20
TWO_STATE_TO_BASE = Pair("two-state", BASE, null_of=BASE)
TWO_STATE_GAIN = verdict_on("two-state", BASE, FASTER, "verbatim-long")


def outcomes(experiment: Experiment) -> pd.DataFrame:
    """Columns hypothesis, measured, outcome; one row per hypothesis of the plan."""
    rules = RULES.get(experiment.plan.experiment, {})
    rows = []
    for hypothesis in experiment.plan.hypotheses:
        rule = rules.get(hypothesis.partition(":")[0])
        rows.append((hypothesis, *(rule(experiment) if rule else UNJUDGED)))
    return pd.DataFrame(rows, columns=["hypothesis", "measured", "outcome"])


def _planner_rules(draftable: tuple[str, ...]) -> Mapping[str, Rule]:
    """Of the planner's A/B on one ring."""
    return {
        "H1": at_least(TO_BOUND, MIN_OF_BOUND),
        "H2": mean_at_least(TO_TWO_STATE, MIN_TWO_STATE_GAIN, *draftable),
        "H3": never_slower_than(TO_TWO_STATE),
        "H4": lossless,
        "H5": at_least(TO_AR, MIN_LONG_GAIN, "verbatim-long"),
    }


def _keepwarm_rules(expected: str) -> Mapping[str, Rule]:
    """Of noops on silent links, on and off."""
    return {
        "H1": verdict_on("chain-warm", BASE, expected),
        "H2": over_all_cells(AR_WARM, MIN_WARM),
        "H3": lossless,
    }


def _hybrid_rules(least: float) -> Mapping[str, Rule]:
    """Of the learned head against n-grams, alone and together, on one ring."""
    singles = {
        f"to {arm}": at_least(Pair("hybrid", arm, null_of=BASE), MIN_OF_SINGLE)
        for arm in SINGLE_SOURCE
    }
    return {
        "H1": at_least(Pair("hybrid", "ar", null_of="ar"), least, "chat", "reasoning"),
        "H2": every(singles),
        "H3": over_all_cells(Pair("hybrid-planner", "two-state", null_of=BASE), MIN_HYBRID_GAIN),
        "H4": lossless,
    }


RULES: Mapping[str, Mapping[str, Rule]] = {
    **{name: _planner_rules(cells) for name, cells in DRAFTABLE.items()},
    "hybrid": _hybrid_rules(1.60),
    "hybrid-eu": _hybrid_rules(1.40),
    "k": {"H1": verdict_on("chain-k32", BASE, FASTER, "verbatim"), "H2": lossless},
    "depth": {"H1": verdict_on("chain-d1", BASE, SLOWER, "verbatim"), "H2": lossless},
    "stages": {"H1": lossless},
    "attest": {
        "H1": over_all_cells(Pair("chain-attest", BASE, null_of=BASE), MIN_ATTESTED),
        "H2": over_all_cells(Pair("ar-attest", "ar", null_of="ar"), MIN_ATTESTED),
        "H3": cheap_enough,
        "H4": lossless,
    },
    "keepwarm": _keepwarm_rules(FASTER),
    "keepwarm-bbr": _keepwarm_rules(INSIDE),
    "acceptance": {"H1": independence_rejected, "H2": match_predicts, "H3": lossless},
    "two-state": {
        "H1": TWO_STATE_GAIN,
        "H2": no_difference(TWO_STATE_TO_BASE, "summary", "reasoning", "chat"),
        "H3": lossless,
    },
    "decode": {
        "H1": verbatim_gain,
        "H2": never_slower,
        "H3": TWO_STATE_GAIN,
        "H4": lossless,
    },
    "seal": {
        "H1": seal_speed("seal-chacha"),
        "H2": seal_speed("seal-aes"),
        "H3": lossless,
    },
    "fp8": {"H1": same_ids("chain-fp8", "ar-fp8"), "H2": fp8_text, "H3": fp8_bytes},
    "int4": {
        "H1": same_ids("chain-int4", "ar-int4"),
        "H2": faster_everywhere("ar-int4", "ar"),
        "H3": lossless,
    },
    "frames": {"H1": frames_a_traversal, "H2": lossless},
}
