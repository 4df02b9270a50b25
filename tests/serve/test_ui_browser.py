"""The server's page in a real browser, by mouse and keyboard, without one error in its console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from atommem.serve.api_keys import Keys
from tests.chromium import Browser, find_chromium
from tests.serve.servers import Running, make_conversations, running, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_chromium() is None, reason="neither chromium nor google-chrome is installed"
    ),
]
EVIL = "</pre>'\"><img src=x onerror=hacked=1><script>hacked=1</script><!-- ${hacked=1}" + "x" * 90
WIDER = """[...document.querySelectorAll("body *")].filter((node) => node.offsetParent
  && node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.outerHTML.slice(0, 80))"""
"""What stands out of the page on the right."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(make_conversations(tmp_path / "log.db")) as found:
        yield found


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        yield browser


def has(selector: str, text: str, *, count: int | None = None) -> str:
    """Whether elements that `selector` finds have a text in one of them, and are as many."""
    shown = f"[...document.querySelectorAll({json.dumps(selector)})]"
    many = "" if count is None else f" && {shown}.length === {count}"
    return f"{shown}.some((node) => node.textContent.includes({json.dumps(text)})){many}"


def slide(browser: Browser, operations: int) -> None:
    """Look at the memory as it was after so many operations."""
    browser.evaluate(
        "(() => { const slider = document.querySelector('#at');"
        f"slider.value = {operations}; slider.dispatchEvent(new Event('input')); }})()"
    )


def press(browser: Browser, within: str, label: str) -> None:
    """Click the button of this label inside of an element."""
    browser.evaluate(
        f"(() => {{ for (const node of document.querySelectorAll('[data-press]')) delete node.dataset.press;"
        f"[...document.querySelector({json.dumps(within)}).querySelectorAll('button')]"
        f".find((node) => node.textContent === {json.dumps(label)}).dataset.press = ''; }})()"
    )
    browser.click("[data-press]")


def read_text(browser: Browser, text: str, name: str, entries: int) -> None:
    """Give a text to be read, and wait until it has been."""
    browser.evaluate("document.querySelector('#add').open = true")
    browser.type("#add [name=name]", name)
    browser.type("#add [name=text]", text)
    browser.click("#add form button")
    browser.wait(has("#count", f"of {entries} entries"))
    browser.wait(has("#doing", "Done"))


def test_a_memory_is_made_fed_asked_edited_and_looked_back_at(
    server: Running, browser: Browser
) -> None:
    browser.open(f"{server.url}/ui")
    browser.wait(has("#model", "scripted"))
    assert browser.text("#welcome h2") == "A memory that reads for you"

    # Create, add.
    browser.type("#new [name=title]", f"Holidays {'y' * 120}")
    browser.type("#new [name=goal]", "Where does Ann live?")
    browser.click("#new button")
    browser.wait(has("#title", "Holidays"))
    assert "goal: Where does Ann live?" in browser.text("#about")
    read_text(browser, "Ann lives in Rome.", "letter", 1)
    read_text(browser, f"Bob lives in Oslo. {EVIL}", EVIL, 2)
    assert "text: letter" in browser.text("#items")

    # Ask, watch: the steps, then the answer, and what was in front of the policy.
    browser.type("#ask input", "Where does Bob live?")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    browser.wait(has("#steps-said li", "in front of it when it answered: entries 2"))
    assert browser.evaluate("document.querySelectorAll('#steps-said li').length") == 3
    assert "read: Where does Bob live?" in browser.text("#steps-said")
    browser.wait(has("#doing", "Done"))
    assert EVIL in browser.text("#items .answered")
    # A hostile entry is shown, never run.
    assert EVIL in browser.text("#entry-2 pre")
    assert browser.evaluate("typeof hacked") == "undefined"
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0

    # Search: by words, by source, by the key for it.
    browser.evaluate("document.activeElement.blur()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="/", code="Slash")
    browser.call("Input.insertText", text="rome")
    browser.wait(has("#count", "1 of 2 entries"))
    browser.type("#search", "letter")
    browser.wait(has("#entries > li", "Ann lives in Rome.", count=1))
    browser.type("#search", "Oslo?")
    press(browser, "#find", "By meaning")
    browser.wait(has("#count", "2 of 2 entries fit best"))
    assert "Oslo" in browser.text("#entries li pre")
    browser.evaluate(
        "(() => { const s = document.querySelector('#search'); s.value = ''; s.oninput(); })()"
    )

    # What was shown at each step: the last one, then back with the arrow key to the first.
    assert "answering" in browser.text("#step .note")
    browser.evaluate("document.querySelector('#step').focus()")
    for index in (2, 1, 0):
        browser.press("ArrowLeft")
        browser.wait(has("#step .note", f"Step {index}:"))
    assert "Ann lives in Rome." in browser.text("#step pre")
    assert "created entry 1" in browser.text("#step")
    assert browser.evaluate("document.querySelector('#previous').disabled")

    # Edit; its history has the hand that did it.
    press(browser, "#entry-1", "Edit")
    browser.type("#entry-1 textarea", "Ann lives in Lima.")
    # All of it fits a phone, with everything open.
    press(browser, "#entry-2", "History")
    browser.wait(has("#entry-2 .history li", "Oslo"))
    browser.resize(400)
    browser.evaluate(
        "[...document.querySelectorAll('#add, #items details')].forEach((node) => { node.open = true; })"
    )
    assert browser.evaluate(WIDER) == []
    assert browser.evaluate("document.documentElement.scrollWidth") == 400
    browser.resize(1280)
    press(browser, "#entry-1", "Save")
    browser.wait(has("#entry-1", "written at step 3 by user"))
    assert browser.text("#entry-1 pre") == "Ann lives in Lima."
    press(browser, "#entry-1", "History")
    browser.wait(has("#entry-1 .history li", "by user", count=2))
    assert browser.text("#entry-1 .history ins") == "Ann lives in Rome."
    assert browser.text("#entry-1 .history li + li ins") == "Lima."

    # Slide back: to the end of the first step, where nothing can be changed; and by the history to the creation.
    slide(browser, 1)
    browser.wait(has("#entries > li", "Ann lives in Rome.", count=1))
    browser.wait(has("#step .note", "Step 0:"))
    assert "As it was after 1 of" in browser.text("#moment")
    assert "Edit" not in browser.text("#entries")
    browser.evaluate("document.querySelector('#at').focus()")
    browser.press("ArrowLeft")
    browser.wait(has("#count", "0 of 0 entries"))
    browser.click("#now")
    browser.wait(has("#entry-1 pre", "Ann lives in Lima."))

    # Delete by source, for sure.
    press(browser, "#entry-2", "Delete by source")
    press(browser, "#entry-2", "Delete all that came from there?")
    browser.wait(has("#count", "1 of 1 entries"))
    press(browser, "#entry-1", "Delete")
    press(browser, "#entry-1", "Delete this entry?")
    browser.wait(has("#count", "0 of 0 entries"))

    # As it was, in a conversation of its own; and one is deleted for good.
    slide(browser, 1)
    browser.wait(has("#count", "1 of 1 entries"))
    browser.click("#fork")
    browser.wait("document.querySelectorAll('#list button').length === 2")
    browser.wait(has("#moment", "Now, after 1 of 1 operations"))
    browser.click("#erase")
    browser.click("#erase")
    browser.wait("document.querySelectorAll('#list button').length === 1")

    theme = browser.evaluate("document.documentElement.dataset.theme")
    browser.click("#theme")
    assert {theme, browser.evaluate("document.documentElement.dataset.theme")} == {"dark", "light"}
    assert browser.problems == []
    assert {url for url in browser.requests if not url.startswith(server.url)} == set()


def test_an_answer_is_rated_by_keyboard_and_all_is_exported(
    server: Running, browser: Browser, tmp_path: Path
) -> None:
    with server.http() as http:
        texts = [{"role": "user", "content": EVIL}]
        about = http.post("/v1/conversations", json={"items": texts}).json()
        response = http.post(
            "/v1/responses", json={"conversation": about["id"], "input": "Where?"}
        ).json()["id"]
    path = f"/v1/conversations/{about['id']}"
    browser.open(f"{server.url}/ui#{about['id']}")
    browser.wait(has("#items summary", "Feedback", count=1))
    browser.wait("document.activeElement.id === 'main'")  # once all is there

    def tab() -> str:
        browser.press("Tab")
        return str(
            browser.evaluate("document.activeElement.textContent || document.activeElement.type")
        )

    browser.evaluate("document.querySelector('#items summary').focus()")
    browser.press("Enter")
    browser.wait("document.querySelector('#items details').open")
    assert tab() == "text"
    browser.call("Input.insertText", text="Nowhere")
    assert tab() == "checkbox"
    browser.press(" ")
    assert [tab(), tab()] == ["Right", "Wrong"]
    browser.press("Enter")
    browser.wait(has("#items .feedback", "Noted: wrong, may be trained on"))
    (said,) = server.conversations.log.events(about["id"], ("feedback",))
    assert said.body == {
        "response": response,
        "reward": 0.0,
        "answer": "Nowhere",
        "text": "",
        "consent": True,
    }

    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.evaluate("document.querySelector('#export').focus()")
    browser.press("Enter")
    kept = tmp_path / f"{about['id']}.jsonl"
    until(kept.exists)
    with server.http() as http:
        until(lambda: kept.read_text() == http.get(f"{path}/export").text)
        # What came with a fork is not rated here.
        twin = http.post(f"{path}/fork").json()["id"]
    browser.open(f"{server.url}/ui#{twin}")
    answered = has("#items .answered", EVIL)
    browser.wait(f"{answered} && document.querySelectorAll('#items .feedback').length === 0")
    assert browser.problems == []


def test_a_key_is_asked_for_and_kept_in_the_tab(tmp_path: Path, browser: Browser) -> None:
    conversations = make_conversations(tmp_path / "log.db")
    _, key = Keys(conversations.log).add("ann")
    with running(conversations) as server:
        browser.open(f"{server.url}/ui")
        browser.wait("!document.querySelector('#key').hidden")
        browser.type("#key input", "atommem-wrong")
        browser.click("#key button")
        browser.wait(has("#notice", "the key is missing or unknown"))
        browser.type("#key input", key)
        browser.click("#key button")
        browser.wait(has("#model", "scripted"))
        assert browser.evaluate("document.querySelector('#key').hidden")
        assert browser.evaluate("[localStorage.length, document.cookie].join()") == "0,"
        browser.click("#leave")
        browser.wait("!document.querySelector('#key').hidden")
    # The browser itself notes every 401; nothing else.
    assert all("401" in problem for problem in browser.problems)
