"""The index in a browser without a head: opened from disk, searched, clicked, closed.

Needs Chromium and its driver on the path (Debian: `apt-get install chromium chromium-driver`) and
is skipped where they are not.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from analysis.index.anchors import anchor
from analysis.index.named_numbers import read_numbers
from analysis.named_number import NamedNumber, named
from bench.receipt import receipt_id
from tests.analysis.conftest import Invented
from tests.analysis.index_repository import add_number, build_repository, write_page

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no chromium and chromedriver on the path; Debian's are in chromium, chromium-driver",
)

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, which Chromium's sandbox refuses
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
)
PATIENCE_S = 20  # a busy machine; nothing here is timed
SPEED = "verbatim-copy.chain-k8.decode_tok_per_s.median"
ODD = "study.round_before.0 < a < k"
HOSTILE = '</script><b id="planted">100 % & "more"</b>'
MANY = 130  # receipts, more than the panel shows at first
Browser = Any  # selenium's driver; the package is optional here


@pytest.fixture(scope="module")
def page(
    invented: Invented, frames_invented: Invented, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The page of two invented experiments, with two numbers that are hard to show."""
    root = build_repository(tmp_path_factory.mktemp("browser"), invented, frames_invented)
    ids = [f"{idx:016x}" for idx in range(MANY)]
    add_number(root, "frames", ODD, named(0.651, 3, "share", HOSTILE, []))
    add_number(root, "frames", "of.many", named(1, 0, "jobs", "of many", ids))
    return write_page(root)[0]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Browser, page: Path) -> Iterator[Browser]:
    """The page, newly opened; whatever the browser complained of fails the test."""
    open_at(chromium, page)
    yield chromium
    assert chromium.get_log("browser") == []


def open_at(browser: Browser, page: Path, fragment: str = "") -> None:
    browser.get("about:blank")  # so that another fragment alone loads the page anew
    browser.get(f"{page.as_uri()}{fragment}")


def panel_is_open(browser: Browser) -> bool:
    return browser.find_element(By.ID, "panel").get_attribute("open") is not None


def wait_for_panel(browser: Browser, is_open: bool) -> None:
    WebDriverWait(browser, PATIENCE_S).until(lambda driver: panel_is_open(driver) is is_open)


def text_of(browser: Browser, identifier: str) -> str:
    return str(browser.find_element(By.ID, identifier).text)


def shown_receipts(browser: Browser) -> dict[str, Path]:
    """The ids that the panel lists, and the file that each link leads to."""
    links = browser.find_elements(By.CSS_SELECTOR, "#panel-receipts a")
    return {link.text: Path(unquote(urlsplit(link.get_attribute("href")).path)) for link in links}


def number_of(page: Path, group: str, name: str) -> NamedNumber:
    return read_numbers(page.parent.parent / "paper")[0][group][name]


def visible_rows(browser: Browser) -> list[str]:
    links = browser.find_elements(By.CSS_SELECTOR, "#number-list tbody tr:not([hidden]) a")
    return [link.text for link in links]


def test_search_click_and_the_receipts_of_the_number(browser: Browser, page: Path) -> None:
    """Catches a search that finds nothing, and a panel with another number's receipts."""
    all_rows = len(visible_rows(browser))
    browser.find_element(By.ID, "words").send_keys("COPY chain-k8 tok_per_s decode:")
    assert visible_rows(browser) == [f"decode:{SPEED}"]
    assert text_of(browser, "found") == f"1 of {all_rows} numbers"
    browser.find_element(By.CSS_SELECTOR, "#number-list tbody tr:not([hidden]) a").click()
    wait_for_panel(browser, True)
    number = number_of(page, "decode", SPEED)
    found = shown_receipts(browser)
    assert text_of(browser, "panel-title") == f"decode:{SPEED}"
    assert f"{number.value} {number.unit}" in text_of(browser, "panel-facts")
    assert number.formula in text_of(browser, "panel-facts")
    assert set(found) == set(number.receipt_ids) and text_of(browser, "panel-count").endswith("4")
    for identifier, path in found.items():
        assert receipt_id(path.read_bytes()) == identifier
    first = browser.find_element(By.CSS_SELECTOR, "#panel-receipts tbody tr").text
    assert "verbatim-copy chain-k8 0 measured" in first
    commands = text_of(browser, "panel-commands")
    assert "python -m bench show receipts/decode/receipts/" in commands
    assert "python -m bench run --experiment decode --scale full" in commands
    assert browser.current_url.endswith(f"#number=decode:{SPEED}")


def test_a_cell_opens_by_keyboard_and_escape_returns_the_focus(browser: Browser) -> None:
    """Catches a panel that keeps the keyboard, and one that loses the reader's place."""
    wanted = f"td a[href='#number=decode:{SPEED}']:not([id])"
    cell = browser.find_element(By.CSS_SELECTOR, wanted)
    browser.execute_script("arguments[0].scrollIntoView(); arguments[0].focus()", cell)
    before = browser.execute_script("return scrollY")
    cell.send_keys(Keys.ENTER)
    wait_for_panel(browser, True)
    assert browser.switch_to.active_element.get_attribute("id") == "panel-close"
    assert browser.execute_script("return scrollY") == before
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for_panel(browser, False)
    assert browser.switch_to.active_element == cell
    assert "#" not in browser.current_url
    assert browser.execute_script("return scrollY") == before


def test_the_address_opens_a_number_and_the_button_closes_it(browser: Browser, page: Path) -> None:
    """Catches anchors that the report cannot link to, also of names with spaces and signs."""
    for fragment in (f"#{anchor('number', f'frames:{ODD}')}", f"#number=frames:{ODD}"):
        open_at(browser, page, fragment)
        wait_for_panel(browser, True)
        assert text_of(browser, "panel-title") == f"frames:{ODD}"
        assert HOSTILE in text_of(browser, "panel-facts")
        assert not browser.find_elements(By.ID, "planted")
        assert text_of(browser, "panel-count") == "No receipts"
        browser.find_element(By.ID, "panel-close").click()
        wait_for_panel(browser, False)
        assert browser.switch_to.active_element.text == f"frames:{ODD}"


def test_another_address_changes_the_panel_and_an_unknown_one_says_so(browser: Browser) -> None:
    """Catches a link from the report that seems to lead to nothing."""
    for fragment, title in ((f"number=decode:{SPEED}", f"decode:{SPEED}"), ("number=%", "%")):
        browser.execute_script("location.hash = arguments[0]", fragment)
        wait_for_panel(browser, True)
        WebDriverWait(browser, PATIENCE_S).until(
            lambda driver, wanted=title: text_of(driver, "panel-title") == wanted
        )
    assert "no number of this name" in text_of(browser, "panel-facts")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for_panel(browser, False)


def test_a_long_list_is_shown_in_two_parts_and_says_what_is_not_here(
    browser: Browser, page: Path
) -> None:
    open_at(browser, page, "#number=frames:of.many")
    wait_for_panel(browser, True)
    rows = "#panel-receipts tbody tr"
    assert len(browser.find_elements(By.CSS_SELECTOR, rows)) == 100
    more = browser.find_element(By.ID, "panel-all")
    assert more.text == f"Show all {MANY}"
    more.click()
    assert len(browser.find_elements(By.CSS_SELECTOR, rows)) == MANY and not more.is_displayed()
    assert browser.find_element(By.CSS_SELECTOR, rows).text == f"{0:016x} is not here"


def test_a_figure_names_its_receipts_and_is_drawn(browser: Browser) -> None:
    """Catches a policy that forbids the page's own figures."""
    link = browser.find_element(By.ID, "drawn=decode/arms_by_cell")
    browser.execute_script("arguments[0].scrollIntoView({block: 'end'})", link)
    image = browser.find_element(By.CSS_SELECTOR, "[id='figure=decode/arms_by_cell'] img")
    WebDriverWait(browser, PATIENCE_S).until(
        lambda driver: driver.execute_script(
            "return arguments[0].complete && arguments[0].naturalWidth > 0", image
        )
    )
    count = int(link.text.split()[0])
    link.click()
    wait_for_panel(browser, True)
    assert len(shown_receipts(browser)) == count == 48
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)


def test_an_experiments_receipts_are_listed_when_asked_for(browser: Browser, page: Path) -> None:
    lists = browser.find_elements(By.CSS_SELECTOR, "details.receipts")
    assert [each.get_attribute("open") for each in lists] == [None, None]
    summary = lists[1].find_element(By.TAG_NAME, "summary")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", summary)
    summary.click()
    rows = WebDriverWait(browser, PATIENCE_S).until(
        lambda driver: lists[1].find_elements(By.CSS_SELECTOR, "tbody tr")
    )
    folder = page.parent.parent / "receipts" / "frames" / "receipts"
    assert len(rows) == len(list(folder.glob("????.json")))
    link = rows[2].find_element(By.TAG_NAME, "a")
    assert receipt_id((folder / "0002.json").read_bytes()) == link.text
    assert link.get_attribute("href") == (folder / "0002.json").as_uri()


def test_a_link_to_a_closed_table_opens_it(browser: Browser) -> None:
    closed = browser.find_element(By.ID, "table=decode/exclusions")
    assert closed.get_attribute("open") is None
    browser.execute_script("location.hash = 'table=decode/exclusions'")
    WebDriverWait(browser, PATIENCE_S).until(
        lambda driver: closed.get_attribute("open") is not None
    )


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_moves_the_page_sideways(browser: Browser, width: int) -> None:
    """Catches a wide table outside a box of its own, on a telephone too."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        scrolled = browser.execute_script("return document.documentElement.scrollWidth")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert scrolled <= width
