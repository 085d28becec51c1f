"""Make the notebooks from their sources: `python -m analysis.pair [--check]`.

Guarantees: an `.ipynb` is a function of its `.py` alone: no outputs, cell ids from the cell's
place, one kernel name, no library version; so a committed pair that differs has drifted. Must never
know what a notebook computes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import jupytext
import nbformat

from analysis.folders import REPOSITORY
from engine.errors import ConfigError, LonghaulError

NOTEBOOK_FOLDER = REPOSITORY / "analysis"
NOTEBOOKS = ("acceptance", "decode", "law", "links", "verification", "peers")
CELL_ID_LEN = 12
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def source_path(name: str) -> Path:
    """The py:percent source."""
    return NOTEBOOK_FOLDER / f"{name}.py"


def notebook_path(name: str) -> Path:
    """The committed notebook."""
    return NOTEBOOK_FOLDER / f"{name}.ipynb"


def paired_text(name: str) -> str:
    """The notebook that the source makes, as it must lie on disk."""
    notebook = jupytext.read(source_path(name), fmt="py:percent")
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for idx, cell in enumerate(notebook.cells):
        cell["id"] = hashlib.sha256(f"{name} {idx}".encode()).hexdigest()[:CELL_ID_LEN]
    nbformat.validate(notebook)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def check_pair(name: str) -> None:
    """Insist that the committed notebook is its source's.

    Raises:
        ConfigError: they differ, or there is no notebook.
    """
    path = notebook_path(name)
    if not path.exists() or path.read_text(encoding="utf-8") != paired_text(name):
        raise ConfigError(
            f"{path.name} is not what {source_path(name).name} makes; run: python -m analysis.pair"
        )


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.pair", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args(arguments)
    try:
        for name in NOTEBOOKS:
            if options.check:
                check_pair(name)
            else:
                notebook_path(name).write_text(paired_text(name), encoding="utf-8", newline="\n")
                print(f"wrote {notebook_path(name)}")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
