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
# # Links: what was asked for, and what the frames met
#
# **Question.** Every speed in this project hangs on emulated links. Did they delay what they were
# asked to delay, no less and not much more? What crosses them: how many frames and bytes a
# traversal takes, and what half-precision states save? And what does a link do to the first frame
# after a silence?
#
# **Data.** Before a ring's first job the sending end of each link times empty probes, probes with a
# payload, and one behind a silence; these stand in every receipt of the ring's jobs, and so does a
# test of the relay alone. By default all committed experiments; your own with
# `-p receipts_dir FOLDER`. What silence costs is a study of its own, whose record is read from
# `receipts/studies` (`-p records FOLDER`: your own). Signatures are checked over exact bytes
# before anything is read.
#
# Run it from the repository: `papermill analysis/links.ipynb out.ipynb`. The source is
# `analysis/links.py`; `python -m analysis.pair` makes the notebook from it.

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
experiment = "planner"  # which committed experiment's links are shown one by one
records = ""  # folder of study records of your own; empty: the committed ones

# %%
# The path above must come first, hence the late imports. papermill only warns of a misspelt
# parameter: it would be a new name here, so it stops the run.
from analysis.notebook_guard import refuse_unknown  # noqa: E402

refuse_unknown(globals(), names_before, {"receipts_dir", "experiment", "records"})

# %%
from analysis import keepwarm, link_probes, load, loop_table, noop_table, wire_tables  # noqa: E402
from analysis.frame_figure import draw_frames_by_stages  # noqa: E402
from analysis.notebook_display import absence, newest, show, show_figure, show_table  # noqa: E402

chosen = load.find_experiment(receipts_dir, experiment).resolve()
found = [folder.resolve() for folder in load.find_experiments(receipts_dir)]
loaded = {folder: load.load_experiment(folder) for folder in dict.fromkeys((*found, chosen))}
one = loaded[chosen]
by_name = {each.plan.experiment: each for each in loaded.values()}

# %% [markdown]
# ## The loops
#
# A profile states the time around the ring; each of its N + 1 links has an equal share unless the
# profile lists them. The relay cannot deliver early, and its own work comes on top.

# %%
show_table(loop_table.loop_table(list(loaded.values())))

# %% [markdown]
# ## One experiment's links, one by one

# %%
if link_probes.links_frame(one).empty:
    show(f"The receipts of `{one.plan.experiment}` are of a version without payload probes.")
else:
    show(f"Experiment `{one.plan.experiment}`, profile `{one.plan.ring.profile}`:")
    show_table(wire_tables.link_table(one))

# %% [markdown]
# ## What crosses the links
#
# The last stage answers the coordinator directly, so a traversal takes one frame on each of N + 1
# links, and no state travels back.

# %%
frames = by_name.get("frames")
if frames is None:
    show(
        "No experiment `frames` is among these: `python -m bench run --experiment frames` runs one."
    )
else:
    show_figure(lambda: draw_frames_by_stages(frames), "frames and bytes a traversal by stages")
    show_table(wire_tables.frame_table(frames))

# %% [markdown]
# Hidden states are most of the bytes. With fp8 between stages they are a quarter, and the model is
# another one: its ids are judged by a reference of their own.

# %%
if "fp8" in by_name:
    show_table(wire_tables.fp8_bytes_table(by_name["fp8"]))
else:
    show("No experiment `fp8` is among these: `make study-wire` runs one.")

# %% [markdown]
# ## What silence costs a link
#
# The kernel's TCP shrinks its window on a connection that was silent, so the first large frame
# after a pause takes further round trips. Noops on silent links keep it open.

# %%
record = newest(keepwarm.STUDY, records)
if record is None:
    show(absence(keepwarm.STUDY, records, "make study-keepwarm"))
else:
    show_figure(lambda: keepwarm.draw_pauses(record), "time of a frame by the pause before it")
    show_table(keepwarm.pause_table(record))

# %%
warmed = [by_name[name] for name in ("keepwarm", "keepwarm-bbr") if name in by_name]
for each in warmed:
    show_table(noop_table.noop_table(each))
if not warmed:
    show("No experiment `keepwarm` is among these, so no ring was tried with noops.")

# %% [markdown]
# ## What this does not show
#
# The links are emulated on one machine. A relay delays bytes in user space: it shows no loss, no
# congestion window and no competing traffic, and a busy machine makes it late; network namespaces
# show the kernel's own TCP, still without the weather of a real path. Probes are few and were taken
# before a ring's first job: a link that changed afterwards would show in the jobs alone. Half a
# round trip is one way only where both ways are alike, as they are asked to be here.
