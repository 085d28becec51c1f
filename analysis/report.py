"""The report: `python -m analysis.report [--out FOLDER]` makes `paper/report.pdf`.

Guarantees: it is made from `paper/report.typ` and the committed figures, tables and numbers alone;
the fonts are the compiler's own and no date is in it, so that equal sources give equal bytes; prose
that the linter refuses is not printed. Must never know a receipt.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import typst

from analysis.folders import REPOSITORY
from analysis.product_kind import Kind
from analysis.report_lint import faults
from engine.errors import LonghaulError, ReceiptError

PAPER = REPOSITORY / "paper"
SOURCES = ("report.typ", "report_style.typ", "references.bib")
PDF = "report.pdf"


def build(out: Path, sources: Path = PAPER) -> Path:
    """Compile the report inside a folder that holds figures, tables and numbers.

    Args:
        out: where they lie, and where the PDF goes; sources are copied there if they are not.
        sources: where `report.typ` lies.

    Raises:
        ReceiptError: the linter found faults, or the compiler did.
    """
    for name in SOURCES:
        if out.resolve() != sources.resolve():
            (out / name).write_bytes((sources / name).read_bytes())
    found = faults((out / SOURCES[0]).read_text(encoding="utf-8"), out)
    if found:
        raise ReceiptError("report.typ says what no receipt does:\n" + "\n".join(found))
    try:
        body = typst.compile(str(out / SOURCES[0]), root=str(out), ignore_system_fonts=True)
    except typst.TypstError as error:
        raise ReceiptError(f"report.typ does not compile: {error}") from error
    (out / PDF).write_bytes(body)
    return out / PDF


def _of_products(paper: Path) -> list[Path]:
    return [build(paper)]


KIND = Kind(places=(PDF,), of_products=_of_products)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=__doc__)
    parser.add_argument("--out", type=Path, default=PAPER, help="default: paper/")
    options = parser.parse_args(arguments)
    try:
        print(f"wrote {build(options.out)}")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
