"""The experiments seal, fp8 and frames: their tables, verdicts, figures, numbers and places."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from analysis import figures, folders, load, numbers, tables
from analysis.arm_slots import slot_of
from analysis.comparison_figures import draw_comparisons
from analysis.comparisons import compare
from analysis.effects import FASTER, NULL_ARM, SLOWER, null_band, ratio_table
from analysis.figure_file import house_style
from analysis.hypotheses import FAILS, HOLDS, NOT_EVALUATED, UNDECIDED, outcomes
from analysis.load import Experiment, jobs_frame, load_experiment
from bench.schema import Receipt
from engine.errors import ReceiptError
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import build_experiment
from tests.analysis.plan_builder import RECIPES

SEAL_TEXTS = ("Primary metric: speed.", "H1: chacha.", "H2: aes.", "H3: lossless.")
FP8_TEXTS = ("H1: own ids.", "H2: other text.", "H3: bytes.")
FRAME_TEXTS = ("H1: N + 1 frames.", "H2: lossless.")


def load_invented(invented: Invented, *hypotheses: str) -> Experiment:
    """The experiment, as if its plan had pre-registered these hypotheses."""
    experiment = load_experiment(invented.folder, invented.key_folders)
    plan = msgspec.structs.replace(experiment.plan, hypotheses=list(hypotheses))
    return replace(experiment, plan=plan)


def outcome_of(experiment: Experiment) -> dict[str, str]:
    rows = outcomes(experiment)
    names = rows["hypothesis"].str.partition(":")[0]
    return dict(zip(names, rows["outcome"], strict=True))


def changed(experiment: Experiment, arm: str, change: Callable[[Receipt], Receipt]) -> Experiment:
    receipts = [
        change(receipt) if receipt.requested.arm == arm else receipt
        for receipt in experiment.receipts
    ]
    return replace(experiment, receipts=tuple(receipts))


def slowed(factor: float) -> Callable[[Receipt], Receipt]:
    def slow(receipt: Receipt) -> Receipt:
        timing = receipt.timing
        decode_ns = timing.last_commit_ns - timing.first_commit_ns
        last_ns = timing.first_commit_ns + round(decode_ns * factor)
        later = msgspec.structs.replace(timing, last_commit_ns=last_ns, end_ns=last_ns)
        return msgspec.structs.replace(receipt, timing=later)

    return slow


def as_failed(receipt: Receipt) -> Receipt:
    return msgspec.structs.replace(receipt, status="failed")


def test_each_experiment_has_its_own_tables(
    seal_invented: Invented, fp8_invented: Invented, frames_invented: Invented
) -> None:
    shared = ["hypotheses", "exclusions", "links"]
    for invented, names in (
        (seal_invented, ["seal"]),
        (fp8_invented, ["fp8_speed", "fp8_bytes", "fp8_ids", "acceptance"]),
        (frames_invented, ["frames"]),
    ):
        specs = tables.all_tables(load_invented(invented, "H1: something."))
        assert [spec.name for spec in specs] == names + shared
        assert all(spec.printed() for spec in specs if spec.name != "exclusions")


def test_version_1_prints_no_links() -> None:
    specs = tables.all_tables(load_experiment(load.find_experiment()))
    assert "links" not in [spec.name for spec in specs]


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
    assert len(figures.write_figures(experiment, tmp_path / "figures")) == 3
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


def test_seal_hypotheses_follow_the_interval_over_all_cells(seal_invented: Invented) -> None:
    experiment = load_invented(seal_invented, *SEAL_TEXTS)
    ratios = compare(experiment)[0].ratios.set_index(["cell", "arm"])
    row = ratios.loc[("all cells", "seal-chacha")]
    assert row["low"] >= 0.98, "the invented spread is small"
    found = outcome_of(experiment)
    assert found["H1"] == HOLDS and found["H2"] == FAILS and found["H3"] == HOLDS
    assert found["Primary metric"] == NOT_EVALUATED
    measured = outcomes(experiment)["measured"]
    assert measured[1].startswith(f"seal-chacha {row['ratio']:.3f} [{row['low']:.3f}")
    assert "null-seal" in measured[1] and "null band" in measured[1]
    on_the_line = changed(experiment, "seal-chacha", slowed(row["ratio"] / 0.98))
    assert outcome_of(on_the_line)["H1"] == UNDECIDED
    assert outcome_of(changed(experiment, "seal-aes", as_failed))["H3"] == FAILS
    few = replace(experiment, plan=msgspec.structs.replace(experiment.plan, reps=3))
    assert set(outcome_of(few).values()) == {NOT_EVALUATED}
    plan = msgspec.structs.replace(experiment.plan, null_pairs={})
    without_null = outcome_of(replace(experiment, plan=plan))
    assert without_null["H1"] == NOT_EVALUATED, "no band, no verdict on a speed"


def test_fp8_hypotheses(fp8_invented: Invented) -> None:
    experiment = load_invented(fp8_invented, *FP8_TEXTS)
    assert set(outcome_of(experiment).values()) == {HOLDS}
    assert "chat from output 10; 0 jobs judged across" in list(outcomes(experiment)["measured"])

    def other_ids(receipt: Receipt) -> Receipt:
        return msgspec.structs.replace(receipt, output_ids=receipt.output_ids[::-1])

    assert outcome_of(changed(experiment, "chain-fp8", other_ids))["H1"] == FAILS
    identical = {
        receipt.position.cell: receipt.output_ids
        for receipt in experiment.receipts
        if receipt.requested.arm == "ar"
    }
    same_text = changed(
        experiment,
        "ar-fp8",
        lambda r: msgspec.structs.replace(r, output_ids=identical[r.position.cell]),
    )
    assert outcome_of(same_text)["H2"] == FAILS
    crossed = changed(
        experiment,
        "chain-fp8",
        lambda r: msgspec.structs.replace(
            r, lossless=msgspec.structs.replace(r.lossless, reference_id=experiment.receipt_ids[0])
        ),
    )
    assert experiment.receipts[0].requested.numeric_config == "f32"
    assert outcome_of(crossed)["H2"] == FAILS


def test_fp8_bytes_hold_only_if_both_bounds_do(fp8_invented: Invented) -> None:
    """Catches a claim that a friendly guess about dropped frames carries."""
    experiment = load_invented(fp8_invented, *FP8_TEXTS)

    def scaled(num: int, den: int) -> Callable[[Receipt], Receipt]:
        def change(receipt: Receipt) -> Receipt:
            hops = [
                hop
                if hop.sender in ("coordinator", "stage-3")
                else msgspec.structs.replace(hop, bytes=hop.bytes * num // den)
                for hop in receipt.counters.hops
            ]
            counters = msgspec.structs.replace(receipt.counters, hops=hops)
            return msgspec.structs.replace(receipt, counters=counters)

        return change

    def dropping(receipt: Receipt) -> Receipt:
        """One overtaken frame of many positions, and every stage dropped some frame or other."""
        overtaken = [idx for idx, frame in enumerate(receipt.frames) if frame.outcome == "stale"]
        if not overtaken:
            return receipt
        frames, hops = list(receipt.frames), receipt.counters.hops
        frames[overtaken[0]] = msgspec.structs.replace(frames[overtaken[0]], positions_len=60)
        fewer = [msgspec.structs.replace(hop, frames=hop.frames - 1) for hop in hops[1:]]
        counters = msgspec.structs.replace(receipt.counters, hops=[hops[0], *fewer])
        return msgspec.structs.replace(receipt, frames=frames, counters=counters)

    assert outcome_of(changed(experiment, "chain-fp8", scaled(12, 10)))["H3"] == FAILS
    dropped = changed(changed(experiment, "chain-fp8", dropping), "chain-k8", dropping)
    least, _, most = outcomes(dropped)["measured"][2].partition("–")
    assert float(least) < float(most)
    # The claim stands between the two bounds: neither held nor refuted.
    factor = round(0.27 / ((float(least) + float(most)) / 2) * 10_000)
    between = changed(dropped, "chain-fp8", scaled(factor, 10_000))
    assert outcome_of(between)["H3"] == UNDECIDED


def test_frame_hypotheses_need_every_ring_and_every_job(frames_invented: Invented) -> None:
    experiment = load_invented(frames_invented, *FRAME_TEXTS)
    assert experiment.plan.reps == 1, "what is counted needs no repetitions"
    assert set(outcome_of(experiment).values()) == {HOLDS}

    def skipping(receipt: Receipt) -> Receipt:
        hops = list(receipt.counters.hops)
        hops[-1] = msgspec.structs.replace(hops[-1], frames=hops[-1].frames - 1)
        counters = msgspec.structs.replace(receipt.counters, hops=hops)
        return msgspec.structs.replace(receipt, counters=counters)

    assert outcome_of(changed(experiment, "logits-s3", skipping))["H1"] == FAILS
    unwanted = {row.job_idx for row in experiment.plan.jobs if row.arm == "ids-s4"}
    jobs = [row for row in experiment.plan.jobs if row.job_idx not in unwanted]
    receipts = [r for r in experiment.receipts if r.position.job_idx not in unwanted]
    ids = [i for n, i in enumerate(experiment.receipt_ids) if n not in unwanted]
    without = replace(
        experiment,
        plan=msgspec.structs.replace(experiment.plan, jobs=jobs),
        receipts=tuple(receipts),
        receipt_ids=tuple(ids),
    )
    assert outcome_of(without)["H1"] == FAILS, "four rings were promised"


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


def test_every_arm_of_the_experiments_has_a_slot_of_its_own() -> None:
    looks = {}
    for name, recipe in RECIPES.items():
        slots = [slot_of(arm, recipe.arms) for arm in recipe.arms]
        assert all(slot.colour_idx is not None for slot in slots), name
        assert len(set(slots)) == len(slots), f"{name}: two arms look alike"
        looks |= dict(zip(recipe.arms, slots, strict=True))
    assert looks["null-seal"].is_hollow and not looks["seal-none"].is_hollow
    assert looks["null-seal"].colour_idx == looks["seal-none"].colour_idx


@pytest.fixture
def two_committed(
    invented: Invented, frames_invented: Invented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A repository with two committed experiments, and folders that are none."""
    root = tmp_path / "repository"
    shutil.copytree(invented.folder, root / "receipts" / "decode")
    shutil.copytree(frames_invented.folder, root / "receipts" / "frames")
    (root / "receipts" / "schema").mkdir()
    (root / "receipts" / "keys").mkdir()
    for name, home in (("one", invented.home), ("two", frames_invented.home)):
        shutil.copy(home / "keys" / "harness.pub", root / "receipts" / "keys" / f"{name}.pub")
    monkeypatch.setattr(folders, "REPOSITORY", root)
    monkeypatch.setattr(folders, "COMMITTED", root / "receipts")
    monkeypatch.setattr(load, "COMMITTED", root / "receipts")
    return root


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
