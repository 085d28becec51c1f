"""Published speeds and times, held against the jobs of the published bench.

Guarantees: a claimed range is checked at its own rounding, by a rule that its function states; all
numbers in findings are computed. Must never know files.
"""

from __future__ import annotations

import pandas as pd

from analysis.public.claim import NOT_TESTABLE, Claim, Finding, judged
from analysis.public.decode import (
    ON,
    cell_medians,
    decode_rows,
    jobs_frame,
    one,
    speculative,
    split_rows,
    stage_rows,
    weighted_rows,
)
from analysis.public.files import AR, CHAIN, HYBRID, PAPER_OFF, PAPER_ON, PublicReceipts
from analysis.public.quotes import QUOTES

BOTH = (PAPER_ON, PAPER_OFF)
# What the paper counts as new text, as its context axis and as its cell of tool calls.
NOVEL_CELLS = ("reason-math", "reason-logic", "open-chat", "agentic-tool")
TOOL_CELL, COPY_CELL = "agentic-tool", "copy-verbatim"
CONTEXT = "ctx-"
MEDIAN = "median over repetitions of tok/s as published"
TOK_S = "tokens/s"


def plain_speed(public: PublicReceipts) -> Claim:
    """Supported if every cell's median is in the range."""
    found, quote = Finding("plain", public, (PAPER_ON,)), QUOTES["plain"]
    rows = decode_rows(public)
    medians = rows[rows["arm"] == AR]["tok_s"]
    low = found.say("low", medians.min(), 2, TOK_S, f"{MEDIAN}, the slowest cell of `ar`")
    high = found.say("high", medians.max(), 2, TOK_S, f"{MEDIAN}, the fastest cell of `ar`")
    whole = one(weighted_rows(public), phase=ON, arm=AR)["tok_s"]
    mean = found.say("weighted", whole, 2, TOK_S, "Σ new tokens / Σ decode time of `ar`")
    return found.claim(
        f"Plain decoding on this ring writes {quote} tok/s.",
        f"Medians by cell run from {low} to {high}; all jobs together: {mean}.",
        judged(all(map(quote.holds, medians))),
    )


def interactive_speed(public: PublicReceipts) -> Claim:
    """Supported if every median of a cell without long context and an arm that drafts is in it."""
    found, quote = Finding("interactive", public, (PAPER_ON,)), QUOTES["interactive"]
    rows = speculative(decode_rows(public))
    rows = rows[(rows["receipts"] == ON) & ~rows["cell"].str.startswith(CONTEXT)]
    inside = [quote.holds(value) for value in rows["tok_s"]]
    held = found.count("inside", sum(inside), "medians", f"{MEDIAN}, in the published range")
    of = found.count("medians", len(rows), "medians", "cells outside the context axis × arms")
    ends = []
    for name, row in (("low", rows["tok_s"].idxmin()), ("high", rows["tok_s"].idxmax())):
        value = found.say(name, rows["tok_s"][row], 2, TOK_S, f"{MEDIAN}, {name}est of them")
        ends.append(f"{value} ({rows['cell'][row]}, {rows['arm'][row]})")
    return found.claim(
        f"Interactive cells decode at {quote} tok/s.",
        f"{held} of {of} medians lie there; they run from {ends[0]} to {ends[1]}.",
        judged(all(inside)),
    )


def novel_ceiling(public: PublicReceipts) -> Claim:
    """Supported if no drafting job on new text is faster than the upper end."""
    found, quote = Finding("novel_ceiling", public, BOTH), QUOTES["novel_ceiling"]
    jobs = speculative(jobs_frame(public))
    jobs = jobs[jobs["cell"].isin(NOVEL_CELLS)]
    top = jobs.loc[jobs["tok_s"].idxmax()]
    most = found.say("most", top["tok_s"], 2, TOK_S, "fastest job on new text, both files")
    above = found.count(
        "above", int((jobs["tok_s"] > quote.high).sum()), "jobs", "jobs above the upper end"
    )
    of = found.count("jobs", len(jobs), "jobs", "drafting jobs on new text, both files")
    return found.claim(
        f"On a ring of this class new text cannot go beyond {quote} tok/s.",
        f"Above it: {above} of {of} drafting jobs on new text; the fastest has {most} "
        f"({top['cell']}, {top['arm']}, receipts {top['phase']}).",
        judged(bool((jobs["tok_s"] <= quote.high).all())),
    )


def same_tokens(public: PublicReceipts) -> Claim:
    """Supported if g agrees to two decimals on every cell of new text."""
    found = Finding("same_g", public, (PAPER_ON,))
    rows, pairs = decode_rows(public), {}
    for cell in NOVEL_CELLS:
        own = rows[(rows["cell"] == cell) & (rows["receipts"] == ON)]
        if {CHAIN, HYBRID} <= set(own["arm"]):
            pairs[cell] = tuple(one(own, arm=arm)["g"] for arm in (CHAIN, HYBRID))
    words = []
    for cell, (chain, hybrid) in pairs.items():
        both = [
            found.say(f"{cell}.{arm}", value, 2, "tokens/round", "g, median over repetitions")
            for arm, value in ((CHAIN, chain), (HYBRID, hybrid))
        ]
        words.append(f"{cell} {both[0]} and {both[1]}")
    return found.claim(
        "On new text chain and hybrid do the same, g equal to two decimals.",
        f"g of chain and hybrid: {', '.join(words)}.",
        judged(all(round(chain, 2) == round(hybrid, 2) for chain, hybrid in pairs.values())),
    )


def tool_call(public: PublicReceipts) -> Claim:
    """Not supported if the cell's prompt is the shortest of all: a tool's schema would be in it."""
    found, quote = Finding("tool_call", public, (PAPER_ON,)), QUOTES["tool_call"]
    rows = decode_rows(public)
    rows = rows[rows["receipts"] == ON]
    speed = one(rows, cell=TOOL_CELL, arm=CHAIN)["tok_s"]
    prompts = rows.groupby("cell")["prompt_tokens"].first()
    others = prompts.drop(TOOL_CELL)
    has_room = bool(prompts[TOOL_CELL] > others.min())
    median = found.say("tok_s", speed, 2, TOK_S, f"{MEDIAN}, chain")
    length = found.count("prompt", int(prompts[TOOL_CELL]), "tokens", "prompt of the cell")
    least = found.count("other", int(others.min()), "tokens", "shortest prompt of another cell")
    return found.claim(
        f"Tool calls decode at {quote} tok/s.",
        f"The chain's median is {median}; its prompt has {length} tokens, the shortest one of "
        f"another cell ({others.idxmin()}) {least}."
        + (
            "" if has_room else " No description of a tool can be in it: a plain turn was measured."
        ),
        judged(quote.holds(speed) and has_room),
    )


def draftable_speed(public: PublicReceipts) -> Claim:
    """Its own run is not among the files; their cell of verbatim copying is named beside it."""
    found, quote = Finding("draftable", public, BOTH), QUOTES["draftable"]
    jobs = jobs_frame(public)
    copies = cell_medians(jobs[jobs["cell"] == COPY_CELL], "tok_s", ("phase", "arm"))
    words = [
        found.say(f"copy.{row.arm}.{row.phase}", row.tok_s, 2, TOK_S, f"{MEDIAN}, {COPY_CELL}")
        + f" ({row.arm}, receipts {row.phase})"
        for row in copies.itertuples()
    ]
    most = found.say("most", jobs["tok_s"].max(), 2, TOK_S, "fastest job of both files")
    return found.claim(
        f"Text that can be drafted decodes at {quote} tok/s.",
        "The run behind it, whose prompt is one word over and over, is text outside these files. "
        f"Their cell of verbatim copying has {' and '.join(words) or 'no job'}; no job of any cell "
        f"is faster than {most}.",
        NOT_TESTABLE,
    )


def _context_speed(public: PublicReceipts, key: str, prefix: str, words: str) -> Claim:
    found, quote = Finding(key, public, BOTH), QUOTES[key]
    jobs = speculative(jobs_frame(public))
    medians = cell_medians(
        jobs[jobs["cell"].str.startswith(prefix)], "tok_s", ("phase", "cell", "arm")
    )["tok_s"]
    low = found.say("low", medians.min(), 2, TOK_S, f"{MEDIAN}, slowest cell, arm and file")
    high = found.say("high", medians.max(), 2, TOK_S, f"{MEDIAN}, fastest cell, arm and file")
    return found.claim(
        f"{words} decode at {quote} tok/s.",
        f"Medians of cell, arm and file run from {low} to {high}.",
        judged(all(map(quote.holds, medians))),
    )


def context_8k(public: PublicReceipts) -> Claim:
    """Supported if every median of a cell, arm and file is in the range."""
    return _context_speed(public, "context_8k", "ctx-8k-", "Contexts of 8 thousand tokens")


def context_30k(public: PublicReceipts) -> Claim:
    """As `context_8k`."""
    return _context_speed(public, "context_30k", "ctx-30k-", "Contexts of 30 thousand tokens")


def prefill_30k(public: PublicReceipts) -> Claim:
    """Supported if every job's prompt pass is in the range."""
    found, quote = Finding("prefill_30k", public, BOTH), QUOTES["prefill_30k"]
    jobs = jobs_frame(public)
    times = jobs[jobs["cell"].str.startswith("ctx-30k-")]["prefill_s"]
    low = found.say("low", times.min(), 1, "s", "quickest prompt pass of 30 thousand tokens")
    high = found.say("high", times.max(), 1, "s", "slowest prompt pass of 30 thousand tokens")
    of = found.count("jobs", len(times), "jobs", "jobs with 30 thousand tokens of context")
    return found.claim(
        f"The prompt pass over 30 thousand tokens takes {quote} s.",
        f"{of} jobs took {low} to {high} s.",
        judged(all(map(quote.holds, times))),
    )


def transport_share(public: PublicReceipts) -> Claim:
    """Supported if the share of both arms that draft is in the range."""
    found, quote = Finding("transport_share", public, (PAPER_ON,)), QUOTES["transport_share"]
    rows = split_rows(public)
    rows = rows[rows["phase"] == ON]
    shares = {
        row.arm: found.say(row.arm, row.share, 0, "%", "Σ transport / Σ traversal over jobs")
        for row in rows.itertuples()
    }
    words = ", ".join(f"{arm} {share} %" for arm, share in shares.items() if arm != AR)
    return found.claim(
        f"Transport takes {quote} % of a traversal when drafts are sent.",
        f"Over all jobs: {words} (frames in flight together wait in it too); plain decoding: "
        f"{shares[AR]} %.",
        judged(all(map(quote.holds, speculative(rows)["share"]))),
    )


def stage_spread(public: PublicReceipts) -> Claim:
    """Supported if the slowest stage of chain computes this many times as long as the fastest."""
    found, quote = Finding("stage_spread", public, (PAPER_ON,)), QUOTES["stage_spread"]
    rows = stage_rows(public)
    compute = rows[(rows["phase"] == ON) & (rows["arm"] == CHAIN)].set_index("stage")["compute"]
    ratio = found.say("ratio", compute.max() / compute.min(), 1, "times", "slowest / fastest stage")
    inner = compute.iloc[1:-1]
    like = found.say("inner", _spread(inner), 1, "times", "the same, first and last stage left out")
    return found.claim(
        f"Stages on equal processors differ {quote}-fold in computing time.",
        f"Stage {compute.idxmax()} takes {ratio} times as long as stage {compute.idxmin()}; the "
        f"last stage has the head as well. Between inner stages it is {like}-fold.",
        judged(bool(compute.max() / compute.min() >= quote.low)),
    )


def _spread(times: pd.Series) -> float:
    return float(times.max() / times.min()) if len(times) else float("nan")
