"""What makes a streak policy pay: gains of known worlds, tables, figure and numbers alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import msgspec
import pytest

from analysis.figure_file import house_style, save
from analysis.iid import TESTS, IidResult
from analysis.load import Experiment
from analysis.streak_gains import (
    ADAPTIVE,
    CAUSES,
    COLUMNS,
    WORLDS,
    Gain,
    Replays,
    gains,
    replays_of,
)
from analysis.streak_products import (
    draw_streaks,
    gain_numbers,
    gain_rows,
    streak_numbers,
    streak_table,
    streak_tables,
)
from analysis.streak_study import (
    pooled_table,
    spread_frame,
    spread_table,
    stratified_results,
    study_streak_numbers,
    taken_out,
)
from analysis.study import study_result
from analysis.study_records import StudyRecord
from bench.schema import Study
from engine.errors import ConfigError, ReceiptError
from tests.analysis.altered import load_invented
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import build_experiment, make_identity
from tests.analysis.plan_builder import Recipe, make_plan

FIXED = {4: 1.0, 8: 1.0, 32: 1.2}  # draft length -> speed, of every world
HETEROGENEITY = dict(zip(WORLDS, (1.5, 1.5, 1.5, 1.0, 1.0), strict=True))
STREAKS = dict(zip(WORLDS, (1.5, 1.5, 1.0, 1.5, 1.0), strict=True))
BOTH = dict(zip(WORLDS, (2.4, 2.0, 1.6, 1.25, 1.0), strict=True))
NS = 10**12


def record_of(
    speeds: dict[str, dict[str, float]], cells: int = 3, texts: tuple[str, ...] = ("planner",)
) -> StudyRecord:
    """By policy and world, its speed over that of 8 drafts; the second cell is twice as slow."""
    settings: dict[str, str | int] = {
        "ring": "planner",
        "profile": "wan-275",
        "num_stages": 4,
        "overlap": "0.8",
        "texts": ",".join(texts),
        "bits_arm": "accept-k8",
    }
    for name in texts:
        counts = {"requests": cells, "bits": 150, "ones": 30}
        settings |= {f"{name}.{key}": value for key, value in counts.items()}
        rates = {"clumping": "1.100000", "after_accept": "0.840000", "after_refusal": "0.350000"}
        settings |= {f"{name}.{key}": value for key, value in rates.items()}
    study = Study(
        study="streaks",
        created="2026-01-01T00:00:00Z",
        build=make_plan(Recipe()).build,
        host={},
        settings=settings,
        rows=[row for name in texts for row in rows_of(name, speeds, cells)],
    )
    return StudyRecord(study, "abc123")


def rows_of(
    texts: str, speeds: dict[str, dict[str, float]], cells: int
) -> Iterator[dict[str, str | int]]:
    """Two depths alike; one draw of what is recorded, two of every other world."""
    for world, draw, cell in product(WORLDS, range(2), range(cells)):
        if world == "recorded" and draw:
            continue
        contenders = [("fixed-k", length, speed) for length, speed in FIXED.items()]
        contenders += [(policy, 8, by[world]) for policy, by in speeds.items()]
        for (policy, length, speed), depth in product(contenders, (1, 4)):
            yield {
                "texts": texts,
                "world": world,
                "seed": draw,
                "cell": f"cell-{cell}",
                "receipt": f"{texts}-{cell}",
                "ones": 10 * cell,
                "runs": 5,
                "policy": policy,
                "draft_len": length,
                "draft_len_max": 64,
                "depth": depth,
                "decode_ns": round((1 + cell % 2) * NS / speed),
                "output_tokens": 51,
                "rounds": 9,
            }


def known(speeds: dict[str, float]) -> StudyRecord:
    return record_of({"two-state": speeds, "streak": speeds})


def with_rows(found: StudyRecord, rows: list[dict[str, str | int]]) -> StudyRecord:
    return StudyRecord(msgspec.structs.replace(found.record, rows=rows), found.record_id)


def over_base(found: StudyRecord, policy: str = "streak") -> dict[str, float]:
    replays = replays_of(found)[0]
    by_name = gains(replays, policy, replays.base_of(policy))
    return {name: gain.middle for name, gain in by_name.items()}


@pytest.mark.parametrize(
    ("speeds", "heterogeneity", "streaks", "both", "beyond"),
    [
        (HETEROGENEITY, 1.5, 1.0, 1.0, 1.0),
        (STREAKS, 1.0, 1.5, 1.0, 1.0),
        # 2.4/1.25 and 1.6/1; 2.4/1.6 and 1.25/1; 2.4/(1.6 · 1.25); 2.4/2
        (BOTH, math.sqrt(1.92 * 1.6), math.sqrt(1.5 * 1.25), 1.2, 1.2),
    ],
)
def test_causes_of_known_worlds(
    speeds: dict[str, float], heterogeneity: float, streaks: float, both: float, beyond: float
) -> None:
    """Catches a cause that is told by the wrong worlds, or the wrong way round."""
    found = over_base(known(speeds))
    assert {world: found[world] for world in WORLDS} == pytest.approx(speeds)
    assert found["heterogeneity"] == pytest.approx(heterogeneity)
    assert found["streaks"] == pytest.approx(streaks)
    assert found["both"] == pytest.approx(both)
    assert found["beyond"] == pytest.approx(beyond)
    product = found["heterogeneity"] * found["streaks"] * found["pooled"]
    assert product == pytest.approx(found["recorded"])
    assert set(found) == {*WORLDS, *CAUSES}


def test_the_best_fixed_length_is_one_for_all_requests_of_a_world() -> None:
    """Catches the best of each request, which no fixed length is, and the base taken for it."""
    found = known(HETEROGENEITY)
    (replays, _) = replays_of(found)
    assert replays.best_fixed("recorded") == 32
    assert [replays.contenders[idx][1] for idx in replays.base_of("streak")] == [8]
    best = gains(replays, "streak", replays.fixed)
    assert best["recorded"].middle == pytest.approx(1.5 / 1.2)
    assert best["heterogeneity"].middle == pytest.approx(1.5)
    rows = [dict(row) for row in found.record.rows]
    for row in rows:  # 4 drafts are quicker by half on one request, slower than 32 over all
        if row["policy"] == "fixed-k" and row["draft_len"] == 4 and row["cell"] == "cell-0":
            row["decode_ns"] = NS * 2 // 3
    (replays, _) = replays_of(with_rows(found, rows))
    assert replays.best_fixed("pooled") == 32
    assert gains(replays, "streak", replays.fixed)["pooled"].middle == pytest.approx(1 / 1.2)


def test_intervals_are_over_requests_and_draws() -> None:
    """Catches a bootstrap that never draws, one that changes, and one that a request makes up."""
    found = known(BOTH)
    (replays, _) = replays_of(found)
    flat = gains(replays, "streak", replays.fixed)["recorded"]
    assert flat.low == pytest.approx(flat.middle) == pytest.approx(flat.high)
    rows = [dict(row) for row in found.record.rows]
    for row in rows:
        if row["policy"] == "streak" and row["cell"] == "cell-2" and row["world"] == "shuffled":
            row["decode_ns"] = int(row["decode_ns"]) // (2 + int(row["seed"]))
    (replays, _) = replays_of(with_rows(found, rows))
    spread = gains(replays, "streak", replays.base_of("streak"))
    middle = 1.6 * (2 * 3) ** (1 / 6)
    assert spread["shuffled"].middle == pytest.approx(middle)
    assert spread["shuffled"].low < 0.9 * middle and spread["shuffled"].high > 1.1 * middle
    assert spread["recorded"].low == pytest.approx(spread["recorded"].high)
    assert spread["streaks"].low < spread["streaks"].middle < spread["streaks"].high
    again = gains(replays, "streak", replays.base_of("streak"))
    assert again == spread
    (one, _) = replays_of(record_of({"streak": BOTH}, cells=1))
    alone = gains(one, "streak", one.fixed)["recorded"]
    assert alone.middle == pytest.approx(2.0) and math.isnan(alone.low) and math.isnan(alone.high)


def test_a_record_says_what_its_worlds_are_like() -> None:
    """Catches the spread of draws in place of requests', and runs of a contender a row."""
    (replays, _) = replays_of(known(BOTH))
    assert (replays.texts, replays.depth, len(replays.receipt_ids)) == ("planner", 1, 3)
    for world in WORLDS:  # rates 0, 0.2 and 0.4 of 50 drafts; 5 runs each
        assert replays.spread[world] == pytest.approx(math.sqrt(0.08 / 3))
        assert replays.runs[world] == pytest.approx(0.1)


def _without_a_world(rows: list[dict[str, str | int]]) -> list[dict[str, str | int]]:
    return [row for row in rows if row["world"] != "pooled"]


def _without_a_row(rows: list[dict[str, str | int]]) -> list[dict[str, str | int]]:
    return rows[:-1]


def _twice(rows: list[dict[str, str | int]]) -> list[dict[str, str | int]]:
    return [*rows[:-1], rows[-3]]


def _without_a_column(rows: list[dict[str, str | int]]) -> list[dict[str, str | int]]:
    return [*rows[:-1], {name: value for name, value in rows[-1].items() if name != "runs"}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without_a_world, "world 'pooled': 0 rows"),
        (_without_a_row, "needed: one for each of 5 contenders and 3 requests"),
        (_twice, "needed: one for each"),
        (_without_a_column, "rows lack runs"),
    ],
)
def test_a_record_that_lacks_something_is_refused(change: object, reason: str) -> None:
    """Catches a mean over fewer requests than the other worlds'."""
    found = known(BOTH)
    with pytest.raises(ReceiptError, match=reason):
        replays_of(with_rows(found, change([dict(row) for row in found.record.rows])))  # type: ignore[operator]


def test_the_table_prints_every_world_and_cause() -> None:
    """Catches a policy in another's column, and a cause that is called by a world's name."""
    found = record_of({"two-state": HETEROGENEITY, "streak": STREAKS}, texts=("planner", "other"))
    table = streak_table(found)
    assert len(table.rows) == 2 * 2 * (len(WORLDS) + len(CAUSES))
    made = table.to_markdown()
    assert "two-state / its base [95 %] | streak / its base [95 %] | two-state / best" in made
    printed = [[cell.split(" [")[0] for cell in row] for row in table.printed()]
    ratios = ["1.500", "1.500", "1.250", "1.250"]
    assert printed[0] == ["planner", "1", "as recorded", "0.16", "0.10", "32", *ratios]
    causes = {(row[0], row[1], row[2]): row[3:] for row in printed}
    dashes, both = ["—"] * 3, ["1.500", "1.000"]
    assert causes["other", "4", "factor of heterogeneity"] == [*dashes, *both, *both]
    both.reverse()
    assert causes["other", "4", "factor of streaks"] == [*dashes, *both, *both]
    assert "planner: 3 requests, 30 of 150 drafts right, the chain accepts 0.84" in made
    assert "abc123" in table.provenance and table.name == "streaks"


def test_numbers_are_the_tables() -> None:
    """Catches a number of another row, and an interval's end taken for its middle."""
    found = record_of({"two-state": HETEROGENEITY, "streak": STREAKS})
    numbers, rows = gain_numbers(found), gain_rows(found)
    assert len(numbers) == len(rows) * 4 * 3
    assert numbers["streaks.planner.d1.streak.over.base.streaks"].value == "1.500"
    assert numbers["streaks.planner.d4.two-state.over.best.recorded"].value == "1.250"
    for row in rows.to_dict("records"):
        name = f"streaks.planner.d{row['depth']}.streak.over.base.{row['name']}"
        assert numbers[f"{name}.low"].value == f"{row['streak_base_low']:.3f}"
        assert numbers[name].receipt_ids == ["abc123"]


def test_the_figure_shows_each_world_of_each_panel(tmp_path: Path) -> None:
    """Catches panels of one depth drawn into the other's, and points that are not in the CSV."""
    found = record_of({"two-state": HETEROGENEITY, "streak": STREAKS}, texts=("planner", "other"))
    for row in found.record.rows:  # one of the four places of the grid is told by two-state, too
        if row["texts"] == "other" and row["policy"] == "two-state":
            row["decode_ns"] = int(row["decode_ns"]) // int(row["depth"])
    with house_style():
        drawing = draw_streaks(found)
        paths = save(drawing, "streaks", "study streaks", tmp_path)
    panels = drawing.figure.get_axes()
    assert len(panels) == 8
    titles = [axes.get_title("left") for axes in panels[:4]]
    assert titles[:2] == ["planner texts\nspeed / its base", "planner texts\nspeed / best fixed"]
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels == list(WORLDS.values())
    faster = (1, 1, 1, 1, 1, 1, 4, 4)
    for axes, scale, times in zip(panels, (1, 1.2, 1, 1.2) * 2, faster, strict=True):
        drawn = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines()}
        assert drawn["two-state"] == pytest.approx(
            [times * each / scale for each in HETEROGENEITY.values()]
        )
        assert drawn["streak"] == pytest.approx([each / scale for each in STREAKS.values()])
    assert len(drawing.points) == 2 * 2 * 4 * len(WORLDS)
    assert drawing.receipt_ids == ["abc123"] and all(path.stat().st_size for path in paths)


CELLS = ("verbatim-copy", "code-edit", "quote", "summary", "reasoning", "chat")


def invent(root: Path, output_len: int = 60, cells: tuple[str, ...] = CELLS) -> Experiment:
    """An acceptance experiment, one job a prompt, each prompt its own group."""
    identity = make_identity(root / "home")
    recipe = Recipe(
        experiment="acceptance",
        arms=("accept-k8",),
        base_arm="",
        reps=1,
        output_len=output_len,
        cells=cells,
    )
    folder = build_experiment(root / "experiment", identity, recipe)
    return load_invented(Invented(folder, root / "home", identity))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return invent(tmp_path_factory.mktemp("streaks"))


def test_pooled_and_stratified_results_stand_side_by_side(study: Experiment) -> None:
    """Catches a reference set under another's name, and an excess over another mean."""
    table = pooled_table(study)
    rows, found = table.rows, stratified_results(study)
    assert list(dict.fromkeys(rows["test"])) == [test for test in TESTS if test != "context_e"]
    strata = rows[rows["test"] == "stream_runs"]["strata"]
    assert list(strata) == ["all drafts together", "within groups", "within requests"]
    by_place = {(row.strata, row.test): row for row in found}
    pooled, own = by_place["pooled", "stream_runs"], by_place["by request", "stream_runs"]
    assert isinstance(pooled.result, IidResult) and isinstance(own.result, IidResult)
    left = float(own.result.statistic) - own.expected
    share = 1 - left / (float(pooled.result.statistic) - pooled.expected)
    assert taken_out(found, own) == pytest.approx(share)
    assert math.isnan(taken_out(found, pooled))
    shown = rows[(rows["test"] == "stream_runs") & (rows["strata"] == "within requests")].iloc[0]
    assert shown["taken_out"] == pytest.approx(100 * share)
    assert own.result == study_result(study, "accept-k8").results["stream_runs"]
    assert table.name == "pooled_stratified" and "Holm" in table.to_markdown()


def test_the_spread_is_of_all_requests_and_of_each_group(study: Experiment) -> None:
    """Catches a group's counts in another's row, and a fit of a group without spread."""
    frame = spread_frame(study)
    bits = study_result(study, "accept-k8").study.bits
    whole = frame.iloc[0]
    assert whole["group"] == "all groups" and whole["requests"] == 6
    assert whole["tested"] == sum(map(len, bits)) and whole["rho"] > 0.05 > whole["ratio_p"]
    assert whole["rate"] == pytest.approx(sum(map(sum, bits)) / whole["tested"])
    assert frame["tested"][1:].sum() == whole["tested"]
    assert frame["rho"][1:].isna().all()  # one request a group
    made = spread_table(study).to_markdown()
    assert "| all groups | 6 |" in made and "| chat | 1 |" in made and "| — | — |" in made


def test_the_studys_numbers_are_its_tables(study: Experiment) -> None:
    """Catches a number of another stratum, and receipts that it does not rest on."""
    numbers, whole = study_streak_numbers(study), spread_frame(study).iloc[0]
    assert numbers["overdispersion.rho"].value == f"{whole['rho']:.3f}"
    assert numbers["overdispersion.dispersion"].value == f"{whole['dispersion']:.1f}"
    for row in stratified_results(study):
        name = f"streaks.{row.strata.replace(' ', '_')}.{row.test}"
        assert isinstance(row.result, IidResult)
        assert numbers[f"{name}.p"].value == f"{row.result.p:.6f}"
        share = taken_out(stratified_results(study), row)
        assert (f"{name}.taken_out" in numbers) == math.isfinite(share)
    assert len(numbers["overdispersion.lag"].receipt_ids) == 6


def test_texts_too_short_to_test_say_so(tmp_path: Path) -> None:
    """Catches a verdict of no test, and a spread of nothing."""
    short = invent(tmp_path, output_len=8, cells=CELLS[:2])
    rows = pooled_table(short).rows
    assert set(rows["verdict"]) == {"not applicable"} and rows["taken_out"].isna().all()
    with pytest.raises(ReceiptError, match="leaves no request a tested draft"):
        spread_frame(short)


def test_one_request_has_no_spread_and_no_number_of_it(tmp_path: Path) -> None:
    """Catches a number that is none."""
    numbers = study_streak_numbers(invent(tmp_path, cells=("summary",)))
    assert "overdispersion.lag" in numbers and "overdispersion.rho" not in numbers
    assert all(number.value != "nan" for number in numbers.values())


def test_a_vanishing_p_is_printed_as_a_bound(
    study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a p that is said to be 0."""
    frame = spread_frame(study).assign(ratio_p=0.0)
    monkeypatch.setattr("analysis.streak_study.spread_frame", lambda *_: frame)
    assert spread_table(study).to_markdown().count("| < 1e-99 |") == len(frame)


def test_all_products_come_together(study: Experiment) -> None:
    found = known(BOTH)
    names = [table.name for table in streak_tables(found, study)]
    assert names == ["streaks", "pooled_stratified", "overdispersion"]
    assert set(streak_numbers(found, study)) == {
        *gain_numbers(found),
        *study_streak_numbers(study),
    }


def test_an_arm_of_two_lengths_has_no_such_tests(two_state_invented: Invented) -> None:
    """Catches rounds of two lengths dealt as if they were of one."""
    with pytest.raises(ConfigError, match="one draft length"):
        stratified_results(load_invented(two_state_invented), "two-state")


def test_the_rows_of_a_record_are_those_of_the_study() -> None:
    """Catches columns that this room expects and `bench.studies.streaks` does not write."""
    assert all(set(row) == set(COLUMNS) for row in known(BOTH).record.rows)
    assert isinstance(replays_of(known(BOTH))[0], Replays) and ADAPTIVE == ("two-state", "streak")
    assert Gain(1.0, 0.9, 1.1).low == 0.9
