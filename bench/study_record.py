"""Signed records of measurements that are not jobs: kernels, sealing, links.

Guarantees: a record is canonical, signed JSON beside its signature, named by its own bytes, and
holds what was read off a clock or counted, as integers and strings: whoever reads it computes the
mean. A record is never written over. Must never know what a measurement means.

    receipts/studies/<study>/<id>.json, <id>.sig.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.host import CHECKOUT_DIR, build_facts, flat_host_facts
from bench.receipt import canonical_bytes, parse_document, receipt_id, write_signed
from bench.schema import Study
from bench.store import now_rfc3339
from engine.trust.identity import Identity, longhaul_home

STUDIES_DIR = CHECKOUT_DIR / "receipts" / "studies"
OUT_DIR = CHECKOUT_DIR / "build" / "studies"  # one's own, like one's own experiments

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


def write_study(study: Study, out_dir: Path = OUT_DIR, identity: Identity | None = None) -> Path:
    """Sign and write a record; returns its path.

    Args:
        out_dir: the study's own folder is made in it; `STUDIES_DIR` for what is to be committed.
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
