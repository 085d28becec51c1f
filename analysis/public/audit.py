"""The audit of the public receipts: `python -m analysis.public.audit --folder DIR [--out paper]`.

Guarantees: tables and numbers are made from the five pinned files alone, the same bytes every time;
without the folder what is committed can still be told to be whole and made from those files. Must
never know what a claim says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from analysis import folders
from analysis.public.claim import VERDICTS, Claim
from analysis.public.claims import all_claims
from analysis.public.files import PINNED, PublicReceipts, read_public, set_digest
from analysis.public.numbers import EXPERIMENT, write_numbers
from analysis.public.tables import all_tables
from engine.errors import LonghaulError

TABLES, NUMBERS = f"tables/{EXPERIMENT}", f"numbers/{EXPERIMENT}.json"
TABLE_NAMES = ("sources", "decode", "law", "split", "attestation", "claims")
ENDINGS = ("md", "csv", "typ")


class NumbersHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of numbers says that it was made from."""

    experiment: str
    receipt_set_digest: str


def is_product(name: str) -> bool:
    """Whether a path below `paper/` is the audit's, which is remade only where the files are."""
    return name == NUMBERS or name.startswith(f"{TABLES}/")


def make(public: PublicReceipts, claims: Sequence[Claim], out: Path) -> list[Path]:
    """Write every table and number below a folder that is laid out as `paper/`."""
    written = [path for spec in all_tables(public, claims) for path in spec.write(out / TABLES)]
    write_numbers(public, claims, out / NUMBERS)
    return [*written, out / NUMBERS]


def committed_faults(paper: Path, pins: Mapping[str, str] = PINNED) -> list[str]:
    """What is wrong with the committed products as far as it shows without the public files.

    Every product is there and nothing else is, and each names the digest of the pinned set. That
    they are what the files make only a rebuild can tell.
    """
    digest = set_digest(pins)
    wanted = {f"{TABLES}/{name}.{ending}" for name in TABLE_NAMES for ending in ENDINGS}
    found = {str(path.relative_to(paper)) for path in (paper / TABLES).rglob("*") if path.is_file()}
    faults = [f"{name}: is no product of the audit" for name in sorted(found - wanted)]
    for name in sorted({*wanted, NUMBERS}):
        path = paper / name
        if not path.is_file():
            faults.append(f"{name}: is missing; run the audit with the folder of public receipts")
        elif _digest_of(path) != digest:
            faults.append(f"{name}: was not made from the pinned public files ({digest[:16]})")
    return faults


def _digest_of(path: Path) -> str:
    """The digest of the set that a product names; empty if it names none."""
    if path.suffix == ".json":
        try:
            return msgspec.json.decode(path.read_bytes(), type=NumbersHead).receipt_set_digest
        except msgspec.MsgspecError:
            return ""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.rpartition("receipt set ")[2].removesuffix("-->").strip()


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.public.audit", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help=f"holds {', '.join(PINNED)}, as published"
    )
    parser.add_argument(
        "--out", type=Path, default=folders.REPOSITORY / "paper", help="default: paper/"
    )
    options = parser.parse_args(arguments)
    try:
        public = read_public(options.folder)
        claims = all_claims(public)
        for path in make(public, claims, options.out):
            print(f"wrote {path}")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    verdicts = [claim.verdict for claim in claims]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    print(f"{len(verdicts)} published claims: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
