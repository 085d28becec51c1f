"""Tables, figures, numbers and the notebook: same receipts, same bytes; misspelt names fail."""

from __future__ import annotations

import ast
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec
import papermill
import pytest

from analysis import figure_file, figures, numbers, pair, tables
from analysis.arm_slots import in_reading_order, slot_of
from analysis.effects import NULL_ARM, ratio_table
from analysis.hypotheses import outcomes
from analysis.load import jobs_frame, load_experiment
from analysis.notebook_guard import refuse_unknown
from analysis.rule_parts import FAILS, HOLDS, NOT_EVALUATED
from analysis.table_parts import load_words
from engine.errors import ConfigError, ReceiptError
from tests.analysis.conftest import Invented, run_module, run_python
from tests.analysis.experiment_builder import build_experiment
from tests.analysis.plan_builder import Recipe

FIGURE_ENDINGS = {"svg", "pdf", "csv", "txt"}


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_two_runs_write_the_same_bytes(invented: Invented, tmp_path: Path) -> None:
    written = []
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        # One interpreter for the three commands: starting one takes longer than what it does.
        receipts = f"['--receipts', {str(invented.folder)!r}, '--out', {str(out)!r}"
        commands = (
            "from analysis import figure_file, figures, numbers, tables\n"
            f"assert not tables.main({receipts}])\n"
            f"assert not figures.main({receipts}])\n"
            f"assert not numbers.main({receipts} + '/numbers.json'])\n"
        )
        run_python(invented, "-c", commands, hash_seed=hash_seed)
        written.append(everything_in(out))
    assert written[0] == written[1]
    names = set(written[0])
    assert {"decode.md", "decode.csv", "acceptance.md", "acceptance.csv"} <= names
    for figure in figures.FIGURES:
        assert {f"{figure}.{ending}" for ending in ("svg", "pdf", "csv")} <= names
    digest = load_experiment(invented.folder, invented.key_folders).receipt_set_digest.encode()
    for name, body in written[0].items():
        if not name.endswith(".ids.txt"):
            assert digest in body, f"{name} does not name its receipts"
    assert b"<dc:date>" not in written[0]["arms_by_cell.svg"]
    assert b"CreationDate" not in written[0]["arms_by_cell.pdf"]


def test_no_write_writes_nothing(invented: Invented, tmp_path: Path) -> None:
    arguments = ("--receipts", str(invented.folder), "--out", str(tmp_path / "out"), "--no-write")
    output = run_module(invented, "analysis.tables", *arguments)
    assert "Decoding speed" in output and "[min–max]" in output
    assert not (tmp_path / "out").exists()


def test_decode_table_states_reps_band_and_lossless_count(invented: Invented) -> None:
    spec = tables.decode_table(load_experiment(invented.folder, invented.key_folders))
    assert [row[:2] for row in spec.printed()][:2] == [
        ["verbatim-copy", "ar"],
        ["verbatim-copy", "null-ar"],
    ]
    by_arm = {(row[0], row[1]): row for row in spec.printed()}
    assert by_arm["verbatim-copy", "chain-k16"][5] == "faster"
    assert by_arm["verbatim-copy", "chain-k16"][6] == "4/4"
    assert by_arm["verbatim-copy", "null-ar"][5] == NULL_ARM
    assert any("Null band (`null-ar` / `ar`, blocks: 8, reps: 4)" in note for note in spec.notes)


def test_tables_say_how_busy_the_host_was(invented: Invented) -> None:
    """Catches a load that reference jobs, or jobs that are not used, enter."""
    experiment = load_experiment(invented.folder, invented.key_folders)
    loads = [float(receipt.host["load_average"]) for receipt, _ in experiment.measured()]
    assert 0 < len(loads) < len(experiment.receipts)
    words = f"median {median(loads):.2f}, maximum {max(loads):.2f} over jobs."
    for spec in (tables.decode_table(experiment), tables.base_table(experiment)):
        note = next(note for note in spec.notes if note.startswith("4 reps"))
        assert "(2 cores)" in note and note.endswith(words)
    first, *others = experiment.receipts
    assert first.position.role == "reference"
    silent = [msgspec.structs.replace(receipt, host={"num_cores": 2}) for receipt in others]
    unknown = replace(experiment, receipts=(first, *silent))
    assert not load_words(unknown), "no job that is used noted its load"
    assert "Load" not in " ".join(tables.decode_table(unknown).notes)
    one = replace(experiment, receipts=(first, *silent[:-1], others[-1]))
    assert load_words(one)[0].endswith(f"noted by 1 of {len(loads)} jobs.")


def test_one_rep_says_that_it_resolves_little(invented: Invented, tmp_path: Path) -> None:
    recipe = Recipe(reps=1, cells=("chat",))
    folder = build_experiment(tmp_path / "one", invented.identity, recipe)
    experiment = load_experiment(folder, invented.key_folders)
    spec = tables.decode_table(experiment)
    assert any("resolves little" in note for note in spec.notes)
    assert any("not established" in note for note in spec.notes)
    assert {row[5] for row in spec.printed()} == {"—", "no verdict"}
    names = {path.name.split(".")[-1] for path in figures.write_figures(experiment, tmp_path)}
    assert names == FIGURE_ENDINGS - {"txt"}, "few receipts are named in the metadata"
    assert experiment.measured()[0][1].encode() in (tmp_path / "arms_by_cell.svg").read_bytes()


def test_experiment_without_a_used_job_still_makes_tables(
    invented: Invented, tmp_path: Path
) -> None:
    recipe = Recipe(reps=1, cells=("chat",))
    folder = build_experiment(tmp_path / "none", invented.identity, recipe)
    shutil.rmtree(folder / "receipts")
    (folder / "receipts").mkdir()
    experiment = load_experiment(folder, invented.key_folders)
    shown = {spec.name: spec.printed() for spec in tables.all_tables(experiment)}
    decode, acceptance, exclusions = (
        shown[name] for name in ("decode", "acceptance", "exclusions")
    )
    assert decode[0] == ["chat", "ar", "—", "—", "—", "—", "0/1"]
    assert len(decode) == len(acceptance) == 6
    assert len(exclusions) == 7
    with pytest.raises(ReceiptError, match="nothing to draw"):
        figures.write_figures(experiment, tmp_path)


def test_numbers_carry_their_receipts(invented: Invented, tmp_path: Path) -> None:
    experiment = load_experiment(invented.folder, invented.key_folders)
    numbers.write_numbers(experiment, tmp_path / "numbers.json")
    document = json.loads((tmp_path / "numbers.json").read_text())
    number = document["numbers"]["chat.ar.decode_tok_per_s.median"]
    assert number["unit"] == "tokens/s" and len(number["receipt_ids"]) == 4
    assert set(number["receipt_ids"]) <= set(experiment.receipt_ids)
    assert float(document["numbers"]["all.chain-k16.over.ar.ratio"]["value"]) > 1


def test_arm_slots_do_not_move() -> None:
    assert in_reading_order(["zeta", "null", "ar", "alpha"]) == ["ar", "null", "alpha", "zeta"]
    assert slot_of("ar", ["ar"]) == slot_of("ar", ["ar", "null", "zeta"])
    assert slot_of("null", ["null"]).is_hollow
    assert slot_of("alpha", ["alpha", "zeta"]).marker != slot_of("zeta", ["alpha", "zeta"]).marker


def test_shapes_are_named_by_their_order_and_not_by_the_last_bits_of_a_float() -> None:
    """Catches a figure whose bytes depend on the processor that drew it."""

    def svg(clip: str, marker: str) -> str:
        return (
            f'<clipPath id="{clip}"/><path id="{marker}"/><g clip-path="url(#{clip})">'
            f'<use xlink:href="#{marker}"/></g><g id="axes_1"/><text>#{clip}</text>'
        )

    one, other = svg("p0123456789", "m00000000ff"), svg("pabcdefabcd", "m1111111111")
    counted = figure_file.with_counted_ids(one)
    assert counted.replace("#p0123456789<", "<") == figure_file.with_counted_ids(other).replace(
        "#pabcdefabcd<", "<"
    )
    assert counted == svg("p0", "m1").replace("#p0<", "#p0123456789<")


def test_pair_has_not_drifted() -> None:
    for name in pair.NOTEBOOKS:
        pair.check_pair(name)
        notebook = json.loads(pair.notebook_path(name).read_text())
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        assert not any(cell.get("outputs") for cell in notebook["cells"])


def test_drift_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pair.source_path("acceptance").read_text()
    committed = pair.notebook_path("acceptance").read_text()
    monkeypatch.setattr(pair, "NOTEBOOK_FOLDER", tmp_path)
    (tmp_path / "acceptance.py").write_text(source)
    (tmp_path / "acceptance.ipynb").write_text(committed)
    pair.check_pair("acceptance")
    (tmp_path / "acceptance.py").write_text(source.replace("# ## The tests", "# ## Tests"))
    with pytest.raises(ConfigError, match=r"acceptance\.ipynb is not what"):
        pair.check_pair("acceptance")


@pytest.mark.parametrize("name", pair.NOTEBOOKS)
def test_guard_names_the_parameters_of_its_notebook(name: str) -> None:
    path = pair.notebook_path(name)
    declared = set(papermill.inspect_notebook(str(path)))
    calls = [
        node
        for node in ast.walk(ast.parse(pair.source_path(name).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == refuse_unknown.__name__
    ]
    assert len(calls) == 1, "one guard a notebook"
    assert ast.literal_eval(calls[0].args[2]) == declared


def test_a_name_that_is_no_parameter_is_refused_with_the_valid_ones() -> None:
    before, names = {"sys"}, ["sys", "_", "receipts_dir", refuse_unknown.__name__]
    refuse_unknown(names, before, {"receipts_dir"})
    with pytest.raises(NameError, match=r"\['receipt_dir'\]; valid: \['receipts_dir'\]"):
        refuse_unknown([*names, "receipt_dir"], before, {"receipts_dir"})


def test_notebook_runs_under_papermill(invented: Invented, tmp_path: Path) -> None:
    out = tmp_path / "out.ipynb"
    # The path that the README gives, warnings and all.
    run_module(
        invented,
        "papermill",
        "analysis/acceptance.ipynb",
        str(out),
        *("-p", "receipts_dir", str(invented.folder)),
        *("-p", "ab_experiment", ""),
    )
    outputs = [
        output["data"]
        for cell in json.loads(out.read_text())["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "display_data"
    ]
    assert sum("image/png" in shown for shown in outputs) == 4
    reading = "".join("".join(shown.get("text/markdown", "")) for shown in outputs)
    assert "Arm `chain-k8`" in reading, "of the arms that draft the first"
    assert "Pre-registered level 0.05, Holm over " in reading
    assert "Power was not simulated" in reading and "No A/B was asked for" in reading


def test_misspelt_parameter_fails_under_papermill(invented: Invented, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"unknown parameters \['receipt_dir'\]"):
        run_module(
            invented,
            "papermill",
            "analysis/acceptance.ipynb",
            str(tmp_path / "out.ipynb"),
            "-p",
            "receipt_dir",
            str(invented.folder),
        )


def test_misspelt_parameter_fails_in_the_runner(invented: Invented, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out.ipynb"))
    with pytest.raises(RuntimeError, match="status 2: error: unknown parameter of acceptance"):
        run_module(invented, "analysis.notebook", "acceptance", "-p", "receipt_dir", "x", *out)
    assert not (tmp_path / "out.ipynb").exists()


def test_pre_registered_hypotheses_are_decided_by_the_tables_own_ratios(
    invented: Invented, tmp_path: Path
) -> None:
    """Catches a hypothesis that is dropped once the numbers are in, or judged by another rule."""
    texts = ["H1: verbatim gains.", "H2: nobody is slower.", "H4: lossless.", "Free text."]
    recipe = Recipe(reps=4, cells=("verbatim-copy", "chat"))
    folder = build_experiment(tmp_path / "pre", invented.identity, recipe)
    experiment = load_experiment(folder, invented.key_folders)
    plan = msgspec.structs.replace(experiment.plan, experiment="decode", hypotheses=texts)
    registered = replace(experiment, plan=plan)
    rows = outcomes(registered).set_index("hypothesis")
    assert list(rows.index) == texts
    assert rows.loc["Free text.", "outcome"] == NOT_EVALUATED
    ratios, _ = ratio_table(jobs_frame(registered), plan, "ar", registered.measured_arms())
    gains = ratios[(ratios["arm"] == "chain-k8") & (ratios["cell"] == "verbatim-copy")]
    expected = HOLDS if gains["low"].iloc[0] >= 5 else FAILS
    assert rows.loc[texts[0], "outcome"] == expected
    assert f"{gains['ratio'].iloc[0]:.2f}" in rows.loc[texts[0], "measured"]
    assert rows.loc[texts[2], "outcome"] == HOLDS
    receipts = list(registered.receipts)
    receipts[3] = msgspec.structs.replace(receipts[3], status="failed")
    spoiled = replace(registered, receipts=tuple(receipts))
    assert outcomes(spoiled).set_index("hypothesis").loc[texts[2], "outcome"] == FAILS
    one_rep = replace(registered, plan=msgspec.structs.replace(plan, reps=1))
    timed_need_reps = [NOT_EVALUATED, NOT_EVALUATED, HOLDS, NOT_EVALUATED]
    assert list(outcomes(one_rep)["outcome"]) == timed_need_reps, "ids are counted, not timed"
