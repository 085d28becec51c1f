"""The experiments seal, fp8 and frames: their tables, verdicts, figures, numbers and places."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from analysis import figures, folders, load, numbers, tables
from analysis.breakdown import job_breakdowns
from analysis.comparison_figures import draw_comparisons
from analysis.comparisons import compare
from analysis.effects import FASTER, NULL_ARM, SLOWER, null_band, ratio_table
from analysis.figure_file import house_style
from analysis.hypotheses import outcomes
from analysis.load import jobs_frame, load_experiment
from analysis.readme import results_block
from analysis.rule_parts import NOT_EVALUATED
from bench.schema import RECEIPT_SCHEMA
from engine.errors import ReceiptError
from tests.analysis.altered import load_invented
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import build_experiment
from tests.analysis.plan_builder import RECIPES


def test_each_experiment_has_its_own_tables(
    seal_invented: Invented,
    fp8_invented: Invented,
    frames_invented: Invented,
    acceptance_invented: Invented,
    planner_invented: Invented,
    two_state_invented: Invented,
) -> None:
    shared = ["hypotheses", "exclusions", "links"]
    for invented, names in (
        (seal_invented, ["seal", "breakdown"]),
        (fp8_invented, ["fp8_speed", "fp8_bytes", "fp8_ids", "acceptance", "breakdown"]),
        (frames_invented, ["frames"]),
        (
            acceptance_invented,
            ["iid", "acceptance", "match_length", "round_before", "iid_by_group", "power", "size"],
        ),
        (
            two_state_invented,
            ["published", "decode", "against_base", "acceptance", "determinism", "breakdown"],
        ),
        (
            planner_invented,
            ["decode", "against_base", "acceptance", "regret", "stale", "breakdown"],
        ),
    ):
        specs = tables.all_tables(load_invented(invented, "H1: something."))
        assert [spec.name for spec in specs] == names + shared
        # Nothing is excluded here, and nobody simulated the power of invented requests.
        may_be_empty = ("exclusions", "power", "size")
        assert all(spec.printed() for spec in specs if spec.name not in may_be_empty)


def test_earlier_versions_print_what_they_hold() -> None:
    """Catches a guess where a committed receipt of version 1 or 2 lacks a measurement."""
    for name, schema, lacking in (
        ("decode", "longhaul-plan/1", {"links", "breakdown"}),
        ("seal", "longhaul-plan/2", {"breakdown"}),
    ):
        experiment = load_experiment(load.find_experiment("", name))
        assert experiment.plan.schema == schema
        assert lacking.isdisjoint(spec.name for spec in tables.all_tables(experiment))
        assert job_breakdowns(experiment).empty


def test_the_readme_states_the_suite_and_every_outcome(
    decode_invented: Invented, seal_invented: Invented, frames_invented: Invented
) -> None:
    """Catches speeds of unprotected frames that a reader takes for those of sealed ones."""
    decode = load_invented(decode_invented)
    seal = load_invented(seal_invented, "Primary metric: speed.", "H1: chacha.", "H3: lossless.")
    frames = load_invented(frames_invented, "H1: frames.", "H2: lossless.")
    lines = results_block(decode, [seal, frames]).splitlines()
    sentence = next(line for line in lines if line.startswith("Committed experiment `decode`"))
    version = RECEIPT_SCHEMA.rpartition("/")[2]
    assert f"frames not protected (suite `plain`; receipts of version {version})" in sentence
    seal_line, frames_line = (line for line in lines if line.startswith("- "))
    assert seal_line.startswith("- `seal` (reps: 4, ") and "Primary metric" not in seal_line
    assert "H1 holds (seal-chacha " in seal_line and "; H3 holds (" in seal_line
    assert frames_line.endswith("H1 holds (8 of 8 jobs; 8 of 8 rings); H2 holds (9 of 9 jobs).")
    ring = msgspec.structs.replace(decode.plan.ring, suite="aes-256-gcm")
    receipts = [msgspec.structs.replace(receipt, ring=ring) for receipt in decode.receipts]
    alone = results_block(replace(decode, receipts=tuple(receipts)), [])
    assert "frames sealed (suite `aes-256-gcm`; " in alone and "Further" not in alone


def test_seal_table_has_cells_total_band_and_verdicts(seal_invented: Invented) -> None:
    spec = tables.seal_table(load_invented(seal_invented))
    rows = {(row[0], row[1]): row for row in spec.printed()}
    assert rows["chat", "seal-none"][3:7] == ["—", "—", "—", "—"]
    assert rows["chat", "seal-aes"][6] == rows["all cells", "seal-aes"][6] == SLOWER
    assert rows["all cells", "null-seal"][6] == NULL_ARM
    assert rows["all cells", "seal-aes"][4] == "8" and rows["chat", "seal-aes"][4] == "4"
    assert rows["chat", "seal-aes"][7] == "4/4" and rows["all cells", "seal-aes"][7] == "8/8"
    assert ("all cells", "seal-none") not in rows
    assert any("Null band (`null-seal` / `seal-none`, blocks: 8" in note for note in spec.notes)


def test_fp8_arms_stand_beside_their_f32_twins_with_their_own_bands(
    fp8_invented: Invented,
) -> None:
    """Catches a ratio of ar-fp8 to chain-k8, or the band of one pair under the other."""
    experiment = load_invented(fp8_invented)
    assert [(c.base, c.arms, c.band.null_arm) for c in compare(experiment)] == [
        ("ar", ("null-ar", "ar-fp8"), "null-ar"),
        ("chain-k8", ("null", "chain-fp8"), "null"),
    ]
    spec = tables.fp8_speed_table(experiment)
    divided = {row[1]: row[3] for row in spec.printed() if row[0] == "all cells"}
    assert divided == {"null-ar": "ar", "ar-fp8": "ar", "null": "chain-k8", "chain-fp8": "chain-k8"}


def test_fp8_is_never_called_lossless_in_its_tables(fp8_invented: Invented) -> None:
    for spec in tables.all_tables(load_invented(fp8_invented)):
        if spec.name != "exclusions":
            assert "lossless" not in spec.to_markdown().lower(), spec.name


def test_fp8_ids_table_says_where_ids_part(fp8_invented: Invented) -> None:
    rows = {
        (row[0], row[1]): row[2:]
        for row in tables.fp8_ids_table(load_invented(fp8_invented)).printed()
    }
    assert rows["chat", "ar-fp8"] == ["ar", "0/4", "40", "10", "25.0 %"]
    assert rows["verbatim-copy", "ar-fp8"] == ["ar", "4/4", "40", "—", "100.0 %"]
    assert rows["chat", "chain-fp8"] == ["ar-fp8", "4/4", "40", "—", "100.0 %"]


def test_frame_table_has_n_plus_1_beside_the_count(frames_invented: Invented) -> None:
    shown = tables.frame_table(load_invented(frames_invented)).printed()
    assert [row[:2] for row in shown][:3] == [["1", "ids"], ["1", "logits"], ["2", "ids"]]
    assert [row[3] for row in shown] == [row[4] for row in shown] == list("22334455")
    assert {row[-1] for row in shown} == {"yes"}


def test_a_subset_of_arms_still_makes_tables_and_figures(
    seal_invented: Invented, tmp_path: Path
) -> None:
    """Catches a table that insists on arms which the user left out."""
    recipe = replace(RECIPES["fp8"], arms=("chain-k8", "null"), reps=1)
    folder = build_experiment(tmp_path / "few", seal_invented.identity, recipe)
    experiment = load_experiment(folder, seal_invented.key_folders)
    shown = {spec.name: spec for spec in tables.all_tables(experiment)}
    assert "No used job of `ar`: no ratios to it." in shown["fp8_speed"].notes
    assert {row[1] for row in shown["fp8_speed"].printed()} == {"chain-k8", "null"}
    assert shown["fp8_ids"].printed() == []
    drawn = {path.stem for path in figures.write_figures(experiment, tmp_path / "figures")}
    assert drawn == {"fp8_ratios", "traversal_split"}
    assert set(outcomes(experiment)["outcome"]) == {NOT_EVALUATED}


def test_nothing_timed_means_no_ratio_and_no_band(frames_invented: Invented) -> None:
    experiment = load_invented(frames_invented)
    assert not experiment.is_timed
    jobs = jobs_frame(experiment)
    with pytest.raises(ReceiptError, match="times nothing: no ratio, no null band"):
        ratio_table(jobs, experiment.plan, "ids-s1", ["ids-s2"])
    assert not null_band(jobs, experiment.plan, "decode_tok_per_s", "ids-s1").is_established
    names = numbers.experiment_numbers(experiment)
    assert names["ids-s3.frames_per_traversal"].value == "4.000"
    assert not [name for name in names if "tok_per_s" in name or ".over." in name]
    for spec in tables.all_tables(experiment):
        assert "tok/s" not in spec.to_markdown() and "Null band" not in spec.to_markdown()
    unnamed = replace(experiment, plan=msgspec.structs.replace(experiment.plan, experiment="own"))
    assert tables.all_tables(unnamed)[0].name == "frames"
    assert list(figures.figures_of(unnamed)) == ["frames_by_stages"]


def test_figures_of_each_experiment_are_written(
    seal_invented: Invented,
    fp8_invented: Invented,
    frames_invented: Invented,
    tmp_path: Path,
) -> None:
    for invented, name, arm in (
        (seal_invented, "seal_ratios", "seal-aes"),
        (fp8_invented, "fp8_ratios", "chain-fp8"),
        (frames_invented, "frames_by_stages", "logits-s4"),
    ):
        experiment = load_invented(invented)
        out = tmp_path / name
        paths = figures.write_figures(experiment, out)
        assert {path.suffix for path in paths} >= {".svg", ".pdf", ".csv"}
        assert arm in (out / f"{name}.csv").read_text()
        again = tmp_path / f"{name}-again"
        figures.write_figures(experiment, again)
        for path in paths:
            assert path.read_bytes() == (again / path.name).read_bytes()


def test_seal_figure_draws_what_its_table_prints(seal_invented: Invented) -> None:
    experiment = load_invented(seal_invented)
    with house_style():
        points = draw_comparisons(experiment).points.set_index(["cell", "arm"])
    ratios = compare(experiment)[0].ratios.set_index(["cell", "arm"])
    assert set(points.index) == set(ratios.index)
    assert (
        points.loc[("all cells", "seal-aes"), "middle"]
        == ratios.loc[("all cells", "seal-aes"), "ratio"]
    )


def test_an_experiment_without_a_used_job_has_no_figure(
    seal_invented: Invented, tmp_path: Path
) -> None:
    for name in ("seal", "frames"):
        recipe = replace(RECIPES[name], reps=1, cells=("chat",))
        folder = build_experiment(tmp_path / name, seal_invented.identity, recipe)
        shutil.rmtree(folder / "receipts")
        (folder / "receipts").mkdir()
        experiment = load_experiment(folder, seal_invented.key_folders)
        assert [spec.name for spec in tables.all_tables(experiment)][-1] == "exclusions"
        with pytest.raises(ReceiptError, match="to draw"):
            figures.write_figures(experiment, tmp_path)


@pytest.mark.usefixtures("separate_kinds")
def test_without_receipts_every_committed_experiment_is_made(two_committed: Path) -> None:
    """Catches one experiment's products over another's, which share names."""
    assert folders.committed_experiments() == ["decode", "frames"]
    assert tables.main([]) == figures.main([]) == numbers.main([]) == 0
    paper = two_committed / "paper"
    assert "experiment invented" in (paper / "tables" / "hypotheses.md").read_text()
    assert "experiment frames" in (paper / "tables" / "frames" / "hypotheses.md").read_text()
    assert (paper / "figures" / "arms_by_cell.svg").is_file()
    assert (paper / "figures" / "frames" / "frames_by_stages.svg").is_file()
    assert json.loads((paper / "numbers.json").read_text())["experiment"] == "invented"
    own = json.loads((paper / "numbers" / "frames.json").read_text())
    assert own["experiment"] == "frames" and "ids-s4.frames_per_traversal" in own["numbers"]
    assert not (two_committed / "build").exists()


def test_ones_own_receipts_never_land_in_the_paper(two_committed: Path) -> None:
    folder = str(two_committed / "receipts" / "frames")
    assert tables.main(["--receipts", folder]) == numbers.main(["--receipts", folder]) == 0
    assert (two_committed / "build" / "tables" / "frames.md").is_file()
    assert (two_committed / "build" / "numbers.json").is_file()
    assert not (two_committed / "paper").exists()


def test_one_numbers_file_needs_one_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        numbers.main(["--out", "numbers.json"])
    assert "add --receipts" in capsys.readouterr().err


def test_fp8_numbers_are_those_of_the_tables(fp8_invented: Invented) -> None:
    experiment = load_invented(fp8_invented)
    found = numbers.experiment_numbers(experiment)
    ratio = found["chain-fp8.over.chain-k8.hidden_bytes_per_position.most"]
    shown = {row[0]: row for row in tables.fp8_bytes_table(experiment).printed()}
    assert shown["chain-fp8"][8] == ratio.value
    assert shown["chain-fp8"][6] == found["chain-fp8.hidden_bytes_per_position.least"].value
    assert found["chat.ar-fp8.first_difference"].value == "10"
    assert len(ratio.receipt_ids) == 16
    assert found["all.chain-fp8.over.chain-k8.ratio"].unit == "ratio"
    assert FASTER not in shown["chain-fp8"]
