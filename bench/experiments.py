"""Experiments by name: which arms, on which cells, how often, and what was expected beforehand.

Guarantees: everything that a plan pre-registers is here, in words, before any job runs. Adding an
experiment is one entry. Must never know how a job runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.arm_groups import (
    DECODE_ARMS,
    FP8_ARMS,
    FRAME_ARMS,
    INT4_ARMS,
    LEARNED_ARMS,
    PLANNER_ARMS,
    SEAL_ARMS,
)
from bench.arms import BASE_ARM
from bench.cells import Cell, load_cells, quick_cells, study_cells
from bench.experiment import FAILED_JOBS, QUICK, SPEED, Experiment, Scale
from bench.sweeps import SWEEPS
from engine import defaults
from engine.errors import unknown_name

_COUNTING = Scale(cells=("chat",), max_new_tokens=16, reps=1)

_DRAFTABLE = ("verbatim-long", "json-extraction", "quoting", "mixed")


def _planner(name: str, profile: str, cells: tuple[str, ...] | None, num_stages: int) -> Experiment:
    """The planner's A/B on one ring, on all cells or on some.

    Its two fixed settings are the best over all cells of a replay on a ring of this machine.
    """
    draftable = [name for name in _DRAFTABLE if cells is None or name in cells]
    return Experiment(
        name=name,
        arms=PLANNER_ARMS,
        base_arm=BASE_ARM,
        profile=profile,
        num_stages=num_stages,
        scales={
            "quick": QUICK,
            "full": Scale(cells=cells or "all", max_new_tokens=None, reps=4),
        },
        hypotheses=(
            SPEED,
            "H1: planner decodes at 0.95 or more of the speed of clairvoyant on every cell.",
            f"H2: over the cells {' and '.join(draftable)} planner decodes at 1.10 or more of the "
            "speed of two-state, in geometric mean.",
            "H3: planner is not slower than two-state on any cell beyond the null band (null "
            "against chain-k8).",
            "H4: every job is lossless.",
            "H5: planner decodes verbatim-long at 12 times the speed of ar or more.",
        ),
    )


def _hybrid(name: str, profile: str, least: str) -> Experiment:
    """The learned head against n-grams, alone and together, on one ring."""
    return Experiment(
        name=name,
        arms=LEARNED_ARMS,
        base_arm=BASE_ARM,
        profile=profile,
        scales={"quick": QUICK, "full": Scale(cells="all", max_new_tokens=32, reps=4)},
        hypotheses=(
            SPEED,
            f"H1: hybrid decodes chat and reasoning at {least} times the speed of ar or more.",
            "H2: hybrid decodes every cell at 0.98 or more of the speed of the fastest of "
            "chain-k8, chain-eagle and tree.",
            "H3: over all cells, hybrid-planner decodes at 1.20 or more of the speed of two-state, "
            "in geometric mean.",
            "H4: every job is lossless.",
        ),
    )


_ENTRIES = (
    *SWEEPS,
    _hybrid("hybrid", "wan-275", "1.60"),
    _hybrid("hybrid-eu", "eu-ring", "1.40"),
    _planner("planner", "wan-275", None, defaults.NUM_STAGES),
    _planner("planner-eu", "eu-ring", ("verbatim-long", "mixed", "chat"), defaults.NUM_STAGES),
    _planner("planner-six", "wan-275", ("verbatim-long", "mixed", "chat"), 6),
    Experiment(
        name="acceptance",
        arms=("accept-k8",),
        base_arm=None,
        profile="loopback",
        scales={
            "quick": Scale(cells=("verbatim", "chat"), max_new_tokens=32, reps=1),
            "full": Scale(cells="study", max_new_tokens=96, reps=1),
        },
        hypotheses=(
            "H0: every drafted token is accepted independently with one probability until the "
            "first refusal (greedy decoding, deterministic drafter: a model of the text).",
            "Tests: depth_rise, serial_product, stream_runs, full_excess, between_requests and "
            "context_e of analysis.iid on the pooled study, Holm over the applicable ones at "
            "alpha; results by group of prompts are exploratory.",
            "H1: H0 is rejected.",
            "H2: match_e rejects that acceptance is independent of match length, with fillers and "
            "without.",
            "H3: every job is lossless.",
            "Power, from at least 2000 simulated studies each, mean acceptance held: logit slope "
            "per depth 0.05, 0.1, 0.2, 0.4; two regimes of plus or minus 0.25, 0.5, 1, 2 logit, "
            "switch 0.2 a round; prompts beta with intraclass correlation 0.02, 0.05, 0.1, 0.2; "
            "and a null row of each.",
        ),
        alpha="0.01",
        exclusions=(
            FAILED_JOBS,
            "A job that an error or a deadline ended enters context_e only.",
            "Bits behind the first n of a request (DESIGN section 14) enter context_e only.",
        ),
    ),
    Experiment(
        name="two-state",
        arms=("ar", "null-ar", BASE_ARM, "null", "two-state"),
        base_arm=BASE_ARM,
        profile="wan-275",
        scales={
            "quick": QUICK,
            "full": Scale(
                cells=("verbatim-long", "summary", "reasoning", "chat"),
                max_new_tokens=None,
                reps=4,
            ),
        },
        hypotheses=(
            SPEED,
            "H1: two-state (8 or 16 drafts, up at 6) is faster than chain-k8 on verbatim-long "
            "beyond the null band.",
            "H2: two-state is neither faster nor slower than chain-k8 on summary, reasoning and "
            "chat beyond the null band.",
            "Reported: tokens per round and the share of rounds that asked for 16.",
            "H3: every job is lossless.",
        ),
    ),
    Experiment(
        name="decode",
        arms=DECODE_ARMS,
        base_arm=BASE_ARM,
        profile=defaults.PROFILE,
        scales={
            "quick": QUICK,
            "full": Scale(cells="all", max_new_tokens=None, reps=4),
        },
        hypotheses=(
            "Primary metric: decode_tok_per_s, as paired log-ratios within a block.",
            "H1: chain-k8 decodes the verbatim cells at least 5 times as fast as ar.",
            "H2: no arm is slower than ar on any cell beyond the null band (null-ar against ar).",
            "H3: two-state is faster than chain-k8 on verbatim-long beyond the null band.",
            "H4: every job is lossless.",
        ),
    ),
    Experiment(
        name="seal",
        arms=SEAL_ARMS,
        base_arm="seal-none",
        profile="wan-275",
        scales={
            "quick": QUICK,
            "full": Scale(cells="quick", max_new_tokens=32, reps=6),
        },
        hypotheses=(
            "Primary metric: decode_tok_per_s, as paired log-ratios within a block to seal-none; "
            "the null band is that of null-seal.",
            "H1: over all cells, seal-chacha decodes at 0.98 or more of the speed of seal-none.",
            "H2: over all cells, seal-aes decodes at 0.98 or more of the speed of seal-none.",
            "H3: every job is lossless.",
        ),
    ),
    Experiment(
        name="fp8",
        arms=FP8_ARMS,
        base_arm=BASE_ARM,
        profile="wan-275",
        scales={
            "quick": QUICK,
            "full": Scale(cells=("verbatim", "summary", "reasoning"), max_new_tokens=32, reps=4),
        },
        hypotheses=(
            "Primary metric: output ids; decode_tok_per_s, as paired log-ratios, is reported.",
            "H1: chain-fp8 gives the ids of ar-fp8, one by one, on every cell.",
            "H2: ar-fp8 differs from ar on at least one cell; no fp8 job is judged against f32.",
            "H3: over all jobs, the hidden-state frames of chain-fp8 (what every stage but the "
            "last sends, headers and tags included) have for each position sent at most 0.27 of "
            "the bytes that those of chain-k8 have.",
        ),
    ),
    Experiment(
        name="int4",
        arms=INT4_ARMS,
        base_arm=BASE_ARM,
        profile="loopback",
        scales={
            "quick": QUICK,
            "full": Scale(cells="quick", max_new_tokens=None, reps=4),
        },
        hypotheses=(
            "Primary metric: decode_tok_per_s, as paired log-ratios within a block; output ids "
            "are compared within a numeric configuration only and may differ between f32 and int4.",
            "H1: chain-int4 gives the ids of ar-int4, one by one, on every cell.",
            "H2: ar-int4 is faster than ar beyond the null band (null-ar against ar) on every "
            "cell.",
            "H3: every job is lossless within its numeric configuration.",
        ),
    ),
    Experiment(
        name="frames",
        arms=FRAME_ARMS,
        base_arm=None,
        profile="loopback",
        scales={"quick": _COUNTING, "full": _COUNTING},
        hypotheses=(
            "Primary metric: counters.hops. Nothing is timed, so there is no null arm.",
            "H1: N stages write exactly N + 1 frames a traversal, for N = 1, 2, 3, 4, with ids "
            "and with logits.",
            "H2: every job is lossless.",
        ),
        exclusions=(FAILED_JOBS,),
    ),
)

EXPERIMENTS: Mapping[str, Experiment] = {entry.name: entry for entry in _ENTRIES}


def get_experiment(name: str) -> Experiment:
    """Look an experiment up.

    Raises:
        ConfigError: unknown name; the valid ones are listed.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def get_scale(experiment: Experiment, name: str) -> Scale:
    """Look up how much to run.

    Raises:
        ConfigError: unknown name; the valid ones are listed.
    """
    if name not in experiment.scales:
        raise unknown_name(f"scale of {experiment.name}", name, experiment.scales)
    return experiment.scales[name]


def choose_cells(scale: Scale, names: tuple[str, ...] | None) -> list[Cell]:
    """The cells by name, or the scale's.

    Raises:
        ConfigError: unknown or repeated name.
    """
    if names is None and scale.cells == "quick":
        return list(quick_cells().values())
    if names is None and scale.cells == "study":
        return list(study_cells().values())
    if names is None and scale.cells != "all":
        names = scale.cells
    return list(load_cells(names).values())
