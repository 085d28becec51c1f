"""Run notebooks: `python -m analysis.notebook [NAME… [-p KEY VALUE]… [--out FILE]]`.

Guarantees: an unknown parameter fails before anything runs (papermill alone only warns), and so
does a notebook that is not what its source makes; a page for reading lies beside every notebook
that ran to its end, and beside no other; of several, one that fails keeps none of the others from
running. Must never know what a notebook computes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError

from analysis.folders import REPOSITORY
from analysis.notebook_page import page_path, write_page
from analysis.pair import NOTEBOOKS, check_pair, notebook_path
from engine.errors import LonghaulError, unknown_name

DEFAULT_OUT_FOLDER = REPOSITORY / "build" / "notebooks"


def check_parameters(path: Path, parameters: dict[str, str]) -> None:
    """Insist that the notebook has every parameter.

    Raises:
        ConfigError: a name is misspelt; the message lists the valid ones.
    """
    valid = papermill.inspect_notebook(str(path))
    for name in parameters:
        if name not in valid:
            raise unknown_name(f"parameter of {path.name}", name, valid)


def run_notebook(name: str, parameters: dict[str, str], out: Path) -> Path:
    """Execute a notebook of this room and write its page beside it; returns the page's path.

    Raises:
        ConfigError: the notebook or a parameter does not exist, or the pair has drifted.
        PapermillExecutionError: a cell failed; `out` shows where, and there is no page.
    """
    if name not in NOTEBOOKS:
        raise unknown_name("notebook", name, NOTEBOOKS)
    check_pair(name)
    check_parameters(notebook_path(name), parameters)
    out.parent.mkdir(parents=True, exist_ok=True)
    page_path(out).unlink(missing_ok=True)  # an older run's would outlive a failure
    papermill.execute_notebook(
        str(notebook_path(name)),
        str(out),
        parameters=parameters,
        cwd=str(REPOSITORY),
        progress_bar=False,
    )
    return write_page(out)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.notebook", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NOTEBOOKS)}; none: all of them")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"))
    parser.add_argument("--out", type=Path, help="of one; default: build/notebooks/NAME.ipynb")
    parser.add_argument("--folder", type=Path, default=DEFAULT_OUT_FOLDER, help="of several")
    options = parser.parse_args(arguments)
    names = options.names or NOTEBOOKS
    if len(names) > 1 and (options.p or options.out):
        parser.error("-p and --out go with one notebook")
    failed = 0
    for name in names:
        out = options.out or options.folder / f"{name}.ipynb"
        try:
            print(f"wrote {run_notebook(name, dict(options.p), out)}", flush=True)
        except LonghaulError as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
        except PapermillExecutionError as error:
            print(f"error: {name}: {error.ename}: {error.evalue} (see {out})", file=sys.stderr)
            failed += 1
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
