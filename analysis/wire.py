"""What jobs put on the wire: frames a traversal, bytes by kind of hop, bytes a position.

Guarantees: counts are the receipts' own, by sender; where a stage dropped overtaken frames, which
ones is not recorded, so positions are bounded from both sides, never guessed. Receipts of version 1
have no count by sender and give no row. Must never know speeds, files or axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from msgspec import UNSET

from analysis.checks import is_answered
from analysis.load import Experiment
from bench.schema import FrameRow, HopRow, Receipt

WIRE_COLUMNS = (
    "job_idx",
    "rep",
    "cell",
    "arm",
    "receipt_id",
    "reply",
    "wire",
    "num_stages",
    "num_output",
    "traversals",
    "frames",
    "request_bytes",
    "hidden_bytes",
    "reply_bytes",
    "hidden_frames",
    "least_positions",
    "most_positions",
    "is_exact",
)
KINDS = ("request", "hidden", "reply")  # of the coordinator, the stages between, the last stage
SUMMED = WIRE_COLUMNS[WIRE_COLUMNS.index("num_output") : WIRE_COLUMNS.index("is_exact")]


def wire_frame(experiment: Experiment) -> pd.DataFrame:
    """One row per used measured job that counted its hops; WIRE_COLUMNS.

    `wire` is the numeric configuration. `frames` counts every hop, prefill included; `is_exact`:
    each process wrote one frame a traversal. `least_positions` … `most_positions`: positions in the
    hidden-state frames, those that every stage but the last sends, summed over these hops.
    """
    rows = [
        _wire_row(receipt, identifier, receipt.counters.hops)
        for receipt, identifier in experiment.measured()
        if receipt.counters.hops is not UNSET
    ]
    return pd.DataFrame(rows, columns=list(WIRE_COLUMNS))


def wire_by_arm(jobs: pd.DataFrame) -> pd.DataFrame:
    """Sums over an arm's jobs, arms in the jobs' order; adds `jobs` and what follows from sums.

    Bytes a position run from `least_bytes` to `most_bytes`, which are equal where nothing was
    dropped; NaN on a ring of one stage, which sends no hidden states. Frames a traversal, and bytes
    a traversal in all and by kind of hop, count the prefill's too; `bytes_per_token` divides by
    output tokens.
    """
    keys = ["arm", "reply", "wire", "num_stages"]
    grouped = jobs.groupby(keys, sort=False)
    summed = grouped[list(SUMMED)].sum()
    summed = summed.assign(jobs=grouped.size(), is_exact=grouped["is_exact"].all()).reset_index()
    all_bytes = sum(summed[f"{kind}_bytes"] for kind in KINDS)
    return summed.assign(
        least_bytes=_divided(summed["hidden_bytes"], summed["most_positions"]),
        most_bytes=_divided(summed["hidden_bytes"], summed["least_positions"]),
        frames_per_traversal=summed["frames"] / summed["traversals"],
        bytes_per_traversal=all_bytes / summed["traversals"],
        bytes_per_token=all_bytes / summed["num_output"],
        **{
            f"{kind}_per_traversal": summed[f"{kind}_bytes"] / summed["traversals"]
            for kind in KINDS
        },
    )


def arms_on_wire(experiment: Experiment) -> pd.DataFrame:
    """`wire_by_arm` of the experiment's jobs, arms in reading order."""
    order = experiment.measured_arms()
    jobs = wire_frame(experiment)
    return wire_by_arm(
        jobs.sort_values("arm", key=lambda arms: arms.map(order.index), kind="stable")
    )


def bytes_ratio(by_arm: pd.DataFrame, arm: str, base: str) -> tuple[float, float]:
    """Bounds of the ratio of bytes a position, arm / base; NaN if one of them has none."""
    sides = by_arm.set_index("arm")
    if not {arm, base} <= set(sides.index):
        return float("nan"), float("nan")
    ours, theirs = sides.loc[arm], sides.loc[base]
    return (
        float(ours["least_bytes"] / theirs["most_bytes"]),
        float(ours["most_bytes"] / theirs["least_bytes"]),
    )


def position_bounds(frames: Sequence[FrameRow], num_written: int) -> tuple[int, int]:
    """Fewest and most positions in what a stage wrote of a job's frames."""
    sizes = sorted(frame.positions_len for frame in frames if not is_answered(frame))
    num_dropped = len(frames) - num_written
    total = sum(frame.positions_len for frame in frames)
    largest = sizes[len(sizes) - num_dropped :]
    return total - sum(largest), total - sum(sizes[:num_dropped])


def _wire_row(receipt: Receipt, identifier: str, hops: Sequence[HopRow]) -> dict[str, object]:
    hidden = hops[1:-1]
    bounds = [position_bounds(receipt.frames, hop.frames) for hop in hidden]
    return {
        "job_idx": receipt.position.job_idx,
        "rep": receipt.position.rep,
        "cell": receipt.position.cell,
        "arm": receipt.requested.arm,
        "receipt_id": identifier,
        "reply": receipt.requested.reply,
        "wire": receipt.requested.numeric_config,
        "num_stages": receipt.ring.num_stages,
        "num_output": len(receipt.output_ids),
        "traversals": len(receipt.frames),
        "frames": receipt.counters.frames_on_wire,
        "request_bytes": hops[0].bytes,
        "hidden_bytes": sum(hop.bytes for hop in hidden),
        "reply_bytes": hops[-1].bytes,
        "hidden_frames": sum(hop.frames for hop in hidden),
        "least_positions": sum(least for least, _ in bounds),
        "most_positions": sum(most for _, most in bounds),
        "is_exact": all(hop.frames == len(receipt.frames) for hop in hops),
    }


def _divided(numerator: pd.Series, denominator: pd.Series) -> pd.Series:
    return numerator / denominator.astype(float).where(denominator > 0)
