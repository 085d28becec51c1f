"""Whether the report's prose says only what receipts say: `python -m analysis.report_lint`.

In sections that state results no digit may stand in prose: a number there is a named one, written
`#n("experiment:name")`, whose value, unit and receipts are in `paper/numbers`. Guarantees: every
fault is named by line, with what was found and what to write instead; a name that no file of
numbers has is refused with what is near it. Must never know what a number says.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Container, Iterator
from pathlib import Path

from analysis.folders import REPOSITORY
from analysis.trace import committed_numbers
from engine.errors import LonghaulError

REPORT = REPOSITORY / "paper" / "report.typ"
NEAR = 3
# A section of results is a first-level heading with a label of this beginning.
RESULTS = re.compile(r"^= .*<results-[a-z-]+>\s*$")
SECTION = re.compile(r"^= ")
NUMBER = re.compile(r'#(n|nu|iv|ci)\("([^"]*)"\)')
# What a call prints of a name: it, or a middle and the ends of an interval.
PRINTED = {
    "n": ("",),
    "nu": ("",),
    "iv": (".ratio", ".low", ".high"),
    "ci": ("", ".low", ".high"),
}
# What is no prose: names in backticks, string literals, labels and references, comments.
NO_PROSE = re.compile(r'`[^`]*`|"[^"]*"|<[a-z0-9-]+>|@[a-z0-9-]+|//.*$')
DIGIT = re.compile(r"\S*\d\S*")


def bare_digits(source: str) -> Iterator[str]:
    """Digits in the prose of sections of results, by line."""
    in_results = False
    for line_no, line in enumerate(source.splitlines(), start=1):
        if SECTION.match(line):
            in_results = RESULTS.match(line) is not None
        found = DIGIT.search(NO_PROSE.sub(" ", line)) if in_results else None
        if found:
            yield (
                f"line {line_no}: {found[0]!r} is a bare number in a section of results; "
                'write #n("experiment:name") with a name of paper/numbers, or words'
            )


def unknown_numbers(source: str, known: Container[str], listed: list[str]) -> Iterator[str]:
    """Names of numbers that no file has, by line.

    Args:
        known: names as the report writes them, `experiment:name`.
        listed: the same, to tell what is near.
    """
    for line_no, line in enumerate(source.splitlines(), start=1):
        for call, named in NUMBER.findall(line):
            for name in (f"{named}{end}" for end in PRINTED[call]):
                if name not in known:
                    near = ", ".join(difflib.get_close_matches(name, listed, NEAR)) or "nothing"
                    yield f"line {line_no}: no number {name!r}; near it: {near}"


def faults(source: str, paper: Path) -> list[str]:
    """Everything that is wrong with a report's source.

    Args:
        paper: the folder whose numbers it prints.
    """
    listed = [f"{own}:{name}" for own, names in committed_numbers(paper).items() for name in names]
    return [*bare_digits(source), *unknown_numbers(source, set(listed), listed)]


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report_lint", description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=REPORT, help="default: the report")
    options = parser.parse_args(arguments)
    try:
        found = faults(options.path.read_text(encoding="utf-8"), REPORT.parent)
    except (OSError, LonghaulError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for fault in found:
        print(f"{options.path.name}: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
