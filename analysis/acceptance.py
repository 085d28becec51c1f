# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Is acceptance i.i.d.?
#
# **Question.** A drafter proposes tokens, the model refuses the first wrong one. Is every drafted
# token accepted independently with one probability, as laws of speculative decoding assume? If not,
# what does a draft's chance depend on, and is a policy that watches streaks worth its name?
#
# With greedy decoding and a deterministic drafter nothing is random: independence is a model of the
# *text*, and the tests below ask whether the text of these prompts looks like that model.
#
# **Data.** By default the committed experiment `acceptance`: prompts written for it, each decoded
# once with frames of always 8 drafts, one frame in flight (`accept-k8`); where the drafter matches
# nothing it repeats the last token, a *filler*, marked and counted. The tests use exactly the first
# n tested bits of a request, n fixed by the length of its text, because decoding stops by rules
# that would otherwise reject a true null.
#
# Run it from the repository: `papermill analysis/acceptance.ipynb out.ipynb`, for your own receipts
# with `-p receipts_dir FOLDER -p arm ARM`. This file writes nothing but its own output.
# The source is `analysis/acceptance.py`; `python -m analysis.pair` makes the notebook from it.

# %%
from __future__ import annotations

import sys
from pathlib import Path

# A kernel starts in the caller's folder, which need not be the repository's root.
folders = [Path.cwd(), *Path.cwd().parents]
roots = [folder for folder in folders if (folder / "analysis" / "load.py").is_file()]
if not roots:
    raise FileNotFoundError(f"{Path.cwd()} is not inside the repository; start from its root")
sys.path.insert(0, str(roots[0]))
names_before = {*globals(), "names_before"}

# %% tags=["parameters"]
receipts_dir = ""  # folder of an experiment of your own; empty: the committed one
experiment = "acceptance"  # which committed experiment
arm = ""  # whose drafts; empty: accept-k8 where it is measured, else the first arm that drafts
ab_experiment = "two-state"  # the committed A/B that is set beside the published one; empty: none

# %%
# The path above must come first, hence the late imports. papermill only warns of a misspelt
# parameter: it would be a new name here, so it stops the run.
from analysis.notebook_guard import refuse_unknown  # noqa: E402

refuse_unknown(globals(), names_before, {"receipts_dir", "experiment", "arm", "ab_experiment"})

# %%
from IPython.display import Image, Markdown, display  # noqa: E402

from analysis import (  # noqa: E402
    curves,
    figures,
    load,
    power_tables,
    study,
    study_counts,
    study_figures,
    study_rules,
    study_tables,
    tables,
)
from analysis.determinism import determinism_table  # noqa: E402
from analysis.figure_file import house_style, png_bytes  # noqa: E402
from analysis.iid import IidResult  # noqa: E402
from analysis.power import STUDY_ARM  # noqa: E402
from analysis.published import published_table  # noqa: E402
from engine.errors import unknown_name  # noqa: E402

loaded = load.load_experiment(load.find_experiment(receipts_dir, experiment))
frames = curves.first_rep(load.rounds_frame(loaded))
drafted = curves.chain_rounds(frames)
drafting = [name for name in loaded.measured_arms() if name in set(drafted["arm"])]
if not arm:
    arm = STUDY_ARM if STUDY_ARM in drafting or not drafting else drafting[0]
if arm not in drafting:
    raise unknown_name("drafting arm", arm, drafting)
result = study.study_result(loaded, arm)
ab = load.load_experiment(load.find_experiment("", ab_experiment)) if ab_experiment else None


def show_table(spec):
    display(Markdown(spec.to_markdown()))


def show_figure(drawing):
    display(Image(png_bytes(drawing)))


# %% [markdown]
# ## The receipts
#
# Every receipt's signature was checked over its exact bytes before it was read. One request per
# distinct prompt: greedy repetitions repeat themselves and are no further evidence.

# %%
show_table(tables.exclusion_table(loaded))

# %% [markdown]
# ## Acceptance by depth
#
# Accepted / tested at each distance from the last token that was verified when the draft was sent;
# with one frame in flight that is the draft's index in its frame. Under the null each panel is
# flat.

# %%
with house_style():
    show_figure(figures.draw_acceptance_by_distance(loaded, arm))

# %% [markdown]
# ## Accepted lengths
#
# Bars are rounds; dots are the geometric law: each draft accepted with the panel's `alpha_hat`
# until the first refusal, each round cut at its own k.

# %%
with house_style():
    show_figure(figures.draw_accepted_lengths(loaded))

# %% [markdown]
# ## The tests
#
# Five tests, each against its own reference set of arrangements, exact or drawn, and an e-value
# (`python -m analysis.iid` runs them on any log). A test whose null law does not hold for an arm
# says why and gives no p-value.

# %%
show_table(study_tables.tests_table(loaded, arm))

# %%
if result.power is None:
    display(Markdown("Power was not simulated for these requests: `python -m analysis.power`."))
else:
    with house_style():
        show_figure(study_figures.draw_power(loaded, arm))

# %%
show_table(power_tables.power_table(loaded, arm))
show_table(study_tables.group_tests_table(loaded, arm))

# %% [markdown]
# ## Prompts differ
#
# A difference between prompts alone makes pooled acceptances look dependent. `between_requests`
# asks for it; the tests that condition on each request's own counts are not moved by it.

# %%
with house_style():
    show_figure(study_figures.draw_prompts(loaded, arm))

# %% [markdown]
# ## What match length explains
#
# A planner does not need a law of acceptance, it needs something that predicts it. The n-gram
# drafter knows how many tokens its suffix matched.

# %%
with house_style():
    show_figure(study_figures.draw_matches(loaded, arm))
show_table(study_tables.match_table(loaded, arm))

# %% [markdown]
# ## What it means for a streak policy

# %%
show_table(study_tables.previous_table(loaded, arm))

# %% [markdown]
# ## The published A/B, replicated
#
# A two-state draft length (16 drafts after a round that accepted all or at least 6, else 8) against
# 8 drafts always, on the long verbatim text and on novel texts.

# %%
if ab is None:
    display(Markdown("No A/B was asked for (`ab_experiment`)."))
else:
    ring = ab.plan.ring
    words = f"{ab.plan.reps} interleaved repetitions, `{ring.profile}`, {ring.num_stages} stages."
    display(Markdown(f"Experiment `{ab.plan.experiment}`: {words}"))
    show_table(published_table(ab))
    show_table(tables.hypothesis_table(ab))

# %% [markdown]
# ## Is a draft's fate a property of its place?

# %%
show_table(determinism_table(loaded if ab is None else ab))

# %% [markdown]
# ## Reading

# %%
rejected = [f"`{test}` ({study_rules.MEANINGS[test]})" for test in result.rejected]
others = [
    f"`{test}`: {study_rules.verdict_in_words(result, test)}"
    for test in result.results
    if test not in result.rejected
]
lines = [
    f"- Pre-registered level {result.level:g}, Holm over {len(result.holm)} applicable tests: "
    + (f"rejected by {', '.join(rejected)}." if rejected else "no test rejects.")
]
if others:
    lines.append(f"- {'; '.join(others)}.")
lines.append(
    "- Published (pull request 31 of `leyten/shard`): an exact test rejects i.i.d. with p = 0.0044 "
    "at 0.01, on one trace whose receipt is not public; acceptance on a streak rises from 0.58 at "
    f"depth 1 to 0.73–0.75 at depth 7–8. Here: {len(result.requests)} requests, "
    f"{sum(map(len, result.study.all_rounds))} rounds."
)
curve = curves.acceptance_by_distance(frames[frames["arm"] == arm], 8)
first, last = curve.iloc[0], curve[curve["distance"] <= 8].iloc[-1]
lines.append(
    f"- Acceptance at distance {first['distance']:.0f}: {first['rate']:.2f} "
    f"[{first['low']:.2f}–{first['high']:.2f}], at {last['distance']:.0f}: "
    f"{last['rate']:.2f} [{last['low']:.2f}–{last['high']:.2f}]."
)
spread = study_counts.spread_of(study_counts.by_prompt(result.requests))
lines.append(
    f"- Prompts: standard deviation {spread.observed:.2f} of their acceptance, "
    f"{spread.expected:.2f} under one α."
)
for name, found in result.match.items():
    if isinstance(found, IidResult):
        lines.append(f"- Match length, {name}: p {study_rules.p_words(found)}.")
display(Markdown("\n".join(lines)))
display(
    Markdown(
        f"Arm `{arm}`, experiment `{loaded.plan.experiment}`, receipt set "
        f"`{loaded.receipt_set_digest[:16]}`."
    )
)
