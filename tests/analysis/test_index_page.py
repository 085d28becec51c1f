"""The index as a page: links, ids, escaping, gaps, equal bytes; and of the committed paper."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis import folders, html_index
from analysis.index import page as index_page
from analysis.index.anchors import Links, anchor
from analysis.index.cell_numbers import RULES, Piece
from analysis.index.named_numbers import ReceiptSets, read_numbers
from analysis.index.printed_tables import PrintedTable
from analysis.index.shown import Contents, NumberShown, TableShown
from analysis.named_number import named
from analysis.trace import PUBLIC
from bench.receipt import receipt_id
from bench.schema import Plan
from tests.analysis.conftest import Invented, run_python
from tests.analysis.index_repository import (
    HEADINGS,
    Page,
    add_number,
    build_repository,
    read_page,
    receipt_paths,
    write_page,
)

SPEED = "number=decode:verbatim-copy.chain-k8.decode_tok_per_s.median"


@pytest.fixture(scope="module")
def built(
    invented: Invented, frames_invented: Invented, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Two experiments, a study and their products; tests that alter them take a copy."""
    return build_repository(tmp_path_factory.mktemp("index"), invented, frames_invented)


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "repository")


def links_of(page: Page) -> Iterator[str]:
    """Every address that the page leads to or loads."""
    for _, attributes in page.elements:
        yield from (str(attributes[name]) for name in ("href", "src") if name in attributes)


def assert_links_lead_somewhere(page: Page, at: Path) -> None:
    ids = set(page.ids)
    for link in links_of(page):
        if link.startswith("#"):
            assert link[1:] in ids, f"{link} leads nowhere"
        else:
            assert not link.startswith("/"), f"{link} holds on this machine only"
            assert (at.parent / unquote(link)).exists(), f"{link} is no file"
    block = page.json("receipts-json")
    for identifier, folder, name, *_ in block["rows"]:
        path = at.parent / unquote(block["folders"][folder]["link"]) / name
        assert receipt_id(path.read_bytes()) == identifier


def assert_well_made(page: Page) -> None:
    """What a validator and a screen reader ask for."""
    assert len(page.ids) == len(set(page.ids)), "an id stands twice"
    assert not any(re.search(r"\s", each) for each in page.ids)
    assert page.all("html") == [{"lang": "en"}]
    levels = [HEADINGS.index(tag) for tag, _ in page.elements if tag in HEADINGS]
    assert levels[0] == 0 and levels.count(0) == 1
    assert all(deeper <= level + 1 for level, deeper in pairwise(levels))
    for image in page.all("img"):
        assert image["alt"] and int(image["width"] or 0) > 0 and int(image["height"] or 0) > 0
    for _, attributes in page.elements:
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        if attributes.get("tabindex") is not None:
            assert attributes["role"] == "region"
            named_by = str(attributes.get("aria-labelledby") or "")
            assert attributes.get("aria-label") or named_by in page.ids


def test_every_link_leads_to_a_file_or_a_place(built: Path, tmp_path: Path) -> None:
    """Catches links that hold for one place of the page only."""
    for out in (None, built / "paper" / "index.html", tmp_path / "a b" / "elsewhere.html"):
        at, _ = write_page(built, out)
        assert_links_lead_somewhere(read_page(at), at)


def test_the_page_is_well_made_and_loads_nothing(built: Path) -> None:
    at, _ = write_page(built)
    page = read_page(at)
    assert_well_made(page)
    assert not any(re.match(r"([a-z]+:|//)", link, re.IGNORECASE) for link in links_of(page))
    assert not any("src" in script for script in page.all("script"))
    assert not page.all("link") + page.all("iframe") + page.all("object")
    [policy] = [str(each["content"]) for each in page.all("meta") if "http-equiv" in each]
    assert policy.startswith("default-src 'none'; img-src 'self' file:; ")
    script = page.texts[page.elements.index(("script", {}))]
    for text, kind in ((script, "script"), (page.text_of("style")[0], "style")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "http" not in script + page.text_of("style")[0] and "fetch(" not in script


def test_all_that_there_is_stands_on_the_page(built: Path) -> None:
    """Catches a product that was forgotten."""
    at, contents = write_page(built)
    page = read_page(at)
    listed = {unquote(link) for link in links_of(page)}
    for path in (built / "paper").rglob("*.*"):
        if path.name != "index.html" and path.suffix != ".json":
            assert f"../{path.relative_to(built).as_posix()}" in listed
    assert set(contents.gaps) == {"paper/report.pdf is not there; `make paper` writes it"}
    [record] = (built / "receipts" / "studies").rglob("0000.json")
    assert f"../{record.relative_to(built).as_posix()}" in listed
    for name in ("decode", "frames"):
        plan = msgspec.json.decode((built / f"receipts/{name}/plan.json").read_bytes(), type=Plan)
        assert set(plan.hypotheses) & set(page.text_of("p"))
        facts = page.text_of("dd")
        assert {", ".join(plan.arms), plan.ring.profile, str(plan.reps)} <= set(facts)
        assert any(plan.build.source_digest[:16] in fact for fact in facts)
    (built / "paper" / "report.pdf").write_bytes(b"%PDF")
    at, contents = write_page(built)
    assert "../paper/report.pdf" in links_of(read_page(at)) and not contents.gaps
    (built / "paper" / "report.pdf").unlink()


def test_every_number_leads_to_its_own_receipts(built: Path) -> None:
    """Catches lists that were mixed up when equal ones were kept once."""
    at, contents = write_page(built)
    page = read_page(at)
    numbers, _ = read_numbers(built / "paper")
    for group, own in numbers.items():
        for name, number in own.items():
            found = receipt_paths(page, at, anchor("number", f"{group}:{name}"))
            assert set(found) == set(number.receipt_ids)
            for identifier, path in found.items():
                assert path is not None and receipt_id(path.read_bytes()) == identifier
    assert len(contents.numbers) == sum(map(len, numbers.values()))
    assert f"#{SPEED}" in links_of(page)  # from a cell of the table too
    assert sum(link == f"#{SPEED}" for link in links_of(page)) == 2


def test_equal_files_make_equal_bytes(built: Path, invented: Invented, tmp_path: Path) -> None:
    """Catches an order that hangs on the process, and a date."""
    pages = []
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed / "index.html"
        words = (
            "from pathlib import Path\n"
            "from analysis import folders, html_index\n"
            f"folders.REPOSITORY = Path({str(built)!r})\n"
            f"assert not html_index.main(['--out', {str(out)!r}])\n"
        )
        said = run_python(invented, "-c", words, hash_seed=hash_seed)
        assert "missing: paper/report.pdf is not there" in said and f"wrote {out}" in said
        pages.append(out.read_bytes())
    assert pages[0] == pages[1]


# ---- what is missing ----


def lose(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def alter_receipt(root: Path) -> None:
    path = root / "receipts/decode/receipts/0001.json"
    path.write_bytes(path.read_bytes().replace(b"ngram", b"NGRAM", 1) + b" ")


def alter_table(root: Path) -> None:
    path = root / "paper/tables/decode.csv"
    head, columns, row, *rest = path.read_text().splitlines(keepends=True)
    fields = row.split(",")
    fields[2] = "999.5"
    path.write_text("".join([head, columns, ",".join(fields), *rest]))


def lose_kind(kind: str) -> Callable[[Path], None]:
    return lambda root: shutil.rmtree(root / "paper" / kind / "frames")


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (lose("paper/numbers.json"), "paper/numbers.json is missing"),
        (lose("paper/numbers/frames.json"), "frames: no numbers in paper/"),
        (lose_kind("tables"), "frames: no tables in paper/"),
        (lose_kind("figures"), "frames: no figures in paper/"),
        (lose("paper/figures/arms_by_cell.pdf"), "paper/figures/arms_by_cell.pdf is missing"),
        (lose("paper/tables/decode.csv"), "paper/tables/decode.md: has no CSV beside it"),
        (lose("receipts/decode/plan.sig.json"), "receipts/decode/plan.json: unsigned"),
        (lose("receipts/frames/receipts/0003.json"), "frames: of 9 planned jobs, 8 have receipts"),
        (lose("receipts/frames/receipts/0003.json"), "of its numbers rest on receipts"),
        (
            alter_receipt,
            "receipts/decode/receipts/0001.json: its bytes are not the ones",
        ),
        (alter_table, "table decode: median_tok_per_s is 999.5, the number"),
    ],
)
def test_what_is_missing_is_said_and_no_exception(
    copied: Path, alter: Callable[[Path], None], said: str
) -> None:
    """Catches a page that is not made, or that does not tell, when one thing is wrong."""
    alter(copied)
    at, contents = write_page(copied)
    [gap] = [each for each in contents.gaps if said in each]
    page = read_page(at)
    assert gap.replace("`", "") in page.text_of("li")
    assert str(copied) not in at.read_text(encoding="utf-8")
    assert_links_lead_somewhere(page, at)
    assert_well_made(page)


def test_a_receipt_that_is_gone_is_said_beside_its_numbers(copied: Path) -> None:
    """Catches a number that seems to rest on what is not there."""
    gone = copied / "receipts/frames/receipts/0003.json"
    identifier = receipt_id(gone.read_bytes())
    gone.unlink()
    at, contents = write_page(copied)
    page = read_page(at)
    short = [each for each in contents.numbers if each.missing]
    assert {each.missing for each in short} == {1} and {each.group for each in short} == {"frames"}
    assert receipt_paths(page, at, short[0].anchor)[identifier] is None
    assert len(page.text_of("span", **{"class": "alarm"})) == len(short)


def test_public_receipts_are_not_missed(copied: Path) -> None:
    """Catches an alarm about files of others, which nobody expects here."""
    body = (copied / "paper/numbers/frames.json").read_bytes()
    (copied / f"paper/numbers/{PUBLIC}.json").write_bytes(body)
    add_number(copied, PUBLIC, "jobs.on", named(3, 0, "jobs", "records", ["paper.json 0123"]))
    at, contents = write_page(copied)
    [number] = [each for each in contents.numbers if each.number.receipt_ids == ["paper.json 0123"]]
    assert number.missing == 0 and "public" in number.rerun[0]
    page = read_page(at)
    [entry] = [each for each in page.json("entries-json") if each["anchor"] == number.anchor]
    assert entry["away"] == index_page.PUBLIC_WORDS
    assert receipt_paths(page, at, number.anchor) == {"paper.json 0123": None}


def test_an_empty_repository_has_a_page(tmp_path: Path) -> None:
    at, contents = write_page(tmp_path)
    assert_well_made(read_page(at))
    assert contents.gaps[0].startswith("paper/numbers.json is missing")


def test_a_file_that_is_no_key_is_an_error(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches signatures that all fail for a reason that nobody reads."""
    monkeypatch.setattr(folders, "REPOSITORY", copied)
    assert html_index.main([]) == 0 and (copied / "build" / "index.html").is_file()
    (copied / "receipts" / "keys" / "decode.pub").write_text("nonsense")
    assert html_index.main([]) == 2
    assert "decode.pub: not a public key" in capsys.readouterr().err


# ---- escaping ----

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><!-- ",
    "]]>&amp;&lt;'\"`{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)//\u2028\u2029",
    "a `code` and `more`",
)
PRINTABLE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def rendered(built: Path) -> Callable[[str], Page]:
    """The page of one job, one record, one number and one table that all bring the same words."""
    contents = write_page(built)[1]
    receipts = [contents.receipts.receipts[idx] for idx in (0, -1)]
    small = ReceiptSets(receipts, ["a", "b"], sets=[(0, 1)])
    contents = replace(contents, receipts=small)
    links = Links(built / "build", built)
    return lambda words: Page(index_page.render(with_words(contents, words), links))


def with_words(contents: Contents, words: str) -> Contents:
    """The same with these words wherever products and receipts may bring words of their own."""
    name, number = anchor("number", f"g:{words}"), named(1, 0, words, words, [])
    table = PrintedTable(
        words, words, words, (words,), (False,), ((words,),), (words,), words, (), {}
    )
    shown = TableShown(table, anchor("table", words), [[(Piece(words, name),)]])
    section = contents.sections[0]
    assert section.experiment is not None
    experiment = replace(
        section.experiment,
        name=words,
        hypotheses=(words, words),
        short=(words,),
        facts=((words, words),),
    )
    sections = [
        replace(
            section,
            name=words,
            title=words,
            anchor=anchor("section", words),
            experiment=experiment,
            tables=[shown],
            gaps=[words],
        )
    ]
    numbers = [NumberShown("g", words, number, name, 0, [words], 0)]
    receipts = [replace(each, problem=words) for each in contents.receipts.receipts]
    sets = replace(contents.receipts, receipts=receipts)
    return replace(contents, sections=sections, numbers=numbers, receipts=sets, gaps=[words])


@settings(max_examples=40)
@given(words=PRINTABLE)
@example(words=HOSTILE[0])
@example(words=HOSTILE[1])
@example(words=HOSTILE[2])
@example(words=HOSTILE[3])
@example(words=HOSTILE[4])
def test_no_word_becomes_markup(rendered: Callable[[str], Page], words: str) -> None:
    """Catches a word that ends a script, opens an element or is read by the template."""
    page, calm = rendered(words), rendered("words")
    skip = {"code"}  # a note's backticks make code
    tags = [tag for tag, _ in page.elements if tag not in skip]
    assert tags == [tag for tag, _ in calm.elements if tag not in skip]
    [entry] = [each for each in page.json("entries-json") if each["rerun"] == [words]]
    assert entry["title"] == f"g:{words}" and ["formula", words] in entry["facts"]
    assert {row[-1] for row in page.json("receipts-json")["rows"]} == {words}
    assert page.text_of("h2", id=anchor("section", words)) == [words]
    assert page.text_of("td", **{"class": "name" if len(words) <= 24 else "words"})[-1] == words
    assert_well_made(page)


@pytest.mark.parametrize("words", HOSTILE)
def test_backticks_alone_make_markup(words: str) -> None:
    seen = Page(f"<p>{index_page.marked(words)}</p>")
    tags = [tag for tag, _ in seen.elements]
    pairs = words.count("`") // 2 if words.count("`") % 2 == 0 else 0
    assert tags == ["p", *["code"] * pairs]
    assert seen.texts[0] == (words.replace("`", "") if pairs else words)


# ---- the committed paper ----


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, Path, Contents]:
    at = tmp_path_factory.mktemp("committed") / "index.html"
    contents = html_index.write_index(at)
    return read_page(at), at, contents


def test_the_committed_evidence_holds_together(committed: tuple[Page, Path, Contents]) -> None:
    """Catches a committed table and number that contradict each other, and a dead link."""
    page, at, contents = committed
    assert_well_made(page)
    assert_links_lead_somewhere(page, at)
    assert contents.num_problems == 0
    assert not [gap for gap in contents.gaps if "the number" in gap or "rest on receipts" in gap]
    assert at.stat().st_size < 4_000_000  # of some 1,600 receipts and 1,300 numbers


def test_every_rule_finds_numbers_in_a_committed_table(
    committed: tuple[Page, Path, Contents],
) -> None:
    """Catches a column or a number that was renamed, so that nothing is clickable any more."""
    _, _, contents = committed
    numbers, _ = read_numbers(folders.REPOSITORY / "paper")
    linked: dict[str, set[str]] = {}
    for section in contents.sections:
        for shown in section.tables:
            if numbers.get(section.name):
                columns = linked.setdefault(shown.table.name, set())
                for row in shown.cells:
                    for header, cell in zip(shown.table.headers, row, strict=True):
                        columns |= {header} if any(piece.anchor for piece in cell) else set()
    for name in linked.keys() & RULES.keys():
        assert linked[name], f"no cell of table {name} is a number"
    assert {"decode", "against_base", "seal", "fp8_speed", "iid", "frames"} <= linked.keys()
    assert linked["decode"] == {"tok/s [min–max]", "tokens/round"}


def test_the_number_that_the_readme_names_is_on_the_page(
    committed: tuple[Page, Path, Contents],
) -> None:
    page, at, _ = committed
    wanted = "number=planner:all.planner.over.ar.ratio"
    assert wanted in page.ids
    number = read_numbers(folders.REPOSITORY / "paper")[0]["planner"]["all.planner.over.ar.ratio"]
    found = receipt_paths(page, at, wanted)
    assert set(found) == set(number.receipt_ids) and None not in found.values()
    [entry] = [each for each in page.json("entries-json") if each["anchor"] == wanted]
    facts = dict(msgspec.convert(entry["facts"], list[tuple[str, str]]))
    assert facts["value"] == f"{number.value} {number.unit}" and facts["formula"] == number.formula
    assert entry["rerun"] == ["python -m bench run --experiment planner --scale full"]
