"""What a folder of study records must satisfy.

Guarantees: every record is signed, canonical, fits the schema and stands under the name of its own
bytes in the folder of its study; nothing else lies there. Separate from the code that writes
records. Must never know what was measured.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from bench.check_files import CheckedFolder
from bench.schema import Study

RECORD_NAME = re.compile(r"([0-9a-f]{16})(\.sig)?\.json")


def holds_records(folder: Path) -> bool:
    """Is this a study's folder, and no experiment's?"""
    if (folder / "plan.json").exists():
        return False
    return any(RECORD_NAME.fullmatch(path.name) for path in folder.iterdir())


def check_study(files: CheckedFolder) -> int:
    """Check every record of a folder into `files.findings`; returns how many there are."""
    num_records = 0
    for path in sorted(files.folder.iterdir()):
        match = RECORD_NAME.fullmatch(path.name)
        if match is None or path.is_dir():
            files.add(path.name, "foreign", "does not belong in a study's folder")
        elif match[2]:
            if not path.with_name(f"{match[1]}.json").is_file():
                files.add(path.name, "foreign", "signs a record that is not there")
        else:
            num_records += 1
            _check_record(files, path.name, match[1])
    return num_records


def _check_record(files: CheckedFolder, name: str, record_id: str) -> None:
    study, body = files.read_signed(name, Study)
    true_id = hashlib.sha256(body).hexdigest()[: len(record_id)]
    if record_id != true_id:
        files.add(name, "misplaced", f"its bytes make it {true_id}.json")
    if study is None:
        return
    if study.study != files.folder.resolve().name:
        files.add(name, "misplaced", f"a record of study {study.study!r}")
    if not study.rows:
        files.add(name, "rows", "holds no measurement")
    columns = {frozenset(row) for row in study.rows}
    if len(columns) > 1:
        files.add(name, "rows", "its rows have other columns than each other")
