"""The published A/B of a two-state draft length, beside ours.

Guarantees: what is quoted carries its source; what is ours comes from receipts, ratios of speeds
paired within blocks. Must never know files or axes.

Source of the quoted numbers: pull request 31 of `leyten/shard`, its text; it commits no receipt.
"""

from __future__ import annotations

import pandas as pd

from analysis.checks import ROUND_OUTCOMES
from analysis.curves import first_rep
from analysis.effects import ratio_table
from analysis.load import Experiment, jobs_frame, rounds_frame
from analysis.table_parts import band_note, make_spec, verdict_words
from analysis.table_spec import Column, TableSpec, interval, number, text

ADAPTIVE, FIXED = "two-state", "chain-k8"
PUBLISHED = (
    "Published (pull request 31 of `leyten/shard`; 275 ms loop, k = 8 or 16, depth 4; no receipt "
    "committed): verbatim text 118.0 → 171.5 tok/s, × 1.45, two runs an arm, 25 of 31 rounds "
    "upsized; novel text 2.32 → 2.55 tokens a round, × 1.10, 3 of 100 rounds upsized, its output "
    "not the same ids under both policies."
)


def published_table(experiment: Experiment) -> TableSpec:
    """Speed, tokens a round and upsized rounds of two-state against k = 8, by cell."""
    jobs = jobs_frame(experiment)
    cells = pd.DataFrame([(cell.name, cell.kind) for cell in experiment.plan.cells])
    rows = cells.set_axis(["cell", "kind"], axis=1)
    notes = [
        PUBLISHED,
        "Upsized: rounds that asked for the greater length, by the policy's rule and what it had "
        "seen when the frame was sent; the drafter may have had less. One rep, others repeat it. "
        "Tokens a round: medians over reps, not paired.",
    ]
    if not jobs.empty and {ADAPTIVE, FIXED} <= set(jobs["arm"]):
        ratios, band = ratio_table(jobs, experiment.plan, FIXED, [ADAPTIVE])
        rows = rows.merge(ratios.drop(columns=["arm", "base"]), on="cell", how="left")
        medians = jobs.groupby(["cell", "arm"])["tokens_per_round"].median().unstack()
        rows = rows.merge(medians[[FIXED, ADAPTIVE]], on="cell", how="left")
        rows["tokens_ratio"] = rows[ADAPTIVE] / rows[FIXED]
        rows = rows.merge(_upsized(experiment), on="cell", how="left")
        notes.append(band_note(band))
    else:
        missing = ("ratio", "low", "high", FIXED, ADAPTIVE, "tokens_ratio", "upsized", "rounds")
        rows = rows.assign(**dict.fromkeys(missing, float("nan")), verdict="–")
        notes.append(f"No used job of `{ADAPTIVE}` or `{FIXED}`.")
    columns = (
        text("cell"),
        text("kind"),
        interval(("ratio", "low", "high"), f"tok/s, × {FIXED} [95 %]", 3),
        Column("verdict", verdict_words, is_number=False),
        number(FIXED, f"tokens/round, {FIXED}", 2),
        number(ADAPTIVE, ADAPTIVE, 2),
        number("tokens_ratio", "×", 2),
        Column("upsized", _upsized_words),
    )
    title = "Two-state against 8 drafts, beside the published A/B"
    return make_spec(experiment, "published", title, rows, columns, notes)


def _upsized(experiment: Experiment) -> pd.DataFrame:
    """Columns cell, upsized, rounds of the adaptive arm's first repetition."""
    frames = first_rep(rounds_frame(experiment))
    frames = frames[frames["arm"] == ADAPTIVE]
    up = experiment.plan.arms[ADAPTIVE].policy_params["up"]
    rows = []
    for cell, job in frames.groupby("cell"):
        asked_high = asked_for_more(job, up)
        is_round = job["outcome"].isin(ROUND_OUTCOMES)
        rows.append((cell, int((asked_high & is_round).sum()), int(is_round.sum())))
    return pd.DataFrame(rows, columns=["cell", "upsized", "rounds"])


def asked_for_more(job: pd.DataFrame, up: int) -> pd.Series:
    """Whether each frame of a job was asked to be of the greater length.

    The rule looks at the last round that was decided when the frame left: it accepted all its
    drafts, or at least `up`. An applied frame is decided by its reply, a refuted one by the reply
    of the frame before it.
    """
    decided: list[tuple[int, bool]] = []  # when, and whether the rule then asks for more
    last_reply_ns = 0
    for frame in job.itertuples():
        if frame.outcome == "applied":
            last_reply_ns = int(frame.received_ns)
        if frame.outcome in ROUND_OUTCOMES:
            is_full = 0 < frame.draft_len == frame.accepted_len
            decided.append((last_reply_ns, is_full or frame.accepted_len >= up))
    asked = []
    for frame in job.itertuples():
        seen = [is_up for when_ns, is_up in decided if when_ns <= frame.sent_ns]
        asked.append(bool(seen) and seen[-1])
    return pd.Series(asked, index=job.index, dtype=bool)


def _upsized_words(row: dict[str, object]) -> str:
    upsized, rounds = row["upsized"], row["rounds"]
    if not isinstance(rounds, int | float) or not rounds > 0:
        return "–"
    return f"{upsized:.0f}/{rounds:.0f}"
