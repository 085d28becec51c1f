"""Table and figure of pauses: cold and warm side by side, from verified records only."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from analysis.figure_file import house_style
from analysis.figures import write_study_figures
from analysis.keepwarm import draw_pauses, pause_table, pauses
from analysis.study_records import StudyRecord, study_records
from analysis.tables import study_record_tables
from bench.receipt import write_signed
from bench.schema import Study
from engine.errors import ReceiptError
from engine.trust.identity import Identity
from tests.analysis.conftest import Invented
from tests.analysis.plan_builder import Recipe, make_plan

SIZES, IDLES_MS, REPS = (8_000, 400_000), (50, 1500), 3


def took_ms(control: str, size: int, idle_ms: int, keepwarm_ms: int, rep: int) -> int:
    """Cubic pays for a long pause with a large frame, unless it is kept warm."""
    pays = control == "cubic" and idle_ms > 300 and not keepwarm_ms
    return 60 + size // 10_000 + (100 if pays else 0) + rep


def record(created: str = "2026-01-01T00:00:00Z") -> Study:
    kinds = product(("cubic", "bbr"), SIZES, IDLES_MS, (0, 100), range(REPS))
    return Study(
        study="keepwarm",
        created=created,
        build=make_plan(Recipe()).build,
        host={},
        settings={
            "one_way_ms": "27.5",
            "rate_mbit": "200.0",
            "repeats": REPS,
            "seed": 1,
            "opening_frames": 2,
        },
        rows=[
            {
                "control": control,
                "size": size,
                "idle_ms": idle_ms,
                "keepwarm_ms": keepwarm_ms,
                "rep": rep,
                "noops": idle_ms // keepwarm_ms if keepwarm_ms else 0,
                "took_ns": took_ms(control, size, idle_ms, keepwarm_ms, rep) * 1_000_000,
            }
            for control, size, idle_ms, keepwarm_ms, rep in kinds
        ],
    )


def test_cold_and_warm_of_one_kind_stand_side_by_side() -> None:
    """Catches sides that are swapped, kinds that are mixed, and a mean in place of a median."""
    table = pauses(StudyRecord(record(), "id"))
    assert len(table) == 2 * len(SIZES) * len(IDLES_MS)
    for _, row in table.iterrows():
        kind = (row["control"], row["size"], row["idle_ms"])
        for name, keepwarm_ms in (("cold", 0), ("warm", 100)):
            assert row[name] == took_ms(*kind, keepwarm_ms, 1)
            assert row[f"{name}_low"] == took_ms(*kind, keepwarm_ms, 0)
            assert row[f"{name}_high"] == took_ms(*kind, keepwarm_ms, REPS - 1)
        assert row["saved"] == (100 if kind[0] == "cubic" and kind[2] > 300 else 0)
        assert row["noops"] == row["idle_ms"] // 100 and row["repeats"] == REPS


def test_the_table_names_its_record_and_settings() -> None:
    spec = pause_table(StudyRecord(record(), "abc123"))
    assert "abc123" in spec.to_markdown() and "27.5 ms one way" in spec.to_markdown()
    assert "| cubic | 400000 | 1500 | 201.0 [200.0–202.0] | 101.0 [100.0–102.0] | 100.0 |" in (
        spec.to_markdown()
    )


def test_a_panel_a_size_and_control() -> None:
    with house_style():
        drawing = draw_pauses(StudyRecord(record(), "id"))
    panels = drawing.figure.get_axes()
    assert len(panels) == 2 * len(SIZES)
    assert [axes.get_title("left") for axes in panels[: len(SIZES)]] == ["8 KB", "400 KB"]
    assert drawing.receipt_ids == ["id"]


def test_the_newest_verified_record_is_used(
    invented: Invented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an unsigned record that is printed, and an old one in place of the new."""
    monkeypatch.setenv("LONGHAUL_HOME", str(invented.home))
    records, out = tmp_path / "records", tmp_path / "out"
    assert study_record_tables(records) == [] and write_study_figures(out, records) == []
    (records / "keepwarm").mkdir(parents=True)
    for year in (2026, 2027):
        path = records / "keepwarm" / f"{year}.json"
        write_signed(path, record(f"{year}-01-01T00:00:00Z"), invented.identity)
    newest = study_records("keepwarm", records)[0]
    assert newest.record.created.startswith("2027")
    (table,) = study_record_tables(records)
    assert newest.record_id in table.provenance
    written = write_study_figures(out, records)
    assert {path.suffix for path in written} == {".svg", ".pdf", ".csv"}
    assert newest.record_id in written[0].read_text()
    stranger = Identity.load_or_create(tmp_path / "stranger" / "x.key")
    write_signed(records / "keepwarm" / "2028.json", record("2028-01-01T00:00:00Z"), stranger)
    with pytest.raises(ReceiptError):
        study_record_tables(records)
