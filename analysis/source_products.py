"""What each source of drafts comes to: acceptance by depth, rounds, and time spent on drafting.

Guarantees: one job a prompt where texts are counted, as greedy repetitions repeat themselves; a
tree's depth is that of the path that the target took. Must never know files.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.checks import ROUND_OUTCOMES
from analysis.curves import clopper_pearson, first_rep
from analysis.figure_file import Drawing, caption
from analysis.load import Experiment, rounds_frame
from analysis.panels import series_look, stacked
from analysis.table_parts import make_spec
from analysis.table_spec import TableSpec, number, text
from engine.errors import ReceiptError

# Source -> the arm that drafts with nothing else.
SOURCE_ARMS = {"ngram": "chain-k8", "eagle": "chain-eagle", "tree": "tree"}
DEPTH_SHOWN = 8
TESTED_MIN = 3  # a rate of fewer is no rate to be drawn
NS_PER_MS = 1e6
_COLUMNS = ("depth", "tested", "accepted", "rate", "low", "high")


def acceptance_by_depth(rounds: pd.DataFrame) -> pd.DataFrame:
    """Of the rounds whose draft was right up to a depth, how many were right one further.

    Args:
        rounds: of one source, with columns accepted_len and tested_len.
    """
    rows = []
    for depth in range(1, DEPTH_SHOWN + 1):
        tested = int((rounds["tested_len"] >= depth).sum())
        accepted = int((rounds["accepted_len"] >= depth).sum())
        if tested >= TESTED_MIN:
            low, high = clopper_pearson(accepted, tested)
            rows.append((depth, tested, accepted, accepted / tested, low, high))
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def draw_acceptance_by_source(experiment: Experiment) -> Drawing:
    """Conditional acceptance by depth: a line a source, a panel a kind of text."""
    rounds = first_rep(_rounds(experiment))
    if rounds.empty:
        raise ReceiptError("no used job decoded a round: nothing to draw")
    chosen = {source: rounds[rounds["arm"] == arm] for source, arm in SOURCE_ARMS.items()}
    if all(frames.empty for frames in chosen.values()):
        raise ReceiptError("no used job of an arm with one source: nothing to draw")
    figure = Figure(figsize=(7.6, 3.0))
    panels = figure.subplots(1, 2, sharey=True)
    tables = []
    for axes, kind in zip(panels, ("draftable", "novel"), strict=True):
        for idx, (source, frames) in enumerate(chosen.items()):
            own = frames[(frames["kind"] == kind) & (frames["source"] == source)]
            curve = acceptance_by_depth(own)
            if curve.empty:
                continue
            at = curve["depth"] + 0.08 * (idx - 1)
            look = {**series_look(idx), "markersize": 3.5, "linewidth": 0.9}
            axes.vlines(at, curve["low"], curve["high"], color=look["color"], linewidth=0.8)
            axes.plot(at, curve["rate"], label=f"{source} ({SOURCE_ARMS[source]})", **look)
            tables.append(curve.assign(cell=kind, arm=SOURCE_ARMS[source], source=source))
        shown = sum(int((frames["kind"] == kind).sum()) for frames in chosen.values())
        axes.set_title(f"{kind} cells, n = {shown} rounds")
        axes.set_xlabel("depth of the draft (tokens)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(-0.04, 1.04)
    panels[0].set_ylabel("accepted / tested")
    if not tables:
        raise ReceiptError(f"no draft was tested by {TESTED_MIN} rounds: nothing to draw")
    named: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=3)
    caption(
        figure,
        "Of rounds whose draft was right up to a depth, those right one token further; of a tree, "
        f"along the path that the target took; depths that fewer than {TESTED_MIN} rounds reached "
        "are left out. One job a prompt and arm, as greedy repetitions repeat themselves; vertical "
        "bars: 95 % Clopper–Pearson, exact only for independent drafts.",
    )
    ids = list(dict.fromkeys(name for frames in chosen.values() for name in frames["receipt_id"]))
    return Drawing(figure, stacked(tables), ids)


def source_table(experiment: Experiment) -> TableSpec:
    """Rounds of each arm by source, what they bring, and what drafting them took."""
    rounds = _rounds(experiment)
    rows = []
    nulls = set(experiment.plan.null_pairs)
    for (kind, arm), own in rounds.groupby(["kind", "arm"]) if len(rounds) else ():
        if arm in nulls:
            continue
        for source, frames in own.groupby("source"):
            rows.append(
                {
                    "kind": kind,
                    "arm": arm,
                    "source": source,
                    "rounds": len(frames),
                    "share": 100.0 * len(frames) / len(own),
                    "tokens": frames["committed_len"].mean(),
                    "draft_ms": frames["draft_ns"].median() / NS_PER_MS,
                    "draft_high_ms": frames["draft_ns"].quantile(0.95) / NS_PER_MS,
                }
            )
    columns = (
        text("kind", "cells"),
        text("arm"),
        text("source"),
        number("rounds", "rounds"),
        number("share", "% of the arm's"),
        number("tokens", "tokens a round", 2),
        number("draft_ms", "drafting (ms, median)", 1),
        number("draft_high_ms", "95 % below", 1),
    )
    notes = [
        "All used jobs, every repetition. Tokens a round: committed by its own reply. Drafting: "
        "between the reply that allowed a frame and its sending, planning, fusing taps and the "
        "head's passes included; n-grams made ready while the reply was awaited are not in it.",
    ]
    frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=["kind", "arm", "source"])
    title = "Rounds by source of their drafts"
    return make_spec(experiment, "sources", title, frame, columns, notes)


def _rounds(experiment: Experiment) -> pd.DataFrame:
    """Decided rounds of the used measured jobs."""
    frames = rounds_frame(experiment)
    return frames if frames.empty else frames[frames["outcome"].isin(ROUND_OUTCOMES)]
