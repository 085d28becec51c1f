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
# # The law: what a ring should do, and what it did
#
# **Question.** How fast should one stream be decoded on a given ring, for a given text and way of
# drafting? A closed form says so from two numbers, the chance that a draft is right and the time of
# a loop, if drafts are right independently. A discrete-event model of the ring says so from what
# stages and links cost. How far are both from what was measured?
#
# **Data.** Every committed experiment that times its arms, or your own (`-p receipts_dir FOLDER`).
# A ring is fitted on every other cell of its experiment; the cells that it was not fitted on are
# the check. Every signature is checked over its exact bytes before anything is read.
#
# Run it from the repository: `papermill analysis/law.ipynb out.ipynb`. The source is
# `analysis/law.py`; `python -m analysis.pair` makes the notebook from it.

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
receipts_dir = ""  # folder of an experiment of your own; empty: all committed ones

# %%
# The path above must come first, hence the late imports. papermill only warns of a misspelt
# parameter: it would be a new name here, so it stops the run.
from analysis.notebook_guard import refuse_unknown  # noqa: E402

refuse_unknown(globals(), names_before, {"receipts_dir"})

# %%
from analysis import law_figures, law_products, load  # noqa: E402
from analysis.notebook_display import show, show_figure, show_table  # noqa: E402
from engine.errors import ReceiptError  # noqa: E402

loaded = [load.load_experiment(folder) for folder in load.find_experiments(receipts_dir)]
by_name = {each.plan.experiment: each for each in loaded}
study = law_products.study_law(loaded)

# %% [markdown]
# ## The closed form
#
# Each draft is right with probability α, independently until the first that is not; chunks of K
# drafts are sent D deep; a loop takes T. A chunk that is right in full, with chance p = α^K, costs
# T / D, any other one costs T:
#
#     D (1 − p) / ((1 − α) T (p + D (1 − p)))   tokens a second
#
# Whatever K and D are, each wrong draft costs a loop, so no chain exceeds 1 / ((1 − α) T).

# %%
if law_figures.LAW_EXPERIMENT in by_name:
    show_figure(lambda: law_figures.draw_law(study), "speed over tokens a miss, with the law")
else:
    show(f"No experiment `{law_figures.LAW_EXPERIMENT}` is among these: nothing beside the curves.")

# %% [markdown]
# ## Predicted beside measured
#
# The ring model is given which frames a job sent and which reply led to which; when they leave and
# come back it works out from what the fitted ring costs. The closed form is given the α of the cell
# itself. Ratios below 1 predict too slow, above 1 too fast.

# %%
if study.cells["is_checked"].any():
    show_figure(lambda: law_figures.draw_predicted(study), "predicted over measured speeds")
else:
    show("One cell alone: the ring was fitted on it, and nothing is left to check it on.")
show_table(law_products.law_table(study))

# %%
show_table(law_products.prediction_table(study))

# %% [markdown]
# ## Chain or tree
#
# A tree holds several guesses for each of the next tokens and is sent alone, so it brings at most
# its depth and one token a loop. However well it guesses, above some acceptance a chain is faster;
# where that is depends on the levels that the tree may have, and from the fourth level on hardly
# on anything else.

# %%
try:
    cover = law_products.tree_cover(by_name[law_products.COVER_EXPERIMENT])
except (KeyError, ReceiptError) as error:
    show(f"No tree beside a chain of the same drafter among these ({error}).")
else:
    show_figure(lambda: law_figures.draw_crossover(cover), "acceptance at the crossover by levels")

# %% [markdown]
# ## What this does not show
#
# The ring model predicts time for the frames that a job sent; had the ring been faster, an adaptive
# policy might have sent others. What a policy would do is the question of `bench replay`, whose
# error stands in the tables of its experiments. All stages of these rings share one machine, and
# the model's term for that, how much a computing stage slows another, is one number for a ring. The
# closed form's α is the cell's own, so its error is that of its assumptions, not of a forecast.
