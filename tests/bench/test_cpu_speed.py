"""The comparison on one processor: reading llama.cpp, ratios. No speed is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.llama_cpp import llama_command, llama_rates
from bench.studies.cpu_speed import summary
from engine.errors import ConfigError
from engine.model.weights import prepare_model

TABLE = (
    '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 910.5}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 88}]'
)


def put_program(folder: Path, body: str) -> None:
    program = folder / "llama-bench"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_llama_is_found_on_the_path_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches swapped rates, and options that do not reach the program."""
    files = prepare_model()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert llama_command(files, 2, 512, 64) is None
    put_program(tmp_path, f"""printf '%s' "$*" > {tmp_path}/asked; echo '{TABLE}'""")
    command = llama_command(files, 2, 512, 64)
    assert command is not None
    assert llama_rates(command) == (910.5, 88.0)
    asked = (tmp_path / "asked").read_text()
    assert str(files.source_path) in asked
    for option in ("-p 512", "-n 64", "-t 2", "-o json"):
        assert option in asked


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo broken >&2; exit 3", "ended with 3: broken"),
        ("echo no table", "printed no table"),
        ('echo \'[{"n_prompt": 512, "n_gen": 0, "avg_ts": 1}]\'', "printed no table"),
        ("echo 5", "printed no table"),
    ],
)
def test_a_failing_llama_is_named(tmp_path: Path, body: str, message: str) -> None:
    put_program(tmp_path, body)
    with pytest.raises(ConfigError, match=message):
        llama_rates([str(tmp_path / "llama-bench")])


def test_ratios_are_medians_within_a_repetition() -> None:
    """Catches a ratio of medians, or one of the wrong sides."""
    rows = [(100.0, 200.0, 10.0, 30.0, 50.0), (200.0, 200.0, 20.0, 20.0, 200.0)]
    rows.append((100.0, 300.0, 10.0, 10.0, 90.0))
    shown = summary(rows)
    assert shown["prefill_tok_per_s"] == {"transformers": 100.0, "engine": 200.0}
    assert shown["decode_tok_per_s"] == {"transformers": 10.0, "engine": 20.0}
    assert shown["verify_positions_per_s"] == 90.0
    ratios = (shown["prefill_ratio"], shown["decode_ratio"], shown["verify_ratio"])
    assert ratios == (2.0, 1.0, 9.0) and shown["llama_cpp"] is None
    beside = summary([(*row, 900.0, 80.0) for row in rows])
    assert beside == {**shown, "llama_cpp": {"prefill": 900.0, "decode": 80.0}}
