"""Numbers of study records: those of their tables, none without a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import attack_table, head_products, keepwarm, peers_products
from analysis.record_numbers import record_numbers
from analysis.study_records import newest_record, study_records


@pytest.fixture(scope="module")
def numbers() -> dict[str, str]:
    return {name: number.value for name, number in record_numbers().items()}


def test_no_record_no_number(tmp_path: Path) -> None:
    assert record_numbers(tmp_path) == {}


def test_the_head_s_numbers_are_its_table_s(numbers: dict[str, str]) -> None:
    for row in head_products.trials(newest_record(head_products.EVALUATION)).itertuples():
        assert numbers[f"head.{row.group}.{row.shape}.first"] == f"{row.first:.3f}"
        assert numbers[f"head.{row.group}.{row.shape}.tokens"] == f"{row.tokens:.2f}"


def test_a_ring_that_does_not_cheat_is_no_attack(numbers: dict[str, str]) -> None:
    """Catches the honest row counted as an attack that was not found."""
    rows = newest_record(attack_table.STUDY).record.rows
    tried = [row for row in rows if row["attack"] != "nothing"]
    assert numbers["attacks.tried"] == str(len(tried))
    assert numbers["attacks.caught"] == str(sum(row["found_by"] != "nothing" for row in tried))
    assert numbers["attacks.named"] == str(sum(row["named"] == row["cheater"] for row in tried))


def test_the_fuzzer_s_inputs_are_those_of_all_its_records(numbers: dict[str, str]) -> None:
    records = study_records("transport-fuzz")
    assert len(records) > 1
    inputs = sum(int(row["inputs"]) for each in records for row in each.record.rows)
    assert numbers["fuzz.inputs"] == str(inputs)


def test_peers_and_pauses_are_their_tables_rows(numbers: dict[str, str]) -> None:
    for row in peers_products.speeds(newest_record(peers_products.STUDY)).itertuples():
        assert numbers[f"peers.{row.cell}.{row.side}.tok_per_s"] == f"{row.tok_per_s:.1f}"
        assert numbers[f"peers.{row.cell}.{row.side}.over.ar"] == f"{row.ratio:.2f}"
    for row in keepwarm.pauses(newest_record(keepwarm.STUDY)).itertuples():
        name = f"keepwarm.{row.control}.{row.size}.{row.idle_ms}"
        assert numbers[f"{name}.cold"] == f"{row.cold:.1f}"
        assert numbers[f"{name}.warm"] == f"{row.warm:.1f}"


def test_every_number_rests_on_a_record() -> None:
    assert all(number.receipt_ids and number.unit for number in record_numbers().values())
