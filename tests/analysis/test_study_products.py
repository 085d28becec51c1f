"""The acceptance study's counts, words, tables, figures, and its committed simulations."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from scipy import stats

from analysis import figures, study_tables
from analysis.curves import first_rep
from analysis.determinism import CONTEXT, PLACE, agreement_of, determinism_table, drafts_with_fates
from analysis.figure_file import house_style
from analysis.iid import TESTS, IidResult, NotApplicable, Study, holm
from analysis.iid_power import EFFECTS, PowerInputs, SizeInputs
from analysis.iid_simulation import Text
from analysis.load import Experiment, load_experiment, rounds_frame
from analysis.power import (
    POWER_NAME,
    SIZE_NAME,
    STUDY_ARM,
    power_folder,
    power_inputs,
    power_table,
    read_result,
    study_inputs,
    write_result,
)
from analysis.published import asked_for_more, published_table
from analysis.requests import Request
from analysis.study import MATCH_CONTEXTS, StudyResult, match_context, study_result
from analysis.study_counts import by_match, by_previous, by_prompt, spread_of
from analysis.study_numbers import study_numbers
from analysis.study_rules import UNITS, evidence_words, p_words, verdict_in_words
from engine.errors import ConfigError
from tests.analysis.altered import load_invented, measured_of, only_cells, outcome_of
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import build_experiment
from tests.analysis.plan_builder import Recipe


def request_of(
    *rounds: tuple[int, int, int], cell: str = "a", bits: tuple[int, ...] = ()
) -> Request:
    """A request made by hand."""
    return Request(
        cell=cell,
        group=cell,
        receipt_id=f"id of {cell}",
        rounds=rounds,
        committed_lens=tuple(a + 1 for _, a, _ in rounds),
        bits=bits,
        is_whole=True,
        ends_unforeseen=False,
    )


def test_match_contexts_are_those_of_match_e() -> None:
    assert MATCH_CONTEXTS == ("0", "1–2", "3–7", "≥ 8")
    assert [match_context(length) for length in (0, 1, 2, 3, 7, 8, 90)] == [
        *("0", "1–2", "1–2", "3–7", "3–7", "≥ 8", "≥ 8")
    ]


def test_counts_by_hand() -> None:
    """Catches a cut round counted as refused, k = 0 counted, and a context carried over."""
    first = request_of((8, 8, 9), (0, 0, 0), (8, 3, 1), (8, 0, 0), (2, 2, 4))
    second = request_of((8, 0, 0), (8, 8, 8))
    matches = by_match([first, second]).set_index("context")
    assert matches["rounds"].to_dict() == {"0": 2, "1–2": 1, "3–7": 1, "≥ 8": 2}
    assert matches["tested"].to_dict() == {"0": 2, "1–2": 4, "3–7": 2, "≥ 8": 16}
    assert matches["accepted"].to_dict() == {"0": 0, "1–2": 3, "3–7": 2, "≥ 8": 16}
    assert matches["full"].to_dict() == {"0": 0.0, "1–2": 0.0, "3–7": 1.0, "≥ 8": 1.0}
    assert matches.loc["1–2", ["low", "high"]].tolist() == pytest.approx([0.1941, 0.9937], abs=1e-4)
    before = by_previous([first, second]).set_index("context")
    assert before["rounds"].to_dict() == {
        "first round": 2,
        "a = 0": 2,
        "0 < a < k": 1,
        "a = k": 1,
    }
    assert before["accepted"].to_dict() == {
        "first round": 8,
        "a = 0": 10,
        "0 < a < k": 0,
        "a = k": 3,
    }


def test_prompts_and_their_spread() -> None:
    bits = [(1,) * 9 + (0,), (0,) * 5 + (1,) * 5, ()]
    requests = [request_of(cell=cell, bits=b) for cell, b in zip("abc", bits, strict=True)]
    prompts = by_prompt(requests)
    assert prompts[["cell", "tested", "accepted", "rate"]].to_numpy().tolist() == [
        ["a", 10, 9, 0.9],
        ["b", 10, 5, 0.5],
    ]
    spread = spread_of(prompts)
    assert spread.observed == pytest.approx(0.2)
    assert spread.expected == pytest.approx((0.7 * 0.3 / 10) ** 0.5)


def result_with(p_values: dict[str, float], power: pd.DataFrame | None) -> StudyResult:
    """A study whose tests gave these p-values; the others do not apply."""
    results = {
        test: IidResult(1, p_values[test], "exact integers")
        if test in p_values
        else NotApplicable("invented")
        for test in TESTS
    }
    study = Study("fixed", [], [], [], 8)
    return StudyResult([], study, results, holm(p_values, 0.01), {}, 0.01, power)


def powers(by_effect: dict[tuple[str, float], float]) -> pd.DataFrame:
    """Power of `depth_rise`, 0.01 where nothing is said."""
    rows = [
        (family, effect, "depth_rise", by_effect.get((family, effect), 0.01))
        for family, effects in EFFECTS.items()
        for effect in effects
    ]
    return pd.DataFrame(rows, columns=["family", "effect", "test", "power"])


def test_not_rejected_never_stands_alone() -> None:
    """Catches 'consistent with i.i.d.' from a test that could not have found anything."""

    def words(p: float, power: pd.DataFrame | None) -> str:
        return verdict_in_words(result_with({"depth_rise": p}, power), "depth_rise")

    able = powers({("within rounds", 0.2): 0.8, ("within rounds", 0.4): 0.99})
    assert words(0.5, able) == "not rejected; would have found 0.2 logit a draft within rounds"
    assert words(0.001, able).startswith("rejected: drafts deep in a round")
    half = powers({("within rounds", 0.4): 0.6})
    assert words(0.5, half) == "no verdict: power 0.60 at best, below 0.8 at every effect"
    bent = powers({("within rounds", 0.1): 0.9, ("within rounds", 0.4): 0.99})
    assert "0.4 logit" in words(0.5, bent), "0.2 is not found, so neither is 0.1 on"
    blind = powers({("within rounds", 0.4): 0.49})
    assert words(0.5, blind).startswith("uninformative")
    assert words(0.5, None).startswith("no verdict")
    result = result_with({"depth_rise": 0.5}, able)
    assert verdict_in_words(result, "full_excess") == "not applicable: invented"
    assert set(UNITS) == set(EFFECTS)


def test_p_in_words() -> None:
    assert evidence_words(6.6e307) == "> 1e307" and evidence_words(1234.5) == "1.23e+03"
    assert p_words(IidResult(1, 0.0123, "exact integers")) == "0.012"
    assert p_words(IidResult(1, 1e-300, "e-value")) == "< 1e-99"
    assert p_words(NotApplicable("x")) == "–"


@pytest.fixture(scope="module")
def study(invented: Invented, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    recipe = Recipe(
        experiment="acceptance",
        cells=("quote", "code-edit", "mixed", "summary", "reasoning", "chat"),
        arms=(STUDY_ARM,),
        base_arm="",
        reps=1,
        output_len=80,
        hypotheses=("H1: H0 is rejected.", "H2: match_e rejects.", "H3: lossless."),
    )
    folder = build_experiment(
        tmp_path_factory.mktemp("study") / "experiment", invented.identity, recipe
    )
    return load_experiment(folder, invented.key_folders)


def test_rules_follow_the_tests(study: Experiment) -> None:
    """Six cells of α from 0.3 to 0.95 reject one α; one cell's invented coin does not."""
    found = outcome_of(study)
    assert (found["H1"], found["H3"]) == ("holds", "holds")
    assert "between_requests" in measured_of(study)["H1"]
    assert found["H2"] == "does not hold", "every invented match is of one length"
    alone = only_cells(study, "summary")
    assert outcome_of(alone)["H1"] == "not evaluated", "its power was not simulated"
    assert measured_of(alone)["H1"].startswith("0 of 6 tests reject")


def test_an_unfinished_study_is_not_judged(study: Experiment) -> None:
    nothing = replace(study, receipts=(), receipt_ids=())
    assert outcome_of(nothing) == dict.fromkeys(("H1", "H2", "H3"), "not evaluated")


def test_study_tables_and_figures(study: Experiment) -> None:
    spec = study_tables.tests_table(study)
    assert [row[0] for row in spec.printed()] == list(TESTS)
    assert any("Power was not simulated" in note for note in spec.notes)
    groups = study_tables.group_tests_table(study)
    assert len(groups.printed()) == 6 and all(len(row) == 7 for row in groups.printed())
    names = set(figures.figures_of(study))
    assert {"acceptance_by_prompt", "acceptance_by_match"} <= names and "power" not in names
    with house_style():
        for name, draw in figures.figures_of(study).items():
            drawing = draw(study)
            assert drawing.receipt_ids and not drawing.points.empty, name


def test_numbers_are_those_of_the_tables(study: Experiment, invented: Invented) -> None:
    result = study_result(study, STUDY_ARM)
    found = study_numbers(study)
    assert found["study.requests"].value == "6"
    assert len(found["study.p.depth_rise"].receipt_ids) == 6
    assert found["study.p.depth_rise"].value == f"{result.results['depth_rise'].p:.6f}"
    assert {f"study.depth.{depth}" for depth in range(1, 9)} <= set(found)
    assert not study_numbers(load_experiment(invented.folder, invented.key_folders))


def test_a_simulation_of_other_requests_is_not_used(study: Experiment) -> None:
    """Catches power of one study printed beside the tests of another."""
    result = study_result(study, STUDY_ARM)
    assert result.power is None
    inputs = power_inputs(result.requests, result.study, 0.01 / 6)
    assert inputs.level == pytest.approx(0.01 / 6)
    assert len(inputs.texts) == 6 and inputs.draft_len == 8


def test_power_needs_a_fixed_draft_length(two_state_invented: Invented) -> None:
    experiment = load_invented(two_state_invented)
    result = study_result(experiment, "two-state")
    with pytest.raises(ConfigError, match="K drafts"):
        power_inputs(result.requests, result.study, 0.01)


def test_results_are_read_only_for_their_inputs(tmp_path: Path) -> None:
    table = powers({})
    path = write_result(table, "ab" * 32, tmp_path / "power.csv")
    assert read_result(path, "ab" * 32).equals(table)
    with pytest.raises(ConfigError, match=r"other inputs.*make power"):
        read_result(path, "cd" * 32)
    assert read_result(tmp_path / "size.csv", "ab" * 32) is None


def test_an_interrupted_simulation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an hour lost to an interrupt, and rows of other inputs taken for these."""
    monkeypatch.setattr("analysis.power.ROWS_FOLDER", tmp_path)
    monkeypatch.setattr("analysis.power.EFFECTS", {"between prompts": (0.0, 0.2)})
    texts = tuple(Text(20 + idx, idx % 2 == 0) for idx in range(5))
    inputs = PowerInputs(texts, 4, 0.7, 0.05, num_studies=6, num_draws=39)
    with ProcessPoolExecutor(1) as pool:
        first = power_table(inputs, pool)
        assert set(first["studies"]) == {6} and len(list(tmp_path.iterdir())) == 2
        row = next(path for path in tmp_path.iterdir() if path.stem.endswith(" 0.2"))
        row.write_bytes(msgspec.json.encode(dict.fromkeys(TESTS, 3)))
        again = power_table(inputs, pool)
        assert (again[again["effect"] == 0.2]["rejected"] == 3).all(), "read, not made again"
        other = PowerInputs(texts, 4, 0.7, 0.04, num_studies=6, num_draws=39)
        power_table(other, pool)
    assert len(list(tmp_path.iterdir())) == 4


def test_committed_power_belongs_to_the_committed_study() -> None:
    """Catches receipts, effects or rules that changed after `make power`."""
    inputs = study_inputs("", STUDY_ARM)
    table = read_result(power_folder(is_committed=True) / POWER_NAME, inputs.digest())
    if table is None:
        pytest.skip("nothing committed yet: the tables say so")
    counts = table.groupby(["family", "test"])["effect"].agg(set)
    assert {family for family, _ in counts.index} == set(EFFECTS)
    assert {test for _, test in counts.index} == set(TESTS)
    assert all(found == set(EFFECTS[family]) for (family, _), found in counts.items())
    assert table["studies"].min() >= 2000
    null = table[table["effect"] == 0]
    tails = stats.binom.sf(null["rejected"] - 1, null["studies"], inputs.level)
    assert tails.min() > 0.001 / len(null), "a true null is rejected more often than the level"


def test_committed_sizes_are_within_their_limit() -> None:
    """No test rejects a true null beyond its level and three standard errors, on any design."""
    table = read_result(power_folder(is_committed=True) / SIZE_NAME, SizeInputs().digest())
    if table is None:
        pytest.skip("nothing committed yet: the tables say so")
    inputs = SizeInputs()
    assert table["studies"].min() >= 1000
    designs = table.groupby(["k_min", "k_max", "depth", "alpha"]).ngroups
    assert designs == len(inputs.rules) * len(inputs.depths) * len(inputs.alphas)
    beyond = table[table["size"] > table["limit"]]
    assert beyond.empty, beyond.to_string()


def test_determinism_by_hand() -> None:
    rows = [
        # one place, the same context in two reps and two arms: refused each time
        *(("c", 5, 5, 2, "ngram", arm, rep, False) for arm in ("x", "y") for rep in (0, 1)),
        # another proposal for the place after it: its fate differs
        ("c", 6, 5, 2, "ngram", "x", 0, True),
        ("c", 6, 5, 2, "ngram", "x", 1, True),
        ("c", 6, 6, 3, "ngram", "y", 0, False),
        # a place that one job tested
        ("c", 9, 9, 1, "ngram", "y", 0, True),
    ]
    drafts = pd.DataFrame(rows, columns=[*CONTEXT, "arm", "rep", "accepted"])
    assert agreement_of(drafts, CONTEXT, "rep") == (3, 3)
    assert agreement_of(drafts, CONTEXT, "arm") == (1, 1)
    assert agreement_of(drafts, PLACE, "arm") == (1, 2)


def test_determinism_and_published_tables(two_state_invented: Invented) -> None:
    """The invented text decides every fate by position, whatever the arm."""
    experiment = load_invented(two_state_invented)
    drafts = drafts_with_fates(experiment)
    alike, total = agreement_of(drafts, PLACE, "arm")
    assert alike == total > 100
    spec = determinism_table(experiment)
    assert [row[0] for row in spec.printed()][-1] == "all cells"
    assert spec.printed()[-1][3] == f"{alike}/{total}"
    table = published_table(experiment)
    rows = {row[0]: row for row in table.printed()}
    assert set(rows) == {cell.name for cell in experiment.plan.cells}
    upsized, rounds = map(int, rows["verbatim-long"][7].split("/"))
    assert 0 < upsized <= rounds
    frames = first_rep(rounds_frame(experiment))
    job = frames[(frames["arm"] == "two-state") & (frames["cell"] == "verbatim-long")]
    sent_more = job["sent_len"] > 8
    asked = asked_for_more(job, up=16)
    assert sent_more.any() and not sent_more.all()
    assert asked[sent_more].all(), "nobody drafts more than was asked for"
    assert "118.0 → 171.5" in table.notes[0]
