"""Notebooks end to end: what they show, what they say in place of what is missing, their pages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from analysis import notebook, pair
from analysis.notebook_display import absence, newest
from analysis.notebook_page import write_page
from bench.receipt import write_signed
from engine.errors import ConfigError
from tests.analysis.conftest import Invented, run_module
from tests.analysis.test_keepwarm_products import record as keepwarm_record

FETCHING = {"script", "link", "iframe", "object", "embed", "source", "video", "audio", "base"}
HEADER = "# %% [markdown]\n# # A page\n\n# %% tags=['parameters']\nnumber = 1\n\n"
FINE = (
    f"{HEADER}# %%\nfrom IPython.display import Markdown, display\n"
    "display(Markdown('| a | b |\\n|--:|--:|\\n| 1 | 2 |'))\n"
)
BROKEN = f"{HEADER}# %%\nraise ValueError('on purpose')\n"


class Page(HTMLParser):
    """What a page would fetch, and which elements it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.policy = ""
        self.alternatives: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self.fetched += [str(named[name]) for name in ("src", "srcset", "data") if name in named]
        if tag == "img":
            self.alternatives.append(named.get("alt") or "")
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named.get("content") or ""


def page_of(out: Path) -> Page:
    """The page beside a notebook that ran; nothing in it comes from elsewhere."""
    text = out.with_suffix(".html").read_text(encoding="utf-8")
    page = Page(text)
    assert not FETCHING & set(page.tags)
    assert [source for source in page.fetched if not source.startswith("data:image/")] == []
    assert not re.search(r"@import|url\(", text), "styles that fetch"
    assert page.policy.startswith("default-src 'none'")
    assert page.tags.count("img") == len(page.fetched) and all(page.alternatives)
    return page


def run(invented: Invented, name: str, out: Path, **parameters: str) -> tuple[int, str]:
    """Run a notebook; how many figures it shows, and its words."""
    flags = [word for key, value in parameters.items() for word in ("-p", key, value)]
    run_module(invented, "analysis.notebook", name, *flags, "--out", str(out))
    outputs = [
        output["data"]
        for cell in json.loads(out.read_text())["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "display_data"
    ]
    words = "\n".join("".join(shown.get("text/markdown", "")) for shown in outputs)
    figures = sum("image/png" in shown for shown in outputs)
    assert page_of(out).tags.count("img") == figures
    return figures, words


def test_decode_tells_an_experiment_from_its_plan_to_its_outcome(
    depth_invented: Invented, tmp_path: Path
) -> None:
    """Catches a figure or a table of the experiment that no section shows, or two show."""
    out = tmp_path / "out.ipynb"
    figures, words = run(depth_invented, "decode", out, receipts_dir=str(depth_invented.folder))
    # side by side, by cell, the sweep, two of acceptance, the split of a traversal
    assert figures == 6
    for wanted in ("none: invented", "Stopping rule: All planned", "| chain-d8 | fixed-k |"):
        assert wanted in words
    titles = re.findall(r"^### (.+)$", words, re.MULTILINE)
    assert len(titles) == len(set(titles))
    assert {
        *("Jobs not used", "Pre-registered hypotheses", "Decoding speed", "Arms against chain-k8"),
        *("Acceptance of drafts", "Where decode time goes", "Links as measured"),
    } == set(titles)


def test_decode_shows_what_times_nothing_too(frames_invented: Invented, tmp_path: Path) -> None:
    out = tmp_path / "out.ipynb"
    receipts = str(frames_invented.folder)
    figures, words = run(frames_invented, "decode", out, receipts_dir=receipts)
    assert figures == 1 and "sets none of these ways against `ar`" in words
    assert "or nothing in it was to be timed" in words and "### Frames and bytes" in words


def test_links_tells_what_there_is_and_what_there_is_not(
    keepwarm_invented: Invented, tmp_path: Path
) -> None:
    """Catches a notebook that fails, or is silent, where a study was not run."""
    out, records = tmp_path / "out.ipynb", tmp_path / "records"
    records.mkdir()
    given = {"receipts_dir": str(keepwarm_invented.folder), "records": str(records)}
    figures, words = run(keepwarm_invented, "links", out, **given)
    assert figures == 0
    assert "| keepwarm | wan-275 | relay | 4 × plain | 1 | 275.00 |" in words
    assert f"No record of the study `keepwarm` lies in `{records}`" in words
    assert "No experiment `frames`" in words and "No experiment `fp8`" in words
    assert "### Noops on silent links" in words and "no ring was tried with noops" not in words
    (records / "keepwarm").mkdir()
    write_signed(records / "keepwarm" / "1.json", keepwarm_record(), keepwarm_invented.identity)
    figures, words = run(keepwarm_invented, "links", out, **given)
    assert figures == 1 and "### What a pause costs a link" in words


def test_verification_tells_what_there_is_and_what_there_is_not(
    attest_invented: Invented, tmp_path: Path
) -> None:
    out, records = tmp_path / "out.ipynb", tmp_path / "records"
    records.mkdir()
    given = {"receipts_dir": str(attest_invented.folder), "records": str(records)}
    figures, words = run(attest_invented, "verification", out, seal_experiment="", **given)
    assert figures == 1 and "0 statements in 0 of 48 measured jobs" in words
    assert "### What attestation costs the stages" not in words
    for study in ("seal-cost", "attacks", "challenge"):
        assert f"No record of the study `{study}` lies in" in words
    assert "### Arms against chain-k8" in words and "No A/B of sealing was asked for" in words


@pytest.mark.parametrize("name", ["decode", "links", "verification"])
def test_a_misspelt_parameter_fails_in_the_notebook_itself(
    invented: Invented, tmp_path: Path, name: str
) -> None:
    words = (f"analysis/{name}.ipynb", str(tmp_path / "out.ipynb"), "-p", "receipt_dir", "x")
    with pytest.raises(RuntimeError, match=r"unknown parameters \['receipt_dir'\]"):
        run_module(invented, "papermill", *words)


def test_a_folder_of_records_that_does_not_exist_is_no_absence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing: no such folder; name one that holds"):
        newest("keepwarm", str(tmp_path / "missing"))
    assert newest("keepwarm", str(tmp_path)) is None
    assert absence("keepwarm", "", "make study-keepwarm") == (
        "No record of the study `keepwarm` is committed, so nothing is shown; "
        "`make study-keepwarm` makes one."
    )


@pytest.fixture
def two_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Instead of the room's: one that fails, then one that does not; returns the out folder."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for name, text in (("broken", BROKEN), ("fine", FINE)):
        (sources / f"{name}.py").write_text(text)
    monkeypatch.setattr(pair, "NOTEBOOK_FOLDER", sources)
    for name in ("broken", "fine"):
        pair.notebook_path(name).write_text(pair.paired_text(name), newline="\n")
    monkeypatch.setattr(notebook, "NOTEBOOKS", ("broken", "fine"))
    return tmp_path / "out"


def test_all_are_run_and_one_that_fails_has_no_page(
    two_notebooks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a run that ends at the first failure, and an old page that outlives one."""
    two_notebooks.mkdir()
    (two_notebooks / "broken.html").write_text("of an older run")
    assert notebook.main(["--folder", str(two_notebooks)]) == 2
    said = capsys.readouterr()
    assert "error: broken: ValueError: on purpose (see " in said.err
    assert said.out == f"wrote {two_notebooks / 'fine.html'}\n"
    names = {path.name for path in two_notebooks.iterdir()}
    assert names == {"broken.ipynb", "fine.ipynb", "fine.html"}
    page = page_of(two_notebooks / "fine.ipynb")
    assert page.tags.count("table") == 1 and page.tags.count("details") == 2
    assert notebook.main(["fine", "--folder", str(two_notebooks)]) == 0
    before = (two_notebooks / "fine.html").read_bytes()
    assert write_page(two_notebooks / "fine.ipynb").read_bytes() == before


def test_parameters_go_with_one_notebook(two_notebooks: Path) -> None:
    for words in (["-p", "number", "2"], ["fine", "broken", "--out", "x.ipynb"]):
        with pytest.raises(SystemExit) as stopped:
            notebook.main(words)
        assert stopped.value.code == 2
    assert not two_notebooks.exists()
