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
# # Verification: what stages prove, what it costs, and what finds a stage that cheats
#
# **Question.** The layers of one model lie on hosts of other people. Frames between them are
# sealed, so nobody on the way reads or alters them; in an attested job each stage signs which
# frames it received and sent; a challenge recomputes some of them afterwards. What does each cost,
# which cheats does each find, and whom does it name?
#
# **Data.** By default the committed A/Bs `attest` and `seal`, and the newest committed records of
# the studies `attacks`, `challenge` and `seal-cost`; your own with `-p receipts_dir FOLDER` (an
# attested experiment) and `-p records FOLDER`. Every signature is checked over its exact bytes
# before anything is read; that the stages' statements hold against each other is checked by
# `python -m bench check`, which is separate code.
#
# Run it from the repository: `papermill analysis/verification.ipynb out.ipynb`. The source is
# `analysis/verification.py`; `python -m analysis.pair` makes the notebook from it.

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
receipts_dir = ""  # folder of an attested experiment of your own; empty: the committed `attest`
seal_experiment = "seal"  # committed A/B of sealing; empty: none
records = ""  # folder of study records of your own; empty: the committed ones

# %%
# The path above must come first, hence the late imports. papermill only warns of a misspelt
# parameter: it would be a new name here, so it stops the run.
from analysis.notebook_guard import refuse_unknown  # noqa: E402

refuse_unknown(globals(), names_before, {"receipts_dir", "seal_experiment", "records"})

# %%
from analysis import (  # noqa: E402
    attack_table,
    attest_tables,
    challenge_table,
    cost_figure,
    load,
    tables,
)
from analysis.comparison_tables import seal_table  # noqa: E402
from analysis.notebook_display import absence, newest, show, show_figure, show_table  # noqa: E402

attest = load.load_experiment(load.find_experiment(receipts_dir, "attest"))
seal = load.load_experiment(load.find_experiment("", seal_experiment)) if seal_experiment else None
seal_cost = newest(cost_figure.STUDY, records)

# %% [markdown]
# ## What stages signed
#
# A statement names the job, the stage, its layers and the model's digest, counts frames and
# positions, and holds one digest over all frames that were received and one over all that were
# sent; the stage's key signs it. The coordinator holds the statements against each other and its
# own account; a job of which one does not hold fails and names the stage.

# %%
statements = attest_tables.statement_rows(attest)
jobs = {receipt.position.job_idx: receipt for receipt, _ in attest.measured()}
identical = sum(jobs[idx].lossless.verdict == "identical" for idx in statements["job_idx"].unique())
show(
    f"Experiment `{attest.plan.experiment}`, receipt set `{attest.receipt_set_digest[:16]}`: "
    f"{len(statements)} statements in {statements['job_idx'].nunique()} of {len(jobs)} measured "
    f"jobs, of which {identical} gave exactly the ids of their reference job."
)
if len(statements):
    show_table(attest_tables.attest_table(attest))

# %% [markdown]
# ## What it costs
#
# Digests run on a thread of their own beside the layers; what they take off the speed shows end to
# end alone, against the same arm without them, and within what noise allows to see.

# %%
experiments = {"attest": attest} if seal is None else {"attest": attest, "seal": seal}
words = "digests over layers, attested and sealed arms over their twins, times of sealing alone"
show_figure(lambda: cost_figure.draw_cost(experiments, seal_cost), words)
if seal_cost is None:
    show(absence(cost_figure.STUDY, records, "make study-seal"))

# %%
show_table(tables.hypothesis_table(attest))
show_table(tables.base_table(attest))

# %%
if seal is None:
    show("No A/B of sealing was asked for (`seal_experiment`).")
else:
    show_table(tables.hypothesis_table(seal))
    show_table(seal_table(seal))

# %% [markdown]
# ## Stages that cheat
#
# Rings of real processes, one of which does what the row says.

# %%
attacks = newest(attack_table.STUDY, records)
if attacks is None:
    show(absence(attack_table.STUDY, records, "make study-attacks"))
else:
    show_table(attack_table.attack_table(attacks))

# %% [markdown]
# ## Recomputing what a stage sent
#
# A statement proves who sent which bytes, not that layers made them. A challenge draws frames after
# the job and recomputes them on layers of one's own; since arithmetic differs between kernels, what
# an honest stage may be off by was measured, and limits were set on some texts and tried on others.

# %%
challenge = newest(challenge_table.STUDY, records)
if challenge is None:
    show(absence(challenge_table.STUDY, records, "make study-challenge"))
else:
    show_table(challenge_table.challenge_table(challenge))

# %% [markdown]
# ## What this does not show
#
# A stage that computes honestly and copies what it sees is found by nothing here: sealing keeps
# frames from those on the way, not from the hosts that compute. Where two neighbours state
# different bytes one of them lies, and which one is a convention. A challenge finds a cheat with
# the chance that a drawn frame was a cheated one, on layers that somebody must hold; its limits
# belong to the packaged model, and honest stages have been accused (docs/decisions/0016). The
# attacks are those that we thought of. Costs were measured on one machine whose stages share two
# processors; an interval that reaches the null band shows no cost and no absence of one.
