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
# # One A/B, from its plan to its outcome
#
# **Question.** It stands in the experiment's signed plan, below. Arms were interleaved on warm
# rings: every repetition runs every arm on every prompt, in an order that rotates and reverses;
# ratios are paired within such a block, and a *null arm*, an arm under another name, says how large
# a difference is noise.
#
# **Data.** One experiment's receipts: committed ones by name (`-p experiment seal`; also `fp8`,
# `int4`, `two-state`, `planner`, `k`, `depth`, `stages`, `keepwarm`, `attest`, once they are run),
# or your own (`-p receipts_dir FOLDER`). Every signature is checked over its exact bytes before
# anything is read.
#
# Run it from the repository: `papermill analysis/ab.ipynb out.ipynb -p experiment seal`. The source
# is `analysis/ab.py`; `python -m analysis.pair` makes the notebook from it.

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
receipts_dir = ""  # folder of an experiment of your own; empty: a committed one
experiment = "seal"  # which committed experiment

# %%
# papermill only warns of a misspelt parameter. It would be a new name here, so it stops the run.
parameters = {"receipts_dir", "experiment"}
unknown = {name for name in globals() if not name.startswith("_")}
unknown -= names_before | parameters | {"parameters", "unknown"}
if unknown:
    raise NameError(f"unknown parameters {sorted(unknown)}; valid: {sorted(parameters)}")

# %%
# The path above and the guard must come first, hence the late imports.
from IPython.display import Image, Markdown, display  # noqa: E402

from analysis import figures, load, tables  # noqa: E402
from analysis.figure_file import house_style, png_bytes  # noqa: E402

loaded = load.load_experiment(load.find_experiment(receipts_dir, experiment))
plan = loaded.plan


def show(*lines):
    display(Markdown("\n".join(lines)))


# %% [markdown]
# ## What was asked, and written down before the first job

# %%
show(*(f"- {hypothesis}" for hypothesis in plan.hypotheses))
stopping = plan.stopping if isinstance(plan.stopping, str) else "not in plans of this version"
excluded = " ".join(plan.exclusions) or "nothing."
show(f"α {plan.alpha}. Excluded beforehand: {excluded} Stopping rule: {stopping}")

# %% [markdown]
# ## What ran

# %%
rings = {arm: plan.ring_of(arm) for arm in loaded.measured_arms()}
show(
    f"Experiment `{plan.experiment}`: {len(plan.cells)} cells, {plan.reps} repetitions, "
    f"{len(loaded.receipts)} receipts (set `{loaded.receipt_set_digest[:16]}`), commit "
    f"`{(plan.build.commit or 'unknown')[:12]}`, model `{plan.model.model_digest[:16]}`.",
    "",
    "| arm | k | depth | drafter | numeric configuration | stages | suite | profile |",
    "|---|---|---|---|---|---|---|---|",
    *(
        f"| {arm} | {plan.arms[arm].draft_len} | {plan.arms[arm].depth} | "
        f"{plan.arms[arm].drafter} | {plan.arms[arm].numeric_config} | {ring.num_stages} | "
        f"{ring.suite} | {ring.profile} |"
        for arm, ring in rings.items()
    ),
)

# %% [markdown]
# ## What came of it
#
# The first table answers the question; the others are exploratory, uncorrected for their number.

# %%
specs = {spec.name: spec for spec in tables.all_tables(loaded)}
display(Markdown(specs.pop("hypotheses").to_markdown()))

# %%
for drawing in figures.figures_of(loaded).values():
    with house_style():
        display(Image(png_bytes(drawing(loaded))))

# %%
for spec in specs.values():
    display(Markdown(spec.to_markdown()))

# %% [markdown]
# ## How far this goes
#
# Absolute speeds belong to the machine; ratios carry further, as far as its stages share processors
# the way yours do. A difference inside the null band is no difference that this run can show. All
# stages ran on one machine behind emulated links.
