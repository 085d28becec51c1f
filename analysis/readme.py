"""The README's results: `python -m analysis.readme [--check]`.

Guarantees: the block between the two markers is made from the committed experiments' receipts and
from nothing else; every committed experiment is in it; `--check` fails when the README says
something else. Must never know a receipt that `analysis.load` did not verify.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from rich.console import Console

from analysis.effects import ALL_CELLS, ratio_table
from analysis.experiment_tables import decode_table
from analysis.folders import REPOSITORY
from analysis.hypotheses import outcomes
from analysis.load import (
    Experiment,
    find_experiment,
    find_experiments,
    jobs_frame,
    load_experiment,
)
from analysis.numbers import REFERENCE_ARM
from engine.errors import LonghaulError, ReceiptError

README = REPOSITORY / "README.md"
BEGIN = "<!-- results: written by `make tables` -->"
END = "<!-- end of results -->"
PRINTED_WIDTH = 132
UNPROTECTED = "plain"  # the suite that seals nothing
HYPOTHESIS = re.compile(r"H[1-9]\d*")  # H0 states a null, which no rule can bear out


def committed_block() -> str:
    """The block that the committed receipts make.

    Raises:
        LonghaulError: they do not verify, the default experiment is not among them, or it has too
            few repetitions.
    """
    first = find_experiment()
    others = [load_experiment(folder) for folder in find_experiments() if folder != first]
    return results_block(load_experiment(first), others)


def results_block(experiment: Experiment, others: Sequence[Experiment]) -> str:
    """The Markdown between the markers: one experiment's table, a line for each of the others."""
    plan = experiment.plan
    jobs = jobs_frame(experiment)
    arms = [arm for arm in experiment.measured_arms() if arm not in plan.null_pairs]
    ratios, band = ratio_table(jobs, plan, REFERENCE_ARM, arms)
    if not band.is_established:
        raise ReceiptError("the README's results need an experiment of at least 4 repetitions")
    lines = [BEGIN, "", "## What it shows", "", _sentence(experiment, band.low, band.high), ""]
    shown = [arm for arm in arms if arm != REFERENCE_ARM]
    heads = [f"{arm}, × {REFERENCE_ARM} [95 %]" for arm in shown]
    lines.append(f"| cell | {REFERENCE_ARM}, tok/s | {' | '.join(heads)} |")
    lines.append("|---|---|" + "---|" * len(shown))
    for cell in [*(row.name for row in plan.cells), ALL_CELLS]:
        entries = [_entry(ratios, cell, arm) for arm in shown]
        lines.append(f"| {cell} | {_speed(jobs, cell)} | {' | '.join(entries)} |")
    lines += ["", "`make bench-decode` prints such a table for every cell; the first one's:", ""]
    lines += ["```", *_printed(experiment), "```", ""]
    if others:
        lines += [
            "Further committed experiments: what came of each pre-registered hypothesis, and what "
            "was measured of it. The hypotheses in full: `hypotheses.md` in each one's folder.",
            "",
            *(_line(other) for other in others),
            "",
        ]
    return "\n".join([*lines, END])


def _printed(experiment: Experiment) -> list[str]:
    """The decode table as a terminal shows it, down to the end of its first cell."""
    spec = decode_table(experiment)
    first = replace(spec, rows=spec.rows[spec.rows["cell"] == spec.rows["cell"].iloc[0]], notes=())
    console = Console(file=io.StringIO(), width=PRINTED_WIDTH, color_system=None)
    first.show(console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def _sentence(experiment: Experiment, low: float, high: float) -> str:
    plan = experiment.plan
    identical = sum(receipt.lossless.verdict == "identical" for receipt in experiment.receipts)
    compared = sum(row.role == "measured" for row in plan.jobs)
    return (
        f"Committed experiment `{plan.experiment}`: {plan.reps} repetitions of {len(plan.cells)} "
        f"cells on profile `{plan.ring.profile}`, {plan.ring.num_stages} stages on one machine, "
        f"{_protection(experiment)}, {_drafter(experiment)}, "
        f"receipt set `{experiment.receipt_set_digest[:16]}`. "
        f"{identical} of {compared} measured jobs gave exactly the ids of their reference job. "
        "Ratios are paired within blocks; "
        f"ratios of `{REFERENCE_ARM}` to itself have the null band {low:.3f} … {high:.3f}; "
        "intervals are bootstraps over the blocks of a cell, so per-cell ones rest on few blocks. "
        "Details: `paper/tables/`, `paper/figures/`."
    )


def _protection(experiment: Experiment) -> str:
    """What sealed the frames of these jobs, whatever seals them by default today."""
    suites = ", ".join(sorted({f"`{receipt.ring.suite}`" for receipt in experiment.receipts}))
    versions = {receipt.schema.rpartition("/")[2] for receipt in experiment.receipts}
    words = "frames not protected" if suites == f"`{UNPROTECTED}`" else "frames sealed"
    return f"{words} (suite {suites}; receipts of version {', '.join(sorted(versions))})"


def _drafter(experiment: Experiment) -> str:
    """What the n-gram drafter of these jobs believed, whatever its default is today."""
    lengths = sorted({receipt.requested.min_match_len for receipt in experiment.receipts})
    return f"n-gram matches of {' or '.join(map(str, lengths))} or more tokens"


def _line(experiment: Experiment) -> str:
    """One experiment in a line: its size, and each hypothesis' outcome."""
    plan = experiment.plan
    found = [
        f"{name} {row['outcome']} ({row['measured']})"
        for _, row in outcomes(experiment).iterrows()
        if HYPOTHESIS.fullmatch(name := row["hypothesis"].partition(":")[0])
    ]
    return (
        f"- `{plan.experiment}` (reps: {plan.reps}, cells: {len(plan.cells)}, profile "
        f"`{plan.ring.profile}`, receipt set `{experiment.receipt_set_digest[:16]}`, "
        f"`paper/tables/{plan.experiment}/`): {'; '.join(found) or 'no hypothesis'}."
    )


def _entry(ratios: pd.DataFrame, cell: str, arm: str) -> str:
    row = ratios[(ratios["cell"] == cell) & (ratios["arm"] == arm)].iloc[0]
    return f"{row['ratio']:.2f} [{row['low']:.2f}–{row['high']:.2f}]"


def _speed(jobs: pd.DataFrame, cell: str) -> str:
    speeds = jobs[(jobs["arm"] == REFERENCE_ARM) & (jobs["cell"] == cell)]["decode_tok_per_s"]
    return "" if speeds.empty else f"{speeds.median():.2f}"


def with_block(text: str, block: str) -> str:
    """Replace what stands between the markers.

    Raises:
        ReceiptError: the markers are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReceiptError(f"README.md lacks the lines {BEGIN!r} and {END!r}")
    return before + block + after


def differences() -> list[str]:
    """What the README says and its receipts do not, in a line; empty: nothing.

    Raises:
        LonghaulError: the receipts do not verify, or the README lacks the markers.
    """
    text = README.read_text(encoding="utf-8")
    if with_block(text, committed_block()) == text:
        return []
    return ["README.md: its results are not what the receipts say; run: make tables"]


def main(arguments: list[str] | None = None) -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(prog="python -m analysis.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it differs")
    asked = parser.parse_args(arguments)
    try:
        if asked.check:
            found = differences()
        else:
            found = []
            text = README.read_text(encoding="utf-8")
            README.write_text(with_block(text, committed_block()), encoding="utf-8")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
