"""Figures of the acceptance study: prompts, match lengths, and the power of its tests.

Guarantees: what is drawn comes from `analysis.study` and `study_counts`, as in the tables; a
caption states n, statistic and interval. Must never know a receipt that `analysis.load` did not
verify.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis.figure_file import Drawing, caption
from analysis.iid import TESTS
from analysis.iid_power import EFFECTS
from analysis.load import Experiment
from analysis.panels import series_look
from analysis.power import STUDY_ARM
from analysis.study import MATCH_CONTEXTS, WANTED_POWER, study_result
from analysis.study_counts import by_match, by_prompt, spread_of
from engine.errors import ReceiptError

GREY = "#808080"
POOLED = "all groups"
EFFECT_LABELS = {
    "within rounds": "slope of the logit per draft",
    "between rounds": "± logit of two regimes",
    "between prompts": "intraclass correlation ρ",
}


def draw_prompts(experiment: Experiment, arm: str = STUDY_ARM) -> Drawing:
    """Each prompt's share of accepted drafts, sorted within its group."""
    result = study_result(experiment, arm)
    prompts = by_prompt(result.requests)
    if prompts.empty:
        raise ReceiptError("no used job tested a draft: no prompts to draw")
    groups = list(dict.fromkeys(prompts["group"]))
    alpha = prompts["accepted"].sum() / prompts["tested"].sum()
    figure = Figure(figsize=(7.6, 3.1))
    axes = figure.subplots()
    axes.axhline(alpha, color=GREY, linestyle=(0, (4, 2)), linewidth=0.9)
    start, ticks = 0, []
    for idx, group in enumerate(groups):
        rows = prompts[prompts["group"] == group].sort_values("rate")
        places = range(start, start + len(rows))
        colour = series_look(idx)["color"]
        axes.vlines(places, rows["low"], rows["high"], color=colour, linewidth=0.7)
        axes.plot(places, rows["rate"], color=colour, marker="o", markersize=2.4, ls="none")
        ticks.append(start + (len(rows) - 1) / 2)
        start += len(rows) + 4
    axes.set_xticks(ticks, groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("accepted / tested")
    spread = spread_of(prompts)
    caption(
        figure,
        f"One point a prompt, n = {len(prompts)}, sorted within its group; arm {arm}; all "
        "tested drafts of one job. Bars: 95 % Clopper–Pearson, exact only for independent drafts; "
        f"dashed: alpha_hat = {alpha:.3f} of all. Standard deviation over prompts "
        f"{spread.observed:.3f}; one α would give {spread.expected:.3f}.",
    )
    return Drawing(figure, prompts, _ids(experiment, arm))


def draw_matches(experiment: Experiment, arm: str = STUDY_ARM) -> Drawing:
    """Conditional acceptance by match length, pooled and by group."""
    result = study_result(experiment, arm)
    groups = list(dict.fromkeys(request.group for request in result.requests))
    tables = [by_match(result.requests).assign(group=POOLED)]
    for group in groups:
        chosen = [request for request in result.requests if request.group == group]
        tables.append(by_match(chosen).assign(group=group))
    places = range(len(MATCH_CONTEXTS))
    figure = Figure(figsize=(5.6, 3.2))
    axes = figure.subplots()
    for idx, (group, table) in enumerate(zip(groups, tables[1:], strict=True)):
        look = {**series_look(idx), "linewidth": 0.8, "markersize": 2.6}
        axes.plot(places, table["rate"], alpha=0.75, label=group, **look)
    pooled = tables[0]
    axes.vlines(places, pooled["low"], pooled["high"], color="black", linewidth=1.6)
    axes.plot(places, pooled["rate"], color="black", marker="s", linewidth=1.8, label=POOLED)
    rounds = pooled["rounds"]
    names = ["0 (filler)", *MATCH_CONTEXTS[1:]]
    labels = [f"{name}\n{count} rounds" for name, count in zip(names, rounds, strict=True)]
    axes.set_xticks(list(places), labels)
    axes.set_xlabel("match length (tokens)")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("accepted / tested")
    figure.legend(loc="outside right center")
    caption(
        figure,
        f"Arm {arm}, n = {int(rounds.sum())} rounds of {len(result.requests)} prompts. "
        "Black: all groups, bars 95 % Clopper–Pearson, exact only for independent drafts; thin: "
        "by group, no interval.",
    )
    return Drawing(figure, pd.concat(tables, ignore_index=True), _ids(experiment, arm))


def draw_power(experiment: Experiment, arm: str = STUDY_ARM) -> Drawing:
    """Power of every test under the three pre-registered families."""
    result = study_result(experiment, arm)
    if result.power is None:
        raise ReceiptError("power was not simulated for these requests; run `make power`")
    power = result.power
    figure = Figure(figsize=(7.6, 3.0))
    panels = figure.subplots(1, len(EFFECTS), sharey=True)
    tests = [test for test in TESTS if test in set(power["test"])]
    for axes, (family, effects) in zip(panels, EFFECTS.items(), strict=True):
        for idx, test in enumerate(tests):
            rows = power[(power["family"] == family) & (power["test"] == test)]
            # Effects stand at equal steps, lines of several tests side by side.
            places = [place + (idx - (len(tests) - 1) / 2) * 0.07 for place in range(len(rows))]
            look = {**series_look(idx), "linewidth": 0.8, "markersize": 3}
            axes.vlines(places, rows["low"], rows["high"], color=look["color"], linewidth=0.8)
            axes.plot(places, rows["power"], label=test, **look)
        axes.axhline(WANTED_POWER, color=GREY, linestyle=(0, (4, 2)), linewidth=0.8)
        axes.set_xticks(range(len(effects)), [f"{effect:g}" for effect in effects])
        axes.set_title(family)
        axes.set_xlabel(EFFECT_LABELS[family])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    panels[0].set_ylabel("power")
    panels[0].set_ylim(-0.02, 1.02)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    studies, level = int(power["studies"].min()), result.level / max(1, len(result.holm))
    caption(
        figure,
        f"Share of {studies} simulated studies an effect that a test rejects at Holm's entry level "
        f"{level:.2g}; bars: 95 % Clopper–Pearson. Every simulated study has the study's own "
        f"{len(result.requests)} requests, N and K, its data rule and its mean acceptance. Effect "
        "0: the null. Dashed: power 0.8.",
    )
    return Drawing(figure, power, _ids(experiment, arm))


def is_simulated(experiment: Experiment, arm: str = STUDY_ARM) -> bool:
    """Whether `make power` was run for exactly these requests."""
    return arm in experiment.measured_arms() and study_result(experiment, arm).power is not None


def _ids(experiment: Experiment, arm: str) -> list[str]:
    return [request.receipt_id for request in study_result(experiment, arm).requests]
