"""The study of pauses on real hosts: every kind once a repetition, noops only where asked for."""

from __future__ import annotations

from itertools import product

import pytest
from rich.console import Console

from bench.studies import keepwarm
from bench.wan.netns_process import why_unavailable


def test_every_kind_is_timed_and_only_warm_pauses_have_noops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches noops in a cold pause, a pause that nobody made, and answers to noops."""
    if reason := why_unavailable():
        pytest.skip(reason)
    for name, value in (("SIZES", (2_000, 60_000)), ("IDLES_MS", (20, 400)), ("WARM_MS", 40)):
        monkeypatch.setattr(keepwarm, name, value)
    rows = keepwarm.measure("cubic", one_way_ms=2.0, rate_mbit=200.0, num_repeats=2, seed=1)
    kinds = [(row["size"], row["idle_ms"], row["keepwarm_ms"], row["rep"]) for row in rows]
    assert sorted(kinds) == sorted(product((2_000, 60_000), (20, 400), (0, 40), (0, 1)))
    for row in rows:
        assert row["took_ns"] >= 4_000_000, "there and back over 2 ms each way"
        assert (int(row["noops"]) > 0) == (row["keepwarm_ms"] > 0 and row["idle_ms"] == 400)
    console = Console(record=True, width=120)
    keepwarm.show(rows, console)
    assert "60000" in console.export_text()


@pytest.mark.parametrize("arguments", [["--controls", "vegas"], ["--repeats", "0"]])
def test_bad_arguments_say_what_is_allowed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert keepwarm.main(arguments) == 2
    assert "cubic, bbr" in capsys.readouterr().err
