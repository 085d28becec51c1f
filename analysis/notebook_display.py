"""What the cells of this room's notebooks show: sentences, tables, figures, or that there is none.

Guarantees: a study without a record is said to have none, with the command that makes one; a
folder that does not exist is an error, not an absence. Must never know what is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from IPython.display import Image, Markdown, display

from analysis.figure_file import Drawing, house_style, png_bytes
from analysis.study_records import StudyRecord, study_records
from analysis.table_spec import TableSpec
from engine.errors import ConfigError


def show(*lines: str) -> None:
    """Lines of Markdown."""
    display(Markdown("\n".join(lines)))


def show_table(spec: TableSpec) -> None:
    """A table with its notes."""
    show(spec.to_markdown())


def show_figure(draw: Callable[[], Drawing], words: str) -> None:
    """Draw in the house style.

    Args:
        words: what the picture shows, for readers who do not see it.
    """
    with house_style():
        display(Image(png_bytes(draw()), alt=words))


def newest(study: str, records: str) -> StudyRecord | None:
    """The newest record of a study; None: there is none.

    Args:
        records: folder of study records of one's own; empty: the committed ones.

    Raises:
        ConfigError: there is no such folder.
        ReceiptError: a record is damaged or signed by nobody known.
    """
    if records and not Path(records).is_dir():
        raise ConfigError(f"{records}: no such folder; name one that holds a folder a study")
    found = study_records(study, Path(records) if records else None)
    return found[0] if found else None


def absence(study: str, records: str, command: str) -> str:
    """The sentence in the place of a record that does not exist.

    Args:
        command: what makes one.
    """
    where = f"lies in `{records}`" if records else "is committed"
    return f"No record of the study `{study}` {where}, so nothing is shown; `{command}` makes one."
