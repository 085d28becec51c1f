"""Peers side by side: speeds counted alike, ratios within a round, links and none told apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.figure_file import house_style
from analysis.peers_products import SIDES, draw_peers, null_ratios, peer_table, speeds
from analysis.study_records import StudyRecord
from bench.receipt import write_signed
from bench.schema import Study
from tests.analysis.conftest import Invented, run_module
from tests.analysis.plan_builder import Recipe, make_plan

# side -> tok/s of two rounds; the second round is twice as fast for all
SPEEDS = {
    "planner": 30,
    "ar": 3,
    "chain-k8": 20,
    "null": 21,
    "transformers-lookup": 12,
    "llama": 90,
}
CELLS, OUTPUT_LEN = ("verbatim", "chat"), 49


def found(sides: dict[str, int] = SPEEDS) -> StudyRecord:
    rows = []
    for round_idx in (0, 1):
        for cell in CELLS:
            for side, speed in sides.items():
                first_len = 9 if side == "transformers-lookup" else 1
                seconds = (OUTPUT_LEN - first_len) / (speed * (1 + round_idx))
                rows.append(
                    {
                        "side": side,
                        "cell": cell,
                        "round": round_idx,
                        "prompt_len": 50,
                        "output_len": OUTPUT_LEN,
                        "first_len": first_len,
                        "prefill_ns": 10**9,
                        "decode_ns": round(seconds * 1e9),
                    }
                )
    settings = {
        "profile": "wan-275",
        "profile_digest": "0" * 64,
        "stages": 4,
        "threads": 2,
        "new_tokens": 49,
        "lookup": 8,
        "rounds": 2,
    }
    study = Study(
        study="peers",
        created="2026-01-01T00:00:00Z",
        build=make_plan(Recipe()).build,
        host={},
        settings=settings,
        rows=rows,
    )
    return StudyRecord(study, "abc123")


def test_speeds_are_of_tokens_after_the_first_and_ratios_within_a_round() -> None:
    """Catches a ratio of medians over rounds, and drafts that came with the prompt counted."""
    table = speeds(found())
    assert list(table["cell"]) == sorted(table["cell"], key=CELLS.index)
    for _, row in table.iterrows():
        speed = SPEEDS[row["side"]]
        assert row["tok_per_s"] == pytest.approx(1.5 * speed)
        assert (row["low"], row["high"]) == pytest.approx((speed, 2 * speed))
        ratio = speed / SPEEDS["ar"]
        assert (row["ratio_low"], row["ratio"], row["ratio_high"]) == pytest.approx((ratio,) * 3)
    assert null_ratios(found()).tolist() == pytest.approx([21 / 20] * 4)


def test_the_table_says_who_crossed_links() -> None:
    made = peer_table(found()).to_markdown()
    assert "| verbatim | llama.cpp, alone | none | 135.0 [90.0–180.0] | 35.3 | 30.00" in made
    assert "| chat | ring, planner | yes | 45.0 [30.0–60.0] | 23.0 | 10.00" in made
    assert "abc123" in made and "[1.05–1.05]" in made and "drafts up to 8 tokens" in made


def test_a_panel_a_cell_and_hollow_without_links() -> None:
    with house_style():
        drawing = draw_peers(found())
    panels = drawing.figure.get_axes()
    assert [axes.get_title("left") for axes in panels] == list(CELLS)
    sides = [name for name in SIDES if name in SPEEDS]
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels == [SIDES[name][0] for name in sides]
    hollow = {
        name
        for name, line in zip(sides, panels[0].get_lines(), strict=True)
        if line.get_markerfacecolor() == "white"
    }
    assert hollow == {name for name in sides if not SIDES[name][1]}


def test_the_notebook_tells_a_record(invented: Invented, tmp_path: Path) -> None:
    """Catches a notebook that is silent about nothing, or runs on a folder that is not there."""
    records, out = tmp_path / "records", tmp_path / "out.ipynb"
    run = ("analysis.notebook", "peers", "-p", "records", str(records), "--out", str(out))
    with pytest.raises(RuntimeError, match="no such folder; name one that holds a folder a study"):
        run_module(invented, *run)
    records.mkdir()
    run_module(invented, *run)
    assert "No record of the study `peers` lies in" in out.read_text()
    (records / "peers").mkdir()
    write_signed(records / "peers" / "1.json", found().record, invented.identity)
    run_module(invented, *run)
    cells = json.loads(out.read_text())["cells"]
    shown = [
        output["data"]
        for cell in cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "display_data"
    ]
    assert sum("image/png" in cell for cell in shown) == 1
    reading = "".join("".join(cell.get("text/markdown", "")) for cell in shown)
    assert "- profile: wan-275" in reading and "| ring, planner | yes |" in reading
