"""Everything that lies under `paper/`: `python -m analysis.products [KIND…] [--out FOLDER]`.

Guarantees: the table below is the one place where a kind of product is registered; what makes
products and what compares them with the committed ones both read it. Must never know what a product
shows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from analysis import figures, folders, numbers, report, tables
from analysis.product_kind import Kind, make_products
from engine.errors import LonghaulError, unknown_name

KINDS: Mapping[str, Kind] = {
    "figures": figures.KIND,
    "tables": tables.KIND,
    "numbers": numbers.KIND,
    "report": report.KIND,
}
# Made of others' receipts, which are not in this repository, so not made with the rest.
APART = ("tables/public", "numbers/public.json")


def bring_apart(out: Path) -> None:
    """Copy what is made apart from the committed paper into another one, whose report prints it."""
    committed = folders.REPOSITORY / "paper"
    for place in APART if out.resolve() != committed.resolve() else ():
        for path in (committed / place, *(committed / place).rglob("*")):
            if path.is_file():
                copy = out / path.relative_to(committed)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.products", description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; none: all of them")
    parser.add_argument("--out", type=Path, help="laid out as paper/, which is the default")
    options = parser.parse_args(arguments)
    try:
        for name in options.kinds:
            if name not in KINDS:
                raise unknown_name("kind of product", name, KINDS)
        kinds = [KINDS[name] for name in options.kinds or KINDS]
        paper = options.out or folders.REPOSITORY / "paper"
        bring_apart(paper)
        for path in make_products(kinds, paper):
            print(f"wrote {path}", flush=True)
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
