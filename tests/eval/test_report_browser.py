"""The report in a real browser: opened from disk, clicked through, without one error in its console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.runner import evaluate
from tests.eval.chromium import Browser, find_chromium
from tests.eval.toys import make_runner, make_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="neither chromium nor google-chrome is installed"),
]

NAMES = [f"t{index}" for index in range(8)]


@pytest.fixture
async def report(tmp_path: Path) -> Path:
    evaluations = []
    for row, wrong, gone in (("untrained", NAMES[2:], NAMES[7:]), ("trained", NAMES[6:], [])):
        runner, policy = make_runner()
        policy.wrong, policy.out_of_reach, policy.garbled = set(wrong), set(gone), {"t1"}
        await evaluate([make_task(name) for name in NAMES], runner, tmp_path / row, progress=False)
        evaluations += [read_evaluation(tmp_path / row, dataset="toy", documents=count, seed=count) for count in (2, 4)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"step": {step}, "reward": 0.5, "actions/create": 0.{step}}}\n' for step in range(1, 5))
    )
    write_report(evaluations, tmp_path / "out", title="A <b>report</b>", training=tmp_path)
    return tmp_path / "out" / "report.html"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        yield browser


async def test_the_report_is_clicked_through(report: Path, browser: Browser) -> None:
    browser.open(report)
    assert browser.text("h1") == "A <b>report</b>"
    # A table for each score, one at a time; then the tests behind the bold numbers.
    assert browser.text("#scores .pane:not([hidden]) caption") == "EM"
    browser.click("#score button:nth-of-type(3)")
    assert browser.text("#scores .pane:not([hidden]) caption") == "sub-EM"
    browser.click("#score button:nth-of-type(1)")
    assert "1 failed" in browser.text("#scores")
    assert browser.evaluate("document.querySelectorAll('#charts figure > svg').length") == 4
    browser.choose("#store-column", "1")
    assert "4 documents" in browser.text("#charts .chart figcaption")
    assert browser.evaluate("document.querySelectorAll('#lost .bar').length") == 4
    browser.click("#lost .pane:not([hidden]) summary")
    assert "never entered" in browser.text("#lost .pane:not([hidden]) table")

    # The filters; "all" counts 32 episodes: two rows, two columns, eight tasks.
    counts = {"all": 32, "wrong": 14, "failed": 2, "malformed": 4, "right": 16}
    for status, count in counts.items():
        browser.click(f'#filters [data-status="{status}"]')
        assert browser.text(f'#filters [data-status="{status}"]') == f"{status} {count}"
        assert browser.evaluate("document.querySelectorAll('#list [data-place]').length") == count
    browser.click('#filters [data-status="failed"]')
    assert "Failed: server gone" in browser.text("#detail")
    browser.click('#filters [data-status="malformed"]')
    browser.click("#list li:last-child button")
    assert "malformed" in browser.text("#detail h3")

    # An episode: opened at its answer, which came from the entry of step 0; then step by step.
    browser.choose("#evaluation", "2")
    browser.click('#filters [data-status="right"]')
    browser.click("#list li:first-child button")
    assert "Step 2 of 2: answering" in browser.text("#where")
    browser.click("#previous")
    assert "Step 1 of 2: reading, chunk 2/2" in browser.text("#where")
    browser.click('#detail [data-step="0"]')
    assert browser.text("#detail .operation ins") == "seen"
    assert "The first document." in browser.text("#detail .columns")
    browser.press("ArrowRight")
    assert "Step 1 of 2" in browser.text("#where")

    # A comparison, and from it into an episode that flipped.
    browser.choose("#first", "0")
    browser.choose("#second", "2")
    assert "better on 4" in browser.text("#outcome")
    assert "p = 0.06" in browser.text("#outcome")  # of 1 in 16, by random signs
    browser.click("#outcome button.flip")
    assert "untrained on toy, 2 documents" in browser.text("#detail .note")
    assert "wrong" in browser.text("#detail .answer")

    browser.click("#theme")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    assert browser.problems == []
    assert browser.requests == [report.resolve().as_uri()]
