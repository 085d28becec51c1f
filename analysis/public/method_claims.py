"""Published method and cost of signing, held against the order and the times of the jobs.

Guarantees: a rule is stated where it is applied; what a file's order shows is taken for the order
in which jobs ran, since each was appended when it ended. Must never know files.
"""

from __future__ import annotations

from itertools import groupby

import pandas as pd

from analysis import closed_form
from analysis.public.attestation import RING, WEIGHTINGS, cost_rows, ring_rows
from analysis.public.claim import Claim, Finding, judged
from analysis.public.decode import (
    MS_PER_S,
    OFF,
    ON,
    cell_medians,
    jobs_frame,
    one,
    speculative,
    split_rows,
)
from analysis.public.files import CHAIN, HYBRID, PAPER_ON, PublicReceipts
from analysis.public.law import DEPTH, DRAFT_LEN
from analysis.public.quotes import QUOTES
from analysis.public.records import Job
from analysis.public.speed_claims import BOTH, NOVEL_CELLS

G_ROUNDING = 0.0015  # g and accepted are each printed to three decimals
NEAR = 0.05  # what "about" may be off by
COST = "(span − compute), receipts on less off, by stage, summed over the ring"


def shows_depth(job: Job) -> bool:
    """Whether anything in a job's record needs more than one frame in flight.

    A reply that is discarded was in flight behind another; a round accepted in full keeps its bonus
    token, so that g = accepted + 1, only if nothing was behind it.
    """
    return job.wasted > 0 or abs(job.g - job.accept - 1.0) > G_ROUNDING


def depth_tried(public: PublicReceipts) -> Claim:
    """Supported if any drafting job on new text shows a second frame in flight: without one in
    flight, no depth was compared there."""
    found = Finding("depth", public, BOTH)
    jobs = [*public.on, *public.off]
    chain = [job for job in jobs if job.arm == CHAIN]
    novel = [job for job in jobs if job.cell in NOVEL_CELLS and job.arm in (CHAIN, HYBRID)]
    deep = found.count(
        "chain.deep", sum(map(shows_depth, chain)), "jobs", "discarded replies, or g ≠ accepted + 1"
    )
    of = found.count("chain.jobs", len(chain), "jobs", "jobs of chain, both files")
    deep_novel = found.count(
        "novel.deep", sum(map(shows_depth, novel)), "jobs", "the same, drafting arms on new text"
    )
    of_novel = found.count("novel.jobs", len(novel), "jobs", "drafting arms on new text")
    bursts = [job for job in jobs if job.arm == HYBRID and job.cell not in NOVEL_CELLS]
    deep_burst = found.count(
        "bursts.deep", sum(map(shows_depth, bursts)), "jobs", "the same, hybrid on other cells"
    )
    return found.claim(
        f"An A/B of depth on the ring confirms the law of {DEPTH} chunks in flight.",
        f"A second frame in flight shows in {deep} of {of} jobs of chain and in {deep_novel} of "
        f"{of_novel} drafting jobs on new text (in {deep_burst} of {len(bursts)} of the hybrid on "
        "the other cells, in bursts of n-grams).",
        judged(any(map(shows_depth, novel))),
    )


def one_loop_time(public: PublicReceipts) -> Claim:
    """Supported if a round's traversal of every arm is in the range."""
    found, quote = Finding("loop", public, (PAPER_ON,)), QUOTES["loop_ms"]
    rows = split_rows(public)
    rows = rows[rows["phase"] == ON]
    words = [
        f"{row.arm} {found.say(row.arm, row.traversal, 0, 'ms', 'Σ traversal / Σ rounds')} ms"
        for row in rows.itertuples()
    ]
    return found.claim(
        f"A ring has one loop time T, here of {quote} ms.",
        f"A round's traversal takes {', '.join(words)}; frames of these arms differ in what "
        "they carry.",
        judged(all(map(quote.holds, rows["traversal"]))),
    )


def calibrated_ends(public: PublicReceipts) -> Claim:
    """Supported if the closed form is in the chain's range and near the tree's point; it needs no
    file."""
    found = Finding("calibration", public, ())
    loop_s = QUOTES["figure_loop_ms"].low / MS_PER_S
    chain_alpha, tree_alpha = QUOTES["figure_chain_alpha"].low, QUOTES["figure_tree_alpha"].low
    level = min(1.0, QUOTES["figure_cover"].low * tree_alpha)
    tree = closed_form.path_tokens([level] * int(QUOTES["figure_tree_levels"].low))
    chain = closed_form.chain_rate(chain_alpha, DRAFT_LEN, DEPTH, loop_s)
    form = f"closed form, K = {DRAFT_LEN}, D = {DEPTH}, T = {QUOTES['figure_loop_ms']} ms"
    speed = found.say("chain", chain, 1, "tokens/s", form)
    tokens = found.say("tree", tree, 2, "tokens", "closed form of the tree, published cover")
    is_near = abs(tree / QUOTES["figure_tree_tokens"].low - 1.0) <= NEAR
    return found.claim(
        f"The law's figure is calibrated at both ends: about {QUOTES['figure_tree_tokens']} tokens "
        f"a round for the tree at α = {tree_alpha}, {QUOTES['figure_chain']} tok/s for the chain "
        f"at α = {chain_alpha}.",
        f"Its own settings give {tokens} tokens and {speed} tok/s.",
        judged(is_near and QUOTES["figure_chain"].holds(chain)),
    )


def receipt_cost(public: PublicReceipts) -> Claim:
    """Supported if the published share lies among the estimates, at its own rounding."""
    found, quote = Finding("attest_cost", public, BOTH), QUOTES["receipt_cost"]
    rings = ring_rows(public)
    shares = rings["share"]
    form = f"{COST}, over compute; {len(WEIGHTINGS)} weightings, drafting arms"
    low = found.say("low", shares.min(), 2, "%", f"{form}; least")
    high = found.say("high", shares.max(), 2, "%", f"{form}; most")
    rows = cost_rows(public)
    costs = [
        f"{found.say(f'{arm}.ms', one(rows, arm=arm, stage=RING)['cost'], 2, 'ms', COST)} ms"
        for arm in (CHAIN, HYBRID)
    ]
    stages = rows[rows["stage"] != RING]
    above = found.count("positive", int((stages["cost"] > 0).sum()), "stages", "cost > 0")
    of = found.count("stages", len(stages), "stages", "stages × drafting arms")
    shifts = _span_shifts(public)
    form = "mean span, receipts on / off − 1, by stage, arm and weighting"
    least = found.say("shift.low", shifts.min(), 1, "%", f"{form}; least")
    most = found.say("shift.high", shifts.max(), 1, "%", f"{form}; most")
    decides = (
        round(shares.min(), quote.decimals) <= quote.low <= round(shares.max(), quote.decimals)
    )
    return found.claim(
        f"Signing receipts costs {quote} % of the stages' computing.",
        f"What stands between compute and send grows by {costs[0]} a frame in chain and {costs[1]} "
        f"in hybrid, in {above} of {of} stages: {low}–{high} % of computing. A plain difference "
        f"of spans between the two runs, which drift, gives {least} to {most} %, by stage, arm and "
        "weighting.",
        judged(decides),
    )


def _span_shifts(public: PublicReceipts) -> pd.Series:
    tables = [cost_rows(public, weighting) for weighting in WEIGHTINGS]
    return pd.concat([table[table["stage"] != RING]["shift"] for table in tables])


def end_to_end_cost(public: PublicReceipts) -> Claim:
    """Supported if the change of both arms, weighted by decoding, is in the range."""
    found, quote = Finding("end_to_end", public, BOTH), QUOTES["end_to_end_cost"]
    jobs = speculative(jobs_frame(public))
    phases = jobs.groupby(["arm", "cell"])["phase"].transform("nunique")
    jobs = jobs[phases == 2]
    summed = jobs.groupby(["arm", "phase"], sort=False)[["new_tokens", "decode_s"]].sum()
    speeds = (summed["new_tokens"] / summed["decode_s"]).unstack("phase")
    changes = 100.0 * (speeds[ON] / speeds[OFF] - 1.0)
    form = "Σ tokens / Σ decode time, on / off − 1, cells of both files"
    words = [
        f"{arm} {found.say(str(arm), change, 1, '%', form)} %" for arm, change in changes.items()
    ]
    medians = cell_medians(jobs, "tok_s", ("arm", "cell", "phase"))
    wide = medians.pivot_table(index=["arm", "cell"], columns="phase", values="tok_s")
    ratios = wide[ON] / wide[OFF]
    low = found.say("ratio.low", ratios.min(), 2, "ratio", "median tok/s on / off; least cell, arm")
    high = found.say("ratio.high", ratios.max(), 2, "ratio", "the same; greatest cell and arm")
    return found.claim(
        f"End to end, the runs with and without receipts differ by {quote} %.",
        f"With receipts: {', '.join(words)}; ratios of single cells, which hold the ring's "
        f"drift, run from {low} to {high}.",
        judged(all(quote.holds(abs(change)) for change in changes)),
    )


def verified_jobs(public: PublicReceipts) -> Claim:
    """Supported if that many jobs carry the flag, and all of the file do."""
    found, quote = Finding("verified", public, (PAPER_ON,)), QUOTES["verified_jobs"]
    flagged = sum(job.receipts_ok is True for job in public.on)
    held = found.count("jobs", flagged, "jobs", "receipts_ok is true")
    of = found.count("of", len(public.on), "jobs", "jobs of the file")
    return found.claim(
        f"Receipts of all {quote} jobs were verified.",
        f"{held} of {of} records carry the flag. It is a flag: no signature, nonce or root is in "
        "the file to verify again.",
        judged(flagged == len(public.on) == int(quote.low)),
    )


def interleaved(public: PublicReceipts) -> Claim:
    """Supported if within a repetition the jobs of one cell are neighbours."""
    found = Finding("interleaved", public, (PAPER_ON,))
    cells = [key for key, _ in groupby(public.on, key=lambda job: (job.rep, job.cell))]
    runs = groupby(public.on, key=lambda job: (job.rep, job.arm))
    lengths = [len(list(own)) for _, own in runs]
    num_blocks = found.count("blocks", len(lengths), "blocks", "runs of jobs of one arm")
    least = found.count("shortest", min(lengths), "jobs", "shortest such run")
    most = found.count("longest", max(lengths), "jobs", "longest such run")
    speeds = pd.DataFrame([(job.arm, job.cell, job.tok_s) for job in public.on])
    grouped = speeds.set_axis(["arm", "cell", "tok_s"], axis=1).groupby(["arm", "cell"])["tok_s"]
    spread = (grouped.max() / grouped.min()).max()
    times = found.say(
        "spread", spread, 2, "ratio", "fastest / slowest repetition, widest cell, arm"
    )
    return found.claim(
        "Arms were interleaved cell by cell.",
        f"The file's order is {num_blocks} blocks of one arm each, of {least} to {most} jobs; "
        f"repetitions of one cell and arm differ up to {times}-fold.",
        judged(len(cells) == len(set(cells))),
    )


def rotated(public: PublicReceipts) -> Claim:
    """Supported if every repetition of all arms has them in another turn of one order."""
    found = Finding("rotated", public, (PAPER_ON,))
    reps = dict.fromkeys(job.rep for job in public.on)
    orders = [list(dict.fromkeys(job.arm for job in public.on if job.rep == rep)) for rep in reps]
    first = orders[0]
    turns = [first[at:] + first[:at] for at in range(len(first))]
    distinct = {tuple(order) for order in orders}
    num_reps = found.count("reps", len(orders), "repetitions", "repetitions in the file")
    return found.claim(
        "The order of arms was rotated from repetition to repetition.",
        f"{num_reps} repetitions: {'; '.join(', '.join(order) for order in orders)}.",
        judged(len(distinct) == len(orders) and all(order in turns for order in orders)),
    )
