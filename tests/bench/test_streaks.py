"""The study of streaks: what it replays, what it records, and causes that are known beforehand."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.streak_gains import ADAPTIVE, COLUMNS, Gain, gains, replays_of
from analysis.study_records import StudyRecord
from bench.receipt import load_signed
from bench.schema import Study
from bench.streak_cases import (
    Texts,
    cases_of,
    fitted_settings,
    seeded_generator,
    texts_of,
)
from bench.streak_worlds import WORLDS
from bench.studies import streaks
from bench.study_record import make_study
from bench.traces import Recorded, Trace
from engine.errors import ReceiptError
from engine.trust.identity import load_public_keys, longhaul_home
from tests.bench.test_replay import SHAPE, trace_of
from tests.bench.test_streak_worlds import chain_of
from tests.bench.test_traces import ROOT, seal

__all__ = ["seal"]  # a fixture


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made_up(rates: tuple[float, ...], lag: float, length: int) -> Texts:
    """Eight requests of these rates in turn, each a chain of this autocorrelation."""
    generator = np.random.default_rng(5)
    traces = [replace(trace_of(idx, length + 1), cell=f"cell-{idx}") for idx in range(8)]
    streams = [chain_of(generator, length, rates[idx % len(rates)], lag) for idx in range(8)]
    return Texts("made-up", tuple(traces), tuple(streams))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One depth and two fixed lengths, the adaptive policies' base among them."""
    kept = [one for one in streaks.CONTENDERS if one.policy in ADAPTIVE or one.draft_len in (8, 32)]
    monkeypatch.setattr(streaks, "CONTENDERS", tuple(kept))
    monkeypatch.setattr(streaks, "DEPTHS", (1,))


def gains_of(texts: Texts, policy: str) -> dict[str, Gain]:
    rows = [row for case in cases_of(texts, 8, 3) for row in streaks.replay_case(SHAPE, case)]
    (replays,) = replays_of(StudyRecord(make_study("streaks", {}, rows), "id"))
    return gains(replays, policy, replays.base_of(policy))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("policy", ADAPTIVE)
def test_requests_that_differ_are_found_to_make_it_pay(policy: str) -> None:
    """Catches a decomposition that gives streaks what rates of requests bring."""
    found = gains_of(made_up((0.15, 0.97), 0.0, 160), policy)
    assert found["heterogeneity"].middle > 1.15
    assert abs(found["streaks"].middle - 1) < 0.04
    assert found["recorded"].middle > 1.15 > 1.01 > found["pooled"].middle


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("policy", ADAPTIVE)
def test_streaks_are_found_to_make_it_pay(policy: str) -> None:
    """Catches a decomposition that gives requests what streaks within them bring."""
    found = gains_of(made_up((0.75,), 0.85, 300), policy)
    assert found["streaks"].middle > 1.07
    assert abs(found["heterogeneity"].middle - 1) < 0.025
    assert found["equalised"].middle > 1.07 > 1.03 > found["shuffled"].middle


def test_the_cases_are_every_request_in_every_draw() -> None:
    """Catches a world without draws, a recorded one drawn twice, and fewer requests than asked."""
    texts = made_up((0.3, 0.9), 0.5, 40)
    cases = list(cases_of(texts, 20, 1))
    draws = Counter((case.world, case.draw) for case in cases)
    assert set(draws) == {("recorded", 0)} | {
        (world, draw) for world in WORLDS if world != "recorded" for draw in range(3)
    }
    assert set(draws.values()) == {8}
    assert [case.bits for case in cases[:8]] == list(texts.streams)
    assert [case.trace for case in cases[8:16]] == list(texts.traces)


def test_a_draw_hangs_on_its_seed_alone() -> None:
    """Catches worlds that change with other worlds, with more draws, or not with the seed."""
    texts = made_up((0.3, 0.9), 0.5, 40)

    def drawn(num_requests: int, seed: int) -> dict[tuple[str, int, str], tuple[int, ...]]:
        return {
            (case.world, case.draw, case.trace.cell): case.bits
            for case in cases_of(texts, num_requests, seed)
        }

    few_draws, more, other = drawn(8, 1), drawn(16, 1), drawn(8, 2)
    assert few_draws.items() <= more.items()
    assert few_draws["shuffled", 0, "cell-0"] != more["shuffled", 1, "cell-0"]
    assert few_draws["shuffled", 0, "cell-0"] != few_draws["chained", 0, "cell-0"]
    seeds = [(1, "t", "shuffled", 0), (1, "t", "chained", 0), (1, "u", "shuffled", 0)]
    assert len({seeded_generator(*seed).random() for seed in seeds}) == 3
    changed = {key[0] for key, bits in few_draws.items() if other[key] != bits}
    assert changed == set(WORLDS) - {"recorded"}


def test_a_row_is_one_replay_of_one_contender() -> None:
    """Catches a lever that does not reach the replay, and counts that are not the world's."""
    (case, *_) = cases_of(made_up((0.97,), 0.0, 90), 8, 1)
    rows = streaks.replay_case(SHAPE, case)
    assert all(set(row) == set(COLUMNS) for row in rows)
    kinds = [(row["policy"], row["draft_len"], row["depth"]) for row in rows]
    assert len(set(kinds)) == len(kinds) == 2 * len(streaks.CONTENDERS)
    for row in rows:
        assert (row["ones"], row["output_tokens"]) == (sum(case.bits), 91)
        assert row["receipt"] == case.trace.receipt_id and row["cell"] == "cell-0"
        assert 0 < int(row["rounds"]) < 90
    rounds = {kind: int(row["rounds"]) for kind, row in zip(kinds, rows, strict=True)}
    assert rounds["fixed-k", 4, 1] > rounds["fixed-k", 8, 1] > rounds["fixed-k", 64, 1]
    assert rounds["fixed-k", 8, 1] > rounds["two-state", 8, 1] > rounds["streak", 8, 1]
    times = {kind: int(row["decode_ns"]) for kind, row in zip(kinds, rows, strict=True)}
    assert times["fixed-k", 4, 1] > 1.5 * times["fixed-k", 4, 4]
    lengths = {row["policy"]: row["draft_len_max"] for row in rows}
    assert (lengths["two-state"], lengths["streak"]) == (16, 64)


def test_the_printed_speeds_are_over_the_best_length_and_over_the_base() -> None:
    """Catches a ratio upside down, and a best length chosen request by request."""
    spent = {  # two requests; ns
        ("fixed-k", 8): (100, 400),
        ("fixed-k", 32): (200, 800 // 9),
        ("two-state", 8): (100, 100),
    }
    rows: list[streaks.Row] = [
        {"texts": "t", "world": "w", "depth": 4, "policy": policy, "draft_len": length}
        | {"decode_ns": nanoseconds}
        for (policy, length), both in spent.items()
        for nanoseconds in both
    ]
    best = math.sqrt(200 * (800 // 9)) / 100
    assert streaks.speeds(rows) == [("t", "w", "4", "two-state", f"{best:.3f}", "2.000")]


def test_a_run_is_recorded_and_gives_the_same_rows_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches rows that hang on which process was first, and a record that cannot be read."""
    monkeypatch.setattr(streaks, "DEPTHS", (4,))
    folder, link = ROOT / "receipts" / "seal", tmp_path / "link"
    link.symlink_to(folder)  # one folder, named in two ways
    words = ["--ring", str(folder), "--texts", str(link), "--requests", "4", "--record"]
    records = []
    for name in ("one", "two"):
        assert streaks.main([*words, str(tmp_path / name)]) == 0
        shown = capsys.readouterr().out
        assert "best fixed" in shown and "equalised" in shown
        path = Path(shown.split("recorded: ")[1].strip())
        keys = load_public_keys(longhaul_home() / "keys")
        records.append(load_signed(path, Study, keys)[0])
    assert records[0].rows == records[1].rows and records[0].settings == records[1].settings
    rows, settings = records[0].rows, records[0].settings
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert len(rows) == 4 * len(WORLDS) * len(streaks.CONTENDERS)
    assert {row["texts"] for row in rows} == {"seal"} == {settings["texts"], settings["ring"]}
    assert (settings["profile"], settings["num_stages"]) == ("wan-275", 4)
    assert settings["seal.requests"] == 4
    positions = sum({str(row["cell"]): int(row["output_tokens"]) - 1 for row in rows}.values())
    assert settings["seal.bits"] == positions
    assert replays_of(StudyRecord(records[0], "id"))[0].depth == 4


def test_texts_are_those_of_the_receipts_with_the_studys_drafter(seal: Recorded) -> None:
    """Catches requests out of order, and settings that are not the worlds'."""
    texts = texts_of(seal)
    assert [trace.cell for trace in texts.traces] == [cell.name for cell in seal.plan.cells]
    for trace, bits in zip(texts.traces, texts.streams, strict=True):
        assert len(bits) == len(trace.output_ids) - 1
    by_cell = {
        trace.cell: sum(bits) / len(bits)
        for trace, bits in zip(texts.traces, texts.streams, strict=True)
    }
    assert by_cell["verbatim"] > 0.9 > 0.5 > by_cell["chat"]
    settings = fitted_settings(texts)
    assert settings["seal.ones"] == sum(map(sum, texts.streams))
    assert float(settings["seal.after_accept"]) > float(settings["seal.after_refusal"]) > 0


def test_a_text_of_one_token_is_no_request(seal: Recorded) -> None:
    """Catches a request without a position, which no drafter is asked about."""
    traces: list[Trace] = seal.traces()

    class Short(Recorded):
        def traces(self, numeric_config: str = "f32") -> list[Trace]:
            return [replace(trace, output_ids=trace.output_ids[:1]) for trace in traces[:kept]] + (
                traces[kept:]
            )

    kept = 1
    assert texts_of(Short(seal.plan, seal.receipts)).traces == tuple(traces[1:])
    kept = len(traces)
    with pytest.raises(ReceiptError, match="no text to replay"):
        texts_of(Short(seal.plan, seal.receipts))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--requests", "0"], "allowed: 1 request or more"),
        (["--seed", "-1"], "seed 0 or more"),
        (["--texts", "{seal}", "{again}"], "more than one run of experiment seal"),
        (["--ring", "{nowhere}"], "plan.json"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a run of nothing, of rows that cannot be told apart, and a traceback."""
    again = tmp_path / "again"
    shutil.copytree(ROOT / "receipts" / "seal", again)
    places = {"seal": ROOT / "receipts" / "seal", "again": again, "nowhere": tmp_path / "none"}
    seal_ring = [] if "--ring" in words else ["--ring", str(places["seal"])]
    assert streaks.main([*seal_ring, *(word.format(**places) for word in words)]) == 2
    assert reason in capsys.readouterr().err
