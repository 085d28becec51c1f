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
# # How long are drafts accepted?
#
# **Question.** A drafter proposes tokens, the model refuses the first wrong one. Does a draft's
# chance depend on how far it lies from the last verified token, and do accepted lengths look like
# those of a coin with one bias?
#
# This notebook shows, for one verified experiment and above all for one of its drafting arms:
#
# - which jobs are used, and which are not and why;
# - conditional acceptance by distance, with its interval;
# - accepted lengths beside the geometric law with the same `alpha_hat`;
# - a short reading, computed from the receipts.
#
# It describes. Whether acceptances are independent is for exact tests, which are not part of this
# notebook; nothing here is a verdict on that.
#
# Run it from the repository: `papermill analysis/acceptance.ipynb out.ipynb`, for your own
# receipts with `-p receipts_dir FOLDER`. This file writes nothing but its own output. The source
# is `analysis/acceptance.py`; `python -m analysis.pair` makes the notebook from it.

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
experiment = "decode"  # which committed experiment
arm = "chain-k8"  # whose drafts

# %%
# papermill only warns of a misspelt parameter. It would be a new name here, so it stops the run.
parameters = {"receipts_dir", "experiment", "arm"}
unknown = {name for name in globals() if not name.startswith("_")}
unknown -= names_before | parameters | {"parameters", "unknown"}
if unknown:
    raise NameError(f"unknown parameters {sorted(unknown)}; valid: {sorted(parameters)}")

# %%
# The path above and the guard must come first, hence the late imports.
from IPython.display import Image, Markdown, display  # noqa: E402

from analysis import curves, figures, load, tables  # noqa: E402
from analysis.figure_file import house_style, png_bytes  # noqa: E402
from engine.errors import unknown_name  # noqa: E402

loaded = load.load_experiment(load.find_experiment(receipts_dir, experiment))
frames = curves.first_rep(load.rounds_frame(loaded))
drafted = curves.chain_rounds(frames)
if arm not in set(drafted["arm"]):
    raise unknown_name("drafting arm", arm, set(drafted["arm"]))

# %% [markdown]
# ## The receipts
#
# Every receipt's signature was checked over its exact bytes before it was read. Greedy repetitions
# repeat themselves, so the curves below use one job per cell, the first repetition.

# %%
display(Markdown(tables.exclusion_table(loaded).to_markdown()))

# %% [markdown]
# ## Acceptance by distance
#
# Accepted / tested at each distance from the last token that was verified when the draft was sent.
# A frame that leaves while others are under way carries drafts far from that token, so the index
# within the frame would mislead.

# %%
with house_style():
    display(Image(png_bytes(figures.draw_acceptance_by_distance(loaded, arm))))

# %% [markdown]
# ## Accepted lengths
#
# Bars are rounds; dots are the geometric law: each draft accepted with the panel's `alpha_hat`
# until the first refusal, each round cut at its own k.

# %%
with house_style():
    display(Image(png_bytes(figures.draw_accepted_lengths(loaded))))

# %% [markdown]
# ## Table

# %%
display(Markdown(tables.acceptance_table(loaded).to_markdown()))

# %% [markdown]
# ## Reading

# %%
lines = []
for cell in loaded.plan.cells:
    chosen = frames[(frames["arm"] == arm) & (frames["cell"] == cell.name)]
    lengths = curves.accepted_lengths(chosen)
    if lengths.empty:
        lines.append(f"- **{cell.name}**: the drafter proposed nothing.")
        continue
    rounds = lengths["rounds"].sum()
    # Half the sum of absolute differences: the share of rounds that would have to move.
    moved = (lengths["rounds"] - lengths["geometric"]).abs().sum() / 2 / rounds
    lines.append(
        f"- **{cell.name}** ({cell.kind}): {rounds} rounds with drafts, alpha_hat "
        f"{curves.pooled_alpha(chosen):.2f}; {moved:.0%} of the rounds would have to change their "
        "accepted length to match the geometric law."
    )
display(Markdown("\n".join(lines)))
display(
    Markdown(
        f"Arm `{arm}`, experiment `{loaded.plan.experiment}`, receipt set "
        f"`{loaded.receipt_set_digest[:16]}`. With few rounds a large share moves by chance alone; "
        "how large is too large is what the exact tests will say."
    )
)
