"""What the plan said before the first job, and what came of it.

Guarantees: the rules are those of the experiment's hypotheses, word for word in its signed plan; a
rule is applied to the same ratios and bands that the tables print. An experiment without rules here
gets its hypotheses printed as not evaluated. Must never know files or axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from analysis.agreement import compare_ids
from analysis.comparisons import Compared, compare
from analysis.effects import ALL_CELLS, FASTER, MIN_REPS, SLOWER, ratio_table
from analysis.load import Experiment, jobs_frame
from analysis.table_spec import rounded
from analysis.wire import bytes_ratio, wire_by_arm, wire_frame

NOT_EVALUATED = "not evaluated"
NOTHING_MEASURED = "–"
HOLDS, FAILS = "holds", "does not hold"
UNDECIDED = "undecided (interval holds the claim)"
MIN_SEAL_RATIO = 0.98
MAX_FP8_BYTES_RATIO = 0.27
FRAME_STAGES = (1, 2, 3, 4)
Outcome = tuple[str, str]  # what was measured, the outcome
Rule = Callable[[Experiment], Outcome]


def outcomes(experiment: Experiment) -> pd.DataFrame:
    """Columns hypothesis, measured, outcome; one row per hypothesis of the plan.

    What is timed needs the repetitions of a null band; what is counted does not.
    """
    rules = RULES.get(experiment.plan.experiment, {})
    rows = []
    for hypothesis in experiment.plan.hypotheses:
        rule = rules.get(hypothesis.partition(":")[0])
        enough = experiment.plan.reps >= MIN_REPS or not experiment.is_timed
        unjudged = (NOTHING_MEASURED, NOT_EVALUATED)
        measured, outcome = rule(experiment) if rule and enough else unjudged
        rows.append((hypothesis, measured, outcome))
    return pd.DataFrame(rows, columns=["hypothesis", "measured", "outcome"])


def _ratios(experiment: Experiment, base: str) -> pd.DataFrame:
    arms = experiment.measured_arms()
    return ratio_table(jobs_frame(experiment), experiment.plan, base, arms)[0]


def _verbatim_gain(experiment: Experiment) -> Outcome:
    """H1: the interval's low end is the claim's witness, in every verbatim cell."""
    ratios = _ratios(experiment, "ar")
    chosen = ratios[(ratios["arm"] == "chain-k8") & ratios["cell"].str.startswith("verbatim")]
    shown = [f"{row.cell} {row.ratio:.2f} [{row.low:.2f}–{row.high:.2f}]" for row in _rows(chosen)]
    return "; ".join(shown), HOLDS if len(chosen) and bool((chosen["low"] >= 5).all()) else FAILS


def _never_slower(experiment: Experiment) -> Outcome:
    """H2: no arm's whole interval lies below the band of `null-ar` / `ar`, on any cell."""
    ratios = _ratios(experiment, "ar")
    slower = ratios[(ratios["verdict"] == SLOWER) & (ratios["cell"] != ALL_CELLS)]
    shown = [f"{row.arm} on {row.cell} {row.ratio:.3f}" for row in _rows(slower)]
    return "; ".join(shown) or "none slower", FAILS if shown else HOLDS


def _two_state_gain(experiment: Experiment) -> Outcome:
    """H3: the verdict of the table against chain-k8."""
    ratios = _ratios(experiment, "chain-k8")
    chosen = ratios[(ratios["arm"] == "two-state") & (ratios["cell"] == "verbatim-long")]
    shown = [f"{row.ratio:.3f} [{row.low:.3f}–{row.high:.3f}]" for row in _rows(chosen)]
    return "; ".join(shown), HOLDS if list(chosen["verdict"]) == [FASTER] else FAILS


def _lossless(experiment: Experiment) -> Outcome:
    """Every planned job, measured or reference, ended without a differing id."""
    good = [
        receipt
        for receipt in experiment.receipts
        if receipt.status == "ok" and receipt.lossless.verdict in ("identical", "reference")
    ]
    num_planned = len(experiment.plan.jobs)
    return f"{len(good)} of {num_planned} jobs", HOLDS if len(good) == num_planned else FAILS


def _seal_speed(arm: str) -> Rule:
    """seal H1, H2: the interval over all cells lies at or above the claim, or below it."""

    def judge(experiment: Experiment) -> Outcome:
        for compared in compare(experiment):
            overall = compared.ratios[compared.ratios["cell"] == ALL_CELLS].set_index("arm")
            if arm not in overall.index or not compared.band.is_established:
                continue
            shown = [f"{name} {_interval(overall.loc[name])}" for name in (arm, *_nulls(compared))]
            band = f"null band {compared.band.low:.3f} … {compared.band.high:.3f}"
            row = overall.loc[arm]
            return "; ".join([*shown, band]), _against(row["low"], row["high"], MIN_SEAL_RATIO)
        return NOTHING_MEASURED, NOT_EVALUATED

    return judge


def _fp8_speculation(experiment: Experiment) -> Outcome:
    """fp8 H1: every planned job of chain-fp8 has the ids of its block's ar-fp8."""
    rows = compare_ids(experiment, "chain-fp8", "ar-fp8")
    num_equal, num_planned = int(rows["equal"].sum()), int(rows["planned"].sum())
    if not num_planned:
        return NOTHING_MEASURED, NOT_EVALUATED
    is_whole = num_equal == num_planned and bool((rows["planned"] > 0).all())
    return f"{num_equal} of {num_planned} jobs", HOLDS if is_whole else FAILS


def _fp8_text(experiment: Experiment) -> Outcome:
    """fp8 H2: some cell's ids part, and each comparison stays within fp8."""
    rows = compare_ids(experiment, "ar-fp8", "ar")
    if not rows["compared"].sum():
        return NOTHING_MEASURED, NOT_EVALUATED
    parted = rows[rows["first_difference"].notna()]
    configs = {
        identifier: receipt.requested.numeric_config
        for identifier, receipt in zip(experiment.receipt_ids, experiment.receipts, strict=True)
    }
    crossed = [
        receipt
        for receipt in experiment.receipts
        if receipt.requested.numeric_config == "fp8"
        and receipt.lossless.reference_id is not None
        and configs.get(receipt.lossless.reference_id) != "fp8"
    ]
    shown = [f"{row.cell} from output {row.first_difference:.0f}" for row in _rows(parted)]
    measured = f"{'; '.join(shown) or 'no cell differs'}; {len(crossed)} jobs judged across"
    return measured, HOLDS if shown and not crossed else FAILS


def _fp8_bytes(experiment: Experiment) -> Outcome:
    """fp8 H3: where stages dropped frames the ratio is bounded, and both bounds must agree."""
    by_arm = wire_by_arm(wire_frame(experiment))
    least, most = bytes_ratio(by_arm, "chain-fp8", "chain-k8")
    if pd.isna(least) or pd.isna(most):
        return NOTHING_MEASURED, NOT_EVALUATED
    measured = f"{least:.4f}" if f"{least:.4f}" == f"{most:.4f}" else f"{least:.4f}–{most:.4f}"
    # At most the limit is at least its inverse.
    return measured, _against(1 / most, 1 / least, 1 / MAX_FP8_BYTES_RATIO)


def _frames_a_traversal(experiment: Experiment) -> Outcome:
    """frames H1: in each job each of N + 1 processes wrote one frame a traversal, for each N."""
    jobs = wire_frame(experiment)
    wanted = {(reply, num_stages) for reply in ("ids", "logits") for num_stages in FRAME_STAGES}
    seen = set(zip(jobs["reply"], jobs["num_stages"], strict=True))
    num_exact, num_planned = int(jobs["is_exact"].sum()), _num_measured(experiment)
    measured = f"{num_exact} of {num_planned} jobs; {len(wanted & seen)} of {len(wanted)} rings"
    return measured, HOLDS if num_exact == num_planned and wanted <= seen else FAILS


def _against(low: float, high: float, claim: float) -> str:
    """Judge an interval against a claim of at least so much."""
    if low >= claim:
        return HOLDS
    return FAILS if high < claim else UNDECIDED


def _interval(row: pd.Series) -> str:
    ratio, low, high = (rounded(float(row[end]), 3) for end in ("ratio", "low", "high"))
    return f"{ratio} [{low}–{high}]"


def _nulls(compared: Compared) -> list[str]:
    return [] if compared.band.null_arm is None else [compared.band.null_arm]


def _num_measured(experiment: Experiment) -> int:
    return sum(row.role == "measured" for row in experiment.plan.jobs)


def _rows(frame: pd.DataFrame) -> list[pd.Series]:
    return [row for _, row in frame.iterrows()]


RULES: Mapping[str, Mapping[str, Rule]] = {
    "decode": {
        "H1": _verbatim_gain,
        "H2": _never_slower,
        "H3": _two_state_gain,
        "H4": _lossless,
    },
    "seal": {
        "H1": _seal_speed("seal-chacha"),
        "H2": _seal_speed("seal-aes"),
        "H3": _lossless,
    },
    "fp8": {"H1": _fp8_speculation, "H2": _fp8_text, "H3": _fp8_bytes},
    "frames": {"H1": _frames_a_traversal, "H2": _lossless},
}
