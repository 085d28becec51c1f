"""Run a notebook: `python -m analysis.notebook NAME [-p KEY VALUE]… [--out FILE]`.

Guarantees: an unknown parameter fails before anything runs (papermill alone only warns), and so
does a notebook that is not what its source makes. Must never know what a notebook computes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError

from analysis.folders import REPOSITORY
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
    """Execute a notebook of this room.

    Raises:
        ConfigError: the notebook or a parameter does not exist, or the pair has drifted.
    """
    if name not in NOTEBOOKS:
        raise unknown_name("notebook", name, NOTEBOOKS)
    check_pair(name)
    check_parameters(notebook_path(name), parameters)
    out.parent.mkdir(parents=True, exist_ok=True)
    papermill.execute_notebook(
        str(notebook_path(name)),
        str(out),
        parameters=parameters,
        cwd=str(REPOSITORY),
        progress_bar=False,
    )
    return out


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.notebook", description=__doc__)
    parser.add_argument("name", help=", ".join(NOTEBOOKS))
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("KEY", "VALUE"))
    parser.add_argument("--out", type=Path, help="default: build/notebooks/NAME.ipynb")
    options = parser.parse_args(arguments)
    out = options.out or DEFAULT_OUT_FOLDER / f"{options.name}.ipynb"
    try:
        print(f"wrote {run_notebook(options.name, dict(options.p), out)}")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PapermillExecutionError as error:
        print(f"error: {error.ename}: {error.evalue} (see {out})", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
