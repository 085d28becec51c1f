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
# # How fast, by which means, and where the time goes
#
# **Question.** How many tokens a second does one stream of text get when the model's layers lie
# behind slow links, and how many more with drafts: of a fixed length, of a planned one, of another
# source? What exactly was asked stands in the experiment's signed plan, below.
#
# Arms were interleaved on warm rings: every repetition runs every arm on every prompt, in an order
# that rotates and reverses; ratios are paired within such a block, and a *null arm*, an arm under
# another name, says how large a difference is noise.
#
# **Data.** One experiment's receipts: by default the committed `planner`; others by name
# (`-p experiment seal`; also `decode`, `hybrid`, `fp8`, `int4`, `two-state`, `attest`, `k`,
# `depth`, `stages`, `keepwarm`, once they are run), or your own (`-p receipts_dir FOLDER`). Every
# signature is checked over its exact bytes before anything is read.
#
# Run it from the repository: `papermill analysis/decode.ipynb out.ipynb`. The source is
# `analysis/decode.py`; `python -m analysis.pair` makes the notebook from it.

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
experiment = "planner"  # which committed experiment
beside = (
    "hybrid"  # committed one whose rows the first figure adds to a committed one's; empty: none
)

# %%
# The path above must come first, hence the late imports. papermill only warns of a misspelt
# parameter: it would be a new name here, so it stops the run.
from analysis.notebook_guard import refuse_unknown  # noqa: E402

refuse_unknown(globals(), names_before, {"receipts_dir", "experiment", "beside"})

# %%
from analysis import breakdown_table, figures, hero_figure, load, split_figure, tables  # noqa: E402
from analysis.notebook_display import show, show_figure, show_table  # noqa: E402

loaded = load.load_experiment(load.find_experiment(receipts_dir, experiment))
plan = loaded.plan
specs = {spec.name: spec for spec in tables.all_tables(loaded)}
painters = dict(figures.figures_of(loaded))


def show_all(names, of_tables):
    """Figures, then tables, that this experiment has of these; each is shown once."""
    for name in [each for each in painters if each in names]:
        draw = painters.pop(name)
        show_figure(lambda draw=draw: draw(loaded), f"{name.replace('_', ' ')}, see its caption")
    for name in [each for each in specs if each in of_tables]:
        show_table(specs.pop(name))


# %% [markdown]
# ## What was asked, and written down before the first job

# %%
show(*(f"- {hypothesis}" for hypothesis in plan.hypotheses))
stopping = plan.stopping if isinstance(plan.stopping, str) else "not in plans of this version."
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
    "| arm | policy | k | depth | drafter | numeric configuration | stages | suite | profile |",
    "|---|---|---|---|---|---|---|---|---|",
    *(
        f"| {arm} | {plan.arms[arm].policy} | {plan.arms[arm].draft_len} | "
        f"{plan.arms[arm].depth} | {plan.arms[arm].drafter} | {plan.arms[arm].numeric_config} | "
        f"{ring.num_stages} | {ring.suite} | {ring.profile} |"
        for arm, ring in rings.items()
    ),
)
show_table(specs.pop("exclusions"))

# %% [markdown]
# ## What came of it
#
# The rules that judge the hypotheses are code (`analysis/hypotheses.py`) and take their ratios from
# the tables below. This table answers the question; everything behind it is exploratory,
# uncorrected for its number.

# %%
show_table(specs.pop("hypotheses"))

# %% [markdown]
# ## Ways of decoding, side by side
#
# Each is set against one token a traversal (`ar`) of its own experiment. Absolute speeds drift
# between runs, so rows of two experiments compare by these ratios alone.

# %%
shown = {plan.experiment: loaded}
if beside and loaded.is_committed and beside not in shown:
    shown[beside] = load.load_experiment(load.find_experiment("", beside))
modes = set(hero_figure.MODES) & set(loaded.measured_arms())
if loaded.is_timed and hero_figure.BASE in modes and len(modes) > 1:
    show_figure(lambda: hero_figure.draw_hero(shown), "speeds as ratios to ar, by kind of text")
else:
    show(f"This experiment sets none of these ways against `{hero_figure.BASE}`.")

# %% [markdown]
# ## Speeds and ratios by cell

# %%
show_all(
    {"arms_by_cell", "sweep", "seal_ratios", "fp8_ratios"},
    {"decode", "against_base", "seal", "fp8_speed", "published"},
)

# %% [markdown]
# ## What became of the drafts
#
# A draft's fate is a property of the text, the drafter and the model. Greedy repetitions repeat
# themselves, so the intervals below count each prompt once.

# %%
drafts = {name for name in painters if name.startswith("accept")}
show_all(drafts, {"acceptance", "sources", "match_length", "regret", "stale"})

# %% [markdown]
# ## Where the time goes
#
# The critical path is walked backwards from the last token: each frame was sent because of a reply,
# that reply's frame because of the one before. Between a reply and the frame that it led to the
# coordinator works; between a frame and its reply the ring does.

# %%
painters.pop("traversal_split", None)  # drawn here, whether or not it is among the committed ones
if breakdown_table.has_breakdown(loaded):
    words = "milliseconds of a traversal, by arm and stage"
    show_figure(lambda: split_figure.draw_split(loaded), words)
else:
    show("Its receipts do not note every part of a traversal, or nothing in it was to be timed.")
show_all((), {"breakdown"})

# %% [markdown]
# ## What else was measured

# %%
show_all(set(painters), set(specs))

# %% [markdown]
# ## What this does not show
#
# Absolute speeds belong to the machine; ratios carry further, as far as its stages share processors
# the way yours do. All stages ran on one machine behind emulated links: no loss, no competing
# traffic, no hosts of unlike speed. The model is small, so a traversal is mostly delay; a larger
# one spends more of it in its layers, and drafts are worth less there. The prompts are few and
# fixed: intervals say what repetition leaves open, not what other texts would give. A difference
# inside the null band is no difference that this run can show.
