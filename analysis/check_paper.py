"""Whether `paper/` is what its receipts make: `python -m analysis.check_paper`.

Guarantees: everything is made anew in a folder of its own and compared byte by byte, both ways: a
file that differs, one that is not made and one that is not committed are each named. Must never
know what a product shows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from analysis import folders, readme
from analysis.product_kind import Kind, make_products
from analysis.products import KINDS, bring_apart
from analysis.public import audit
from engine.errors import LonghaulError


def differences(kinds: Collection[Kind], made: Path, committed: Path) -> Iterator[str]:
    """What of the committed products of these kinds is not as it is made."""
    theirs, ours = _files(kinds, committed), _files(kinds, made)
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in theirs:
            yield f"{name}: is made and not committed"
        elif name not in ours:
            yield f"{name}: is committed and not made"
        elif theirs[name].read_bytes() != ours[name].read_bytes():
            yield f"{name}: differs from what its receipts make"


def _files(kinds: Collection[Kind], top: Path) -> dict[str, Path]:
    places = [top / place for kind in kinds for place in kind.places]
    found = [path for place in places for path in (place, *place.rglob("*")) if path.is_file()]
    return {path.relative_to(top).as_posix(): path for path in found}


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    argparse.ArgumentParser(prog="python -m analysis.check_paper", description=__doc__).parse_args(
        arguments
    )
    try:
        with tempfile.TemporaryDirectory() as made:
            kinds = KINDS.values()
            bring_apart(Path(made))  # the audit below, not a rebuild, tells what is wrong there
            list(make_products(kinds, Path(made)))
            found = list(differences(kinds, Path(made), folders.REPOSITORY / "paper"))
        found += audit.committed_faults(folders.REPOSITORY / "paper")
        found += readme.differences()
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in found:
        print(line)
    print(f"{len(found)} differences between paper/ and its receipts" if found else "paper/ holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
