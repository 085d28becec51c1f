"""An executed notebook as one HTML file that a reader can open from disk.

Guarantees: nothing in it is loaded from anywhere: no script at all, images as data, styles in the
page. Must never know what a notebook computes, nor run one.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import FileSystemLoader
from nbconvert.exporters import HTMLExporter

ROOM = Path(__file__).resolve().parent
TEMPLATE = "notebook_page.html.j2"


def page_path(notebook: Path) -> Path:
    """Where the page of an executed notebook lies."""
    return notebook.with_suffix(".html")


def write_page(notebook: Path) -> Path:
    """Write the page beside the notebook; returns its path.

    Formulas are not typeset: that would take a script. Prose writes them in words and characters.
    """
    exporter = HTMLExporter(
        template_name="basic",  # which ours extends; the others load scripts from the network
        extra_loaders=[FileSystemLoader(ROOM)],
        template_file=TEMPLATE,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    body, _ = exporter.from_filename(str(notebook))
    page = page_path(notebook)
    page.write_text(f"{body.strip()}\n", encoding="utf-8", newline="\n")
    return page
