"""Whether `paper/` is what its receipts make: `python -m analysis.check_paper`.

Guarantees: everything is made anew in a folder of its own and compared byte by byte, both ways: a
file that differs, one that is not made and one that is not committed are each named. Must never
know what a product shows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from analysis import figures, folders, numbers, readme, tables
from analysis.load import load_experiment
from engine.errors import LonghaulError

KINDS = ("figures", "tables", "numbers")


def make_all(out: Path) -> None:
    """Every product of every committed experiment and study, laid out as in `paper/`.

    Raises:
        ReceiptError: receipts that cannot be used.
    """
    for kind, make in (("figures", figures.main), ("tables", tables.main)):
        said = _silently(make, "--out", str(out / kind))
        if said:
            raise LonghaulError(said)
    for name in folders.committed_experiments():
        is_default = name == folders.DEFAULT_EXPERIMENT
        path = out / ("numbers.json" if is_default else f"numbers/{name}.json")
        numbers.write_numbers(load_experiment(folders.COMMITTED / name), path)


def _silently(make: Callable[[list[str]], int], *words: str) -> str:
    """Run an entry point; returns what it complained of, empty if it did well."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        status = make(list(words))
    return said.getvalue().removeprefix("error: ").strip() or f"status {status}" if status else ""


def differences(made: Path, committed: Path) -> Iterator[str]:
    """What of the committed products is not as it is made."""
    theirs, ours = _files(committed), _files(made)
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in theirs:
            yield f"{name}: is made and not committed"
        elif name not in ours:
            yield f"{name}: is committed and not made"
        elif theirs[name].read_bytes() != ours[name].read_bytes():
            yield f"{name}: differs from what its receipts make"


def _files(top: Path) -> dict[str, Path]:
    found = [path for kind in KINDS for path in (top / kind).rglob("*") if path.is_file()]
    found.append(top / "numbers.json")
    return {str(path.relative_to(top)): path for path in found if path.is_file()}


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    argparse.ArgumentParser(prog="python -m analysis.check_paper", description=__doc__).parse_args(
        arguments
    )
    try:
        with tempfile.TemporaryDirectory() as made:
            make_all(Path(made))
            found = list(differences(Path(made), folders.REPOSITORY / "paper"))
        if _silently(readme.main, "--check"):
            found.append("README.md: its results are not what the receipts say; run make tables")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in found:
        print(line)
    print(f"{len(found)} differences between paper/ and its receipts" if found else "paper/ holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
