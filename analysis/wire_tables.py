"""Tables of what is on the wire: bytes a position, frames and bytes a traversal, probes of links.

Guarantees: sums of the receipts' own counts; a bound is printed as a range. No speed of decoding is
in them, so they also serve experiments that time nothing. Must never know files or axes.
"""

from __future__ import annotations

from typing import Any

from analysis.comparison_tables import span
from analysis.comparisons import COMPARISONS
from analysis.link_probes import links_frame
from analysis.load import Experiment
from analysis.table_parts import make_spec
from analysis.table_spec import NOTHING, Column, TableSpec, interval, number, text
from analysis.wire import arms_on_wire, bytes_ratio


def fp8_bytes_table(experiment: Experiment) -> TableSpec:
    """Bytes for each position on the hops that carry hidden states, f32 beside fp8."""
    rows = arms_on_wire(experiment)
    bases = {arm: pair.base for pair in COMPARISONS["fp8"] for arm in pair.arms}
    ratios = [bytes_ratio(rows, arm, bases.get(arm, "")) for arm in rows["arm"]]
    rows = rows.assign(
        base=rows["arm"].map(lambda arm: bases.get(arm, NOTHING)),
        least_ratio=[least for least, _ in ratios],
        most_ratio=[most for _, most in ratios],
    )
    columns = (
        text("arm"),
        text("wire"),
        number("jobs", "jobs"),
        number("hidden_frames", "hidden frames"),
        Column("positions", lambda row: span(row, "least_positions", "most_positions")),
        number("hidden_bytes", "hidden bytes"),
        Column("bytes/position", lambda row: span(row, "least_bytes", "most_bytes", 1)),
        text("base", "divided by"),
        Column("ratio", lambda row: span(row, "least_ratio", "most_ratio", 4)),
        number("bytes_per_token", "all bytes/token"),
    )
    notes = [
        "Hidden: frames that every stage but the last sends, headers and tags included, prefill "
        "too, summed over the used measured jobs and over hops; one position on three hops counts "
        "three times. A range: stages dropped overtaken frames, whose positions are bounded. All "
        "bytes/token: every hop, divided by output tokens.",
    ]
    title = "Bytes between stages, f32 and fp8"
    return make_spec(experiment, "fp8_bytes", title, rows, columns, notes)


def frame_table(experiment: Experiment) -> TableSpec:
    """Frames and bytes a traversal by number of stages and kind of reply."""
    rows = arms_on_wire(experiment).sort_values(["num_stages", "reply"], kind="stable")
    columns = (
        number("num_stages", "stages N"),
        text("reply", "replies with"),
        number("traversals", "traversals"),
        Column("frames/traversal", _frames_per_traversal),
        Column("N + 1", lambda row: str(row["num_stages"] + 1)),
        number("bytes_per_traversal", "bytes/traversal", 1),
        number("request_per_traversal", "request", 1),
        number("hidden_per_traversal", "hidden states", 1),
        number("reply_per_traversal", "reply", 1),
        Column("one frame each", lambda row: "yes" if row["is_exact"] else "no", is_number=False),
    )
    notes = [
        "A traversal is one frame's way around the ring, the prefill's included. Bytes: header and "
        "tag included; request, hidden states and reply are what the coordinator, the stages "
        "between and the last stage wrote of them. One frame each: in every job each process wrote "
        "exactly one frame a traversal. Nothing is timed here.",
    ]
    title = "Frames and bytes a traversal"
    return make_spec(experiment, "frames", title, rows, columns, notes)


def link_table(experiment: Experiment) -> TableSpec:
    """What was asked of each link and what the probes measured before its ring's first job."""
    columns = (
        text("ring"),
        number("start", "start"),
        text("link"),
        number("one_way_ms", "asked one way, ms", 2),
        interval(("rtt_ms", "min_rtt_ms", "max_rtt_ms"), "rtt, ms", 2),
        interval(
            ("payload_rtt_ms", "min_payload_rtt_ms", "max_payload_rtt_ms"), "payload rtt, ms", 2
        ),
        number("mb_per_s", "MB/s", 1),
        number("idle_penalty_ms", "idle penalty, ms", 2),
    )
    rows = links_frame(experiment)
    probes = ", ".join(str(count) for count in sorted(set(rows["probes"])))
    sizes = ", ".join(str(size) for size in sorted(set(rows["payload_bytes"])))
    notes = [
        f"Median [min–max] of {probes} round trips of each kind, from the link's sending end; a "
        "ring that was replaced has several starts. rtt: of empty probes; the asked delay stands "
        f"on both directions. MB/s: {sizes} payload bytes / (median payload rtt − median rtt), "
        f"{NOTHING} unless every payload rtt is longer than every empty one. Idle penalty: one "
        "payload rtt after a silence − the median without; a single probe. A ring is named by its "
        "stages and suite, and by its kernel where that is not the plan's default.",
    ]
    return make_spec(experiment, "links", "Links as measured", rows, columns, notes)


def _frames_per_traversal(row: dict[str, Any]) -> str:
    # A whole number is exact and printed so; a mean is not.
    value = row["frames_per_traversal"]
    return f"{value:.0f}" if value.is_integer() else f"{value:.3f}"
