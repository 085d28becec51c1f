"""How far apart honest computations of a stage are, and cheating ones: `engine.trust.challenge`.

The packaged model over four stages in this process, real prompts and its answers, in chunks and
then in frames of drafts. Each case changes how one stage computes; a replica of the engine's own
layers checks what it sent, by sketches under a fresh seed. Guarantees: honest and cheating cases go
through the same check; what is recorded is what the check saw; the limits were set on the first
cells alone, the others were first seen after. Must never know sockets.

    python -m bench.studies.challenge [--cells mixed chat] [--record DIR]

Prints by case the largest relative error of a position and the median, over stages and cells;
fails if an honest stage is beyond its limits or a cheating one is not.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.cells import load_cell
from bench.studies.spot_cases import (
    CASES,
    SHORT_FRAME_LEN,
    SPANS,
    Bench,
    Case,
    Remembered,
    received,
)
from bench.studies.spot_job import GREEDY, Forward, SpotFrame, SpotJob, run_job
from bench.study_record import make_study, write_study
from engine.errors import LonghaulError
from engine.model.tokenizer import Tokenizer
from engine.model.weights import prepare_model
from engine.trust.challenge import Terms, spot_check
from engine.trust.frame_payload import states_of
from engine.trust.limits import (
    GROUP_LEN,
    LIMITS,
    Limits,
    first_beyond,
    first_coarse,
    grouped,
)
from engine.trust.sketch import NUM_SIGNS, SEED_LEN, Floats, false_alarm_bound, miss_bound

STUDY = "challenge"
CALIBRATED_ON = ("mixed", "code-edit", "summary")
HELD_OUT = ("chat", "reasoning", "verbatim")
WIRES = ("f32", "fp8")
PREFILL_CHUNK, FRAME_LEN = 64, SHORT_FRAME_LEN
NUM_POSITIONS = 136  # of prompt and answer; the other library keeps no cache here
PARTS_PER = 10**12  # errors are recorded as integers, in parts per so many
MARGIN = 4  # of a limit over honest errors of a position, and of an error over the limit
MOST = 1e3  # no error is said to be larger
FLOOR = 1e-300  # no bound is said to be smaller
Row = dict[str, str | int]


def measure(bench: Bench, cell: str, ids: Sequence[int]) -> list[Row]:
    """One row a case and stage: the states it sent, or of the last one the scores."""
    frames = frames_of(ids)
    befores = {wire: [Remembered(stage.forward) for stage in bench.stages] for wire in WIRES}
    rows: list[Row] = []
    for case in track(CASES, cell, console=Console(stderr=True)):
        for idx in range(len(SPANS) - 1):
            own = {idx: case.forward(bench, idx)}
            job = _run(bench, frames, befores[case.wire], case.wire, own, idx)
            errors = _errors(bench, job, idx, case)
            rows.append({"cell": cell, "stage": idx, **row_of(case, errors)})
        if case.scores is not None:
            scores = _score_errors(bench, frames, befores[case.wire], case)
            rows.append({"cell": cell, "stage": len(SPANS) - 1, **score_row_of(case, scores)})
    return rows


def _run(
    bench: Bench,
    frames: Sequence[SpotFrame],
    before: Sequence[Forward],
    wire: str,
    own: Mapping[int, Forward],
    idx: int,
) -> SpotJob:
    """A job of stages up to `idx` and its successor, if it has one, which only receives."""
    forwards = {**dict(enumerate(before[:idx])), idx: received, idx + 1: received, **own}
    seed = secrets.token_bytes(SEED_LEN)
    return run_job(bench.stages[: idx + 2], frames, seed, wire, forwards=forwards)


def row_of(case: Case, frames: Sequence[Floats]) -> Row:
    """What the check makes of one stage. Shapes: errors of each frame [T]."""
    limits, errors = LIMITS[case.group], np.concatenate(frames)
    is_caught = first_beyond(errors, limits) is not None or first_coarse(frames, limits) is not None
    medians = [float(np.median(group)) for _, group in grouped(frames)]
    return {
        **_named(case),
        "caught": int(is_caught),
        "positions": errors.size,
        "groups": len(medians),
        **_parts("largest", float(errors.max()), limits.position),
        **_parts("median", max(medians, default=0.0), limits.median),
    }


def score_row_of(case: Case, errors: Floats) -> Row:
    """The same of scores, which are judged position by position. Shapes: errors [T]."""
    limit, largest = LIMITS[case.group].score, float(errors.max())
    return {
        **_named(case),
        "caught": int(not largest <= limit),
        "positions": errors.size,
        "groups": 0,
        **_parts("largest", largest, limit),
        **_parts("median", 0.0, 0.0),
    }


def _named(case: Case) -> Row:
    return {"group": case.group, "case": case.name, "honest": int(case.is_honest)}


def _parts(name: str, error: float, limit: float) -> Row:
    shown = error if error <= MOST else MOST  # an integer has no NaN and no infinity
    return {name: round(shown * PARTS_PER), f"{name}_limit": round(limit * PARTS_PER)}


def frames_of(ids: Sequence[int]) -> list[SpotFrame]:
    """The first half of the ids in chunks, the rest in frames of drafts."""
    cuts = [*range(0, len(ids) // 2, PREFILL_CHUNK), *range(len(ids) // 2, len(ids), FRAME_LEN)]
    return [
        SpotFrame(0, start, tuple(ids[start:end]), start)
        for start, end in zip(cuts, [*cuts[1:], len(ids)], strict=True)
    ]


def _errors(bench: Bench, job: SpotJob, idx: int, case: Case) -> list[Floats]:
    """What the check sees of each frame if it lets everything pass."""
    all_pass = Limits(math.inf, math.inf, math.inf)
    terms = Terms(case.wire, GREEDY, all_pass, num_frames=len(job.frames))
    compared = spot_check(job.statements, job.evidence, idx, bench.replicas[idx], job.seed, terms)
    return [item.errors for item in compared]


def _score_errors(
    bench: Bench, frames: Sequence[SpotFrame], before: Sequence[Forward], case: Case
) -> Floats:
    """How far each position's scores are from the last replica's, as a share of their length."""
    last, errors = len(SPANS) - 1, []
    replica, forward = bench.replicas[last], case.forward(bench, last)
    assert case.scores is not None, "only such cases are asked"
    scores = case.scores(bench)
    replica.reset()
    for payload in _run(bench, frames, before, case.wire, {}, last).sent[last]:
        verify, hidden = states_of(payload, case.wire)
        own = replica.logits(replica.forward(hidden, verify.start))
        theirs = scores(forward(hidden, verify.start))
        errors.append(((theirs - own).norm(dim=1) / own.norm(dim=1)).double().numpy())
    return np.concatenate(errors)


def wrong(rows: Sequence[Row]) -> list[str]:
    """Honest stages that are caught, and cheating ones that are not."""
    return [
        f"{row['group']}, {row['case']}, cell {row['cell']}, stage {row['stage']}"
        for row in rows
        if row["caught"] == row["honest"]
    ]


def show(rows: Sequence[Row], console: Console) -> None:
    """One line a case: over all stages and cells."""
    table = Table(title="Errors of positions: of honest stages the greatest, of cheating the least")
    for column in ("class", "case", "", "largest", "passes", "median", "passes", "caught"):
        table.add_column(column)
    for case in CASES:
        own = [row for row in rows if (row["group"], row["case"]) == (case.group, case.name)]
        limits = LIMITS[case.group]
        table.add_row(
            case.group,
            case.name,
            "honest" if case.is_honest else "cheats",
            _nearest(own, case, "largest"),
            f"{limits.position:.1e}",
            _nearest(own, case, "median"),
            f"{limits.median:.1e}",
            f"{sum(int(row['caught']) for row in own)}/{len(own)}",
        )
    console.print(table)


def _nearest(rows: Sequence[Row], case: Case, key: str) -> str:
    values = [int(row[key]) / PARTS_PER for row in rows]
    return f"{max(values) if case.is_honest else min(values):.1e}"


def settings_of(cells: Sequence[str]) -> dict[str, str | int]:
    return {
        "calibrated_on": " ".join(cell for cell in cells if cell in CALIBRATED_ON),
        "held_out": " ".join(cell for cell in cells if cell not in CALIBRATED_ON),
        "positions": NUM_POSITIONS,
        "group_len": GROUP_LEN,
        "parts_per": PARTS_PER,
        "signs": NUM_SIGNS,
        "false_alarm_bound": f"{max(false_alarm_bound(MARGIN), FLOOR):.0e}",
        "miss_bound": f"{miss_bound(MARGIN):.0e}",
        "margin": MARGIN,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.studies.challenge")
    cells = (*CALIBRATED_ON, *HELD_OUT)
    parser.add_argument("--cells", nargs="+", default=cells, help="whose prompts are computed")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a signed record there")
    args = parser.parse_args()
    try:
        files = prepare_model()
        tokenizer, bench = Tokenizer.load(files), Bench(files)
        rows: list[Row] = []
        for cell in args.cells:
            prompt = load_cell(cell).prompt_ids(tokenizer)
            rows += measure(bench, cell, bench.answered(prompt, NUM_POSITIONS))
        show(rows, Console())
        if args.record:
            print(write_study(make_study(STUDY, settings_of(args.cells), rows), args.record))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = wrong(rows)
    for name in found:
        print(f"on the wrong side of its limits: {name}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
