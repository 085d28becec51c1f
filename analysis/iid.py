"""Is acceptance i.i.d.? Five conditional tests and an e-value of one study.

    python -m analysis.iid [--as-given] FILE.json

takes rounds as `[[[k, a], …], …]`, k drafts of which a were accepted, one list a request, and
prints each test's statistic, p-value and method, or why it does not apply.

Guarantees: a test runs only where its null law holds (DESIGN section 14, "Applicability"); it
takes bits or complete rounds and knows no receipts, files of others or prompts. Pure functions: the
same study gives the same numbers, whatever the order of its requests (`context_e` alone takes them
in plan order).

Null: every drafted token is accepted independently with probability α until the first refusal.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from analysis.iid_between import between_requests
from analysis.iid_bits import Study, depth_1_study, given_study, ruled_study
from analysis.iid_depth import depth_rise
from analysis.iid_evidence import context_e, match_e
from analysis.iid_file import read_requests
from analysis.iid_orders import serial_product
from analysis.iid_result import HolmRow, IidResult, NotApplicable, holm
from analysis.iid_streams import full_excess, stream_runs
from engine.errors import LonghaulError

__all__ = [
    "TESTS",
    "HolmRow",
    "IidResult",
    "NotApplicable",
    "Study",
    "between_requests",
    "context_e",
    "depth_1_study",
    "depth_rise",
    "full_excess",
    "given_study",
    "holm",
    "match_e",
    "ruled_study",
    "run_tests",
    "serial_product",
    "stream_runs",
]

TESTS = (
    "depth_rise",
    "serial_product",
    "stream_runs",
    "full_excess",
    "between_requests",
    "context_e",
)
NEEDS_FIXED = {"depth_rise", "serial_product", "full_excess"}
VARIES = "draft lengths vary; this test needs one K"
OPEN = "draft lengths have no known bounds; only context_e holds for them"


def run_tests(study: Study, num_draws: int | None = None) -> dict[str, IidResult | NotApplicable]:
    """Every test of a study, by name.

    Args:
        study: what the data rule left, or a log as given.
        num_draws: m of Monte Carlo p-values; None: DESIGN's.
    """
    return {test: run_test(test, study, num_draws) for test in TESTS}


def run_test(
    test: str, study: Study, num_draws: int | None = None, enough: int | None = None
) -> IidResult | NotApplicable:
    """One test of a study, or why it does not apply.

    Args:
        num_draws: as in `run_tests`.
        enough: of `drawn_until`, where it only matters whether p is above a level; the tests whose
            p needs no draws have no use for it.
    """
    if test == "context_e":
        return context_e(study.all_rounds)
    if study.kind == "open":
        return NotApplicable(OPEN)
    if study.kind == "bounded" and test in NEEDS_FIXED:
        return NotApplicable(VARIES)
    if test == "full_excess":
        if study.draft_len is None:
            return NotApplicable(VARIES)
        return full_excess(study.bits, study.draft_len, num_draws)
    if test == "depth_rise":
        return depth_rise(study.rounds, num_draws)
    if test == "serial_product":
        return serial_product(study.rounds, num_draws, enough)
    if test == "stream_runs":
        return stream_runs(study.bits, num_draws)
    return between_requests(study.bits, num_draws, enough)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.iid", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, metavar="FILE.json", help="[[[k, a], …], …]")
    parser.add_argument(
        "--as-given",
        action="store_true",
        help="use every round and bit, without the data rule; right only if no request was cut",
    )
    options = parser.parse_args(arguments)
    try:
        requests = read_requests(options.file)
        study = given_study(requests) if options.as_given else depth_1_study(requests)
        outcomes = run_tests(study)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({test: found.as_json() for test, found in outcomes.items()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
