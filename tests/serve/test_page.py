"""The page in a real browser: Chromium, if playwright and it are installed."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.servers import Running

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """The page at 400 pixels; the console must stay empty."""
    found = browser.new_page(viewport={"width": 400, "height": 800})
    found.set_default_timeout(20_000)
    problems: list[str] = []
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.goto(f"{server.url}/ui")
    found.wait_for_selector("#model:not(:empty)")
    yield found
    assert not problems
    found.close()


def test_example_is_read_and_answered_in_one_click(page):
    page.click("#example")
    page.wait_for_selector("#items > li:nth-child(5):has-text('Dear Ann')")
    assert page.inner_text("#title").startswith("Example: In which town")
    assert "Lisbon" in page.inner_text("#entries > li >> nth=0")
    assert page.inner_text("#working").startswith("step 4, ")
    assert "In which town" in page.inner_text("#about")
    page.click("#read summary")
    assert page.input_value("#read textarea[name=goal]").startswith("In which town")
    page.click("#steps > summary")
    page.click("#steps li summary >> nth=0")
    assert page.inner_text("#steps li summary >> nth=0").startswith("step 1, ")
    assert "Dear Ann, the clock" in page.inner_text("#steps pre >> nth=0")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_dropped_file_is_read_and_titles_its_conversation(page):
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(["<b>Ann</b> lives in Rome."], "a.html", {type: "text/html"}));
          const drop = new DragEvent("drop", {dataTransfer: data, bubbles: true});
          document.querySelector("#read textarea").dispatchEvent(drop);
        }"""
    )
    text = page.locator("#read textarea[name=text]")
    playwright.expect(text).to_have_value("**Ann** lives in Rome.")
    page.click("#read button")
    page.wait_for_selector("#entries > li")
    assert "a.html" in page.inner_text("#items")
    page.wait_for_selector("#conversations button[aria-current=true]:has-text('lives in Rome')")


def test_error_is_shown_at_its_form(page):
    page.fill("#read textarea", "Bob sings.")
    page.route("**/items", lambda route: route.fulfill(status=503, body="{}"))
    page.click("#read button")
    page.wait_for_selector("#read .error:has-text('503')")
    assert page.input_value("#read textarea") == "Bob sings."
