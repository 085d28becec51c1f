"""The only reader of signed study records (`bench.study_record`) in the analysis and paper rooms.

Guarantees: a record is used only if its signature by a known key holds over its exact bytes; the
newest comes first. Must never know what a study measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analysis import folders
from bench.receipt import load_signed, receipt_id
from bench.schema import Study
from engine.errors import ReceiptError
from engine.trust.identity import load_public_keys

PRODUCTS = "studies"  # their tables and figures lie in a folder of this name


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A verified record and its id."""

    record: Study
    record_id: str

    @property
    def provenance(self) -> str:
        """What a product says that it was made from."""
        return f"study {self.record.study}; record {self.record_id}"


def study_records(study: str, folder: Path | None = None) -> list[StudyRecord]:
    """All records of a study, the committed ones or those in a folder, the newest first.

    Raises:
        ReceiptError: one is damaged or signed by nobody known.
    """
    keys = load_public_keys(*folders.default_key_folders())
    found = []
    for path in sorted(((folder or folders.COMMITTED / "studies") / study).glob("*.json")):
        if not path.name.endswith(folders.SIGNATURE_ENDING):
            record, body = load_signed(path, Study, keys)
            found.append(StudyRecord(record, receipt_id(body)))
    return sorted(found, key=lambda found: found.record.created, reverse=True)


def newest_record(study: str, folder: Path | None = None) -> StudyRecord:
    """The newest record of a study.

    Raises:
        ReceiptError: there is none, or one is damaged or signed by nobody known.
    """
    found = study_records(study, folder)
    if not found:
        where = folder or folders.COMMITTED / "studies"
        raise ReceiptError(f"{where / study}: holds no record of study {study!r}")
    return found[0]
