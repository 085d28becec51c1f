"""Test only: a small repository with receipts and what was made of them, and its page read back.

Guarantees: experiments, a study record and every kind of product are there, all from invented
receipts. Must never be used outside tests.
"""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from analysis import figures, numbers, tables
from analysis.index.anchors import Links
from analysis.index.contents import read_contents
from analysis.index.page import render
from analysis.index.shown import Contents
from analysis.load import load_experiment
from analysis.named_number import NamedNumber
from bench.receipt import write_signed
from bench.schema import Plan, Study
from tests.analysis.conftest import Invented

STUDY = "attacks"
VOID = {"meta", "img", "input", "link"}
HEADINGS = ("h1", "h2", "h3", "h4")


def build_repository(root: Path, invented: Invented, frames: Invented) -> Path:
    """A repository of two experiments, named as those whose products have a place of their own."""
    receipts, paper = root / "receipts", root / "paper"
    (receipts / "keys").mkdir(parents=True)
    for name, own in (("decode", invented), ("frames", frames)):
        shutil.copytree(own.folder, receipts / name)
        shutil.copy(own.home / "keys" / "harness.pub", receipts / "keys" / f"{name}.pub")
        experiment = load_experiment(receipts / name, [receipts / "keys"])
        place = "" if name == "decode" else name
        for spec in tables.all_tables(experiment):
            spec.write(paper / "tables" / place)
        figures.write_figures(experiment, paper / "figures" / place)
        path = paper / "numbers.json" if name == "decode" else paper / "numbers" / f"{name}.json"
        numbers.write_numbers(experiment, path)
    write_record(receipts / "studies" / STUDY / "0000.json", invented)
    return root


def write_record(path: Path, own: Invented) -> None:
    """A signed study record."""
    plan = msgspec.json.decode((own.folder / "plan.json").read_bytes(), type=Plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = Study(
        study=STUDY,
        created="2026-01-02T03:04:05Z",
        build=plan.build,
        host={"cpu_model": "Invented", "num_cores": 2},
        settings={"cell": "chat"},
        rows=[{"attack": "nothing"}],
    )
    write_signed(path, record, own.identity)


def add_number(root: Path, group: str, name: str, number: NamedNumber) -> None:
    """One number more in a file of numbers."""
    path = root / "paper" / "numbers" / f"{group}.json"
    document = json.loads(path.read_text())
    document["numbers"][name] = msgspec.to_builtins(number)
    path.write_text(json.dumps(document))


def write_page(root: Path, out: Path | None = None) -> tuple[Path, Contents]:
    """The page of a repository, where it is written by default."""
    page = out or root / "build" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    links = Links(page.parent, root)
    contents = read_contents(root, links)
    page.write_text(render(contents, links), encoding="utf-8")
    return page, contents


class Page(HTMLParser):
    """What a browser's parser would see."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []  # of each element, by place, its own and its children's
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert not self._open, "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} names an attribute twice"
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        opened = self.elements[self._open.pop()][0]
        assert opened == tag, f"{tag} closes {opened}"

    def handle_data(self, text: str) -> None:
        for idx in self._open:
            self.texts[idx] += text

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def text_of(self, tag: str, **wanted: str) -> list[str]:
        """The text of every element of a kind that has these attributes."""
        return [
            self.texts[idx]
            for idx, (name, attributes) in enumerate(self.elements)
            if name == tag and wanted.items() <= attributes.items()
        ]

    @property
    def ids(self) -> list[str]:
        return [str(each["id"]) for _, each in self.elements if "id" in each]

    def json(self, identifier: str) -> Any:
        """One of the blocks that the script reads."""
        return json.loads(self.text_of("script", id=identifier)[0])


def read_page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def receipt_paths(page: Page, at: Path, anchor: str) -> dict[str, Path | None]:
    """Where the receipts of a number lie, by id, as the script follows them; None: not here."""
    block = page.json("receipts-json")
    entry = next(each for each in page.json("entries-json") if each["anchor"] == anchor)
    found: dict[str, Path | None] = {}
    for reference in block["sets"][entry["set"]]:
        if isinstance(reference, str):
            found[reference] = None
            continue
        identifier, folder, name, *_ = block["rows"][reference]
        found[identifier] = at.parent / unquote(block["folders"][folder]["link"]) / name
    return found
