"""An index of the evidence: `python -m analysis.html_index [--out build/index.html]`.

One page over the figures, tables and numbers of `paper/` and the receipts below `receipts/`, to be
opened from disk. Guarantees: nothing is loaded from anywhere else; links are relative to the page;
the same files give the same bytes; what is missing is said on the page and here. Must never know a
product's making: it reads what others wrote.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis import folders
from analysis.index.anchors import Links
from analysis.index.contents import read_contents
from analysis.index.page import render
from analysis.index.shown import Contents
from engine.errors import LonghaulError


def write_index(out: Path) -> Contents:
    """Write the page; returns what is on it.

    Raises:
        ReceiptError: a file of `receipts/keys` is no public key.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    links = Links(out.parent, folders.REPOSITORY)
    contents = read_contents(folders.REPOSITORY, links)
    out.write_text(render(contents, links), encoding="utf-8", newline="\n")
    return contents


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.html_index", description=__doc__)
    parser.add_argument("--out", type=Path, help="default: build/index.html")
    options = parser.parse_args(arguments)
    out = options.out or folders.REPOSITORY / "build" / "index.html"
    try:
        contents = write_index(out)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for gap in contents.gaps:
        print(f"missing: {gap}")
    print(
        f"wrote {out}: {len(contents.numbers)} numbers, "
        f"{len(contents.receipts.receipts)} receipts and records"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
