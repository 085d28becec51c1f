"""Named numbers of what is on the wire and of which ids are equal, for experiments that ask.

Guarantees: the same counts and bounds that the tables print. Must never know what is said about a
number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from analysis.agreement import compare_ids
from analysis.comparisons import COMPARISONS
from analysis.load import Experiment
from analysis.named_number import NamedNumber, named
from analysis.wire import bytes_ratio, wire_by_arm, wire_frame

Numbers = dict[str, NamedNumber]
POSITION_FORMULA = (
    "bytes / positions of the frames that every stage but the last sends, over all used jobs; "
    "{end} bound where stages dropped overtaken frames"
)


def wire_numbers(experiment: Experiment) -> Numbers:
    """The numbers of one experiment; none if it asks nothing of the wire."""
    maker = MAKERS.get(experiment.plan.experiment)
    return maker(experiment) if maker else {}


def _fp8_numbers(experiment: Experiment) -> Numbers:
    jobs = wire_frame(experiment)
    by_arm = wire_by_arm(jobs)
    numbers: Numbers = {}
    for row in by_arm.itertuples():
        for end, value in (("least", row.least_bytes), ("most", row.most_bytes)):
            numbers[f"{row.arm}.hidden_bytes_per_position.{end}"] = named(
                value, 1, "bytes", POSITION_FORMULA.format(end=end), _ids(jobs, row.arm)
            )
    for pair in COMPARISONS["fp8"]:
        for arm in pair.arms:
            bounds = bytes_ratio(by_arm, arm, pair.base)
            for end, value in zip(("least", "most"), bounds, strict=True):
                if not pd.isna(value):
                    numbers[f"{arm}.over.{pair.base}.hidden_bytes_per_position.{end}"] = named(
                        value,
                        4,
                        "ratio",
                        POSITION_FORMULA.format(end=end),
                        _ids(jobs, arm, pair.base),
                    )
    for row in compare_ids(experiment, "ar-fp8", "ar").itertuples():
        if not pd.isna(row.first_difference):
            numbers[f"{row.cell}.ar-fp8.first_difference"] = named(
                row.first_difference,
                0,
                "output index",
                "first output id that differs from ar's, least over blocks",
                _ids(jobs[jobs["cell"] == row.cell], "ar-fp8", "ar"),
            )
    return numbers


def _frame_numbers(experiment: Experiment) -> Numbers:
    jobs = wire_frame(experiment)
    numbers: Numbers = {}
    for row in wire_by_arm(jobs).itertuples():
        ids = _ids(jobs, row.arm)
        numbers[f"{row.arm}.frames_per_traversal"] = named(
            row.frames_per_traversal, 3, "frames", "frames on every hop / traversals", ids
        )
        numbers[f"{row.arm}.bytes_per_traversal"] = named(
            row.bytes_per_traversal, 1, "bytes", "bytes on every hop / traversals", ids
        )
    return numbers


def _ids(jobs: pd.DataFrame, *arms: str) -> list[str]:
    return list(jobs[jobs["arm"].isin(arms)]["receipt_id"])


MAKERS: Mapping[str, Callable[[Experiment], Numbers]] = {
    "fp8": _fp8_numbers,
    "frames": _frame_numbers,
}
