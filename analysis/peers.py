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
# # This engine beside its peers, behind the same links
#
# **Question.** How fast is a stream decoded by what people would run instead: llama.cpp over its
# RPC servers, the transformers library (greedily, or with its own prompt lookup), a plain pipeline
# that sends one token a traversal? All on one machine, the spread ones behind the links of one
# profile.
#
# **Data.** A signed record of `make study-peers`: the newest committed one, or one of your own
# (`-p records FOLDER`, the folder that holds `peers/`). Its signature is checked over its exact
# bytes before anything is read.
#
# Run it from the repository: `papermill analysis/peers.ipynb out.ipynb`. The source is
# `analysis/peers.py`; `python -m analysis.pair` makes the notebook from it.

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
records = ""  # folder of study records of your own; empty: the committed ones

# %%
# The path above must come first, hence the late imports. papermill only warns of a misspelt
# parameter: it would be a new name here, so it stops the run.
from analysis.notebook_guard import refuse_unknown  # noqa: E402

refuse_unknown(globals(), names_before, {"records"})

# %%
from analysis import peers_products  # noqa: E402
from analysis.notebook_display import absence, newest, show, show_figure, show_table  # noqa: E402

found = newest(peers_products.STUDY, records)

# %% [markdown]
# ## What ran

# %%
if found is None:
    show(absence(peers_products.STUDY, records, "make study-peers"))
else:
    record = found.record
    facts = [f"- {name}: {value}" for name, value in {**record.settings, **record.host}.items()]
    commit = (record.build.commit or "unknown")[:12]
    show(f"Record `{found.record_id[:16]}` of {record.created}, commit `{commit}`:", "", *facts)

# %% [markdown]
# ## What came of it

# %%
if found is not None:
    show_figure(lambda: peers_products.draw_peers(found), "tok/s of each side, by cell")
    show_table(peers_products.peer_table(found))

# %% [markdown]
# ## How far this goes
#
# Every host of a ring or of llama.cpp was this one machine, so stages shared its processors; their
# frames in flight would wait less for each other on hosts of their own. llama.cpp computes with
# 4-bit weights, another numeric configuration than all others here, so its ids may differ. The
# emulated links are relays: no loss, no congestion window.
