"""Signed records of measurements that are not jobs: kernels, sealing, links.

Guarantees: a record is canonical, signed JSON beside its signature, named by its own bytes, and
holds what was read off a clock or counted, as integers and strings: whoever reads it computes the
mean. A record is never written over, and only where somebody asked for it; one that is read had its
signature checked. Must never know what a measurement means.

    <folder>/<study>/<id>.json, <id>.sig.json    (committed ones in receipts/studies)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.host import CHECKOUT_DIR, build_facts, flat_host_facts
from bench.receipt import canonical_bytes, load_signed, parse_document, receipt_id, write_signed
from bench.schema import Study
from bench.store import now_rfc3339
from engine.errors import ReceiptError
from engine.trust.identity import Identity, load_public_keys, longhaul_home

COMMITTED_KEYS = CHECKOUT_DIR / "receipts" / "keys"

Columns = Mapping[str, str | int]


def make_study(study: str, settings: Columns, rows: Sequence[Columns]) -> Study:
    """What was measured here, now, by this build.

    Args:
        study: name of the study, lower case with hyphens; names its folder.
        settings: what was fixed: sizes, counts, names.
        rows: one a measurement, in the order they were taken, all with the same columns.
    """
    return Study(
        study=study,
        created=now_rfc3339(),
        build=build_facts(),
        host=flat_host_facts(),
        settings=dict(settings),
        rows=[dict(row) for row in rows],
    )


def write_study(study: Study, out_dir: Path, identity: Identity | None = None) -> Path:
    """Sign and write a record; returns its path.

    Args:
        out_dir: the study's own folder is made in it.
        identity: signs; None: this user's own key.

    Raises:
        ReceiptError: a value that a record cannot hold; nothing was written.
    """
    body = canonical_bytes(study)
    parse_document(body, Study)
    path = out_dir / study.study / f"{receipt_id(body)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    signer = identity or Identity.load_or_create(longhaul_home() / "keys" / "bench.key")
    write_signed(path, study, signer)
    return path


def load_study(path: Path, study: str, columns: Sequence[str]) -> Study:
    """Read a record, signed by a committed key or one of this user's.

    Args:
        study: the study that it must be of.
        columns: what each of its rows must have.

    Raises:
        ReceiptError: named by file: its signature does not hold, it is of another study, or it
            lacks what is asked for.
    """
    keys = load_public_keys(COMMITTED_KEYS, longhaul_home() / "keys")
    record, _ = load_signed(path, Study, keys)
    if record.study != study:
        raise ReceiptError(f"{path}: is a record of study {record.study!r}, not of {study!r}")
    lacking = [name for name in columns if any(name not in row for row in record.rows)]
    if lacking or not record.rows:
        wanted = ", ".join(lacking or columns)
        raise ReceiptError(f"{path}: lacks a row, or a column of one: {wanted}")
    return record
