"""The report in a real browser: opened from disk, clicked through, without one error in its console."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from tests.chromium import Browser, find_chromium
from tests.eval.toys import evaluated, make_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_chromium() is None, reason="neither chromium nor google-chrome is installed"
    ),
]

NAMES = [f"t{index}" for index in range(8)]


@pytest.fixture
async def report(tmp_path: Path) -> Path:
    evaluations = []
    for row, wrong, gone in (("untrained", NAMES[2:], NAMES[7:]), ("trained", NAMES[6:], [])):
        tasks = [make_task(name) for name in NAMES]
        await evaluated(tasks, tmp_path / row, wrong=wrong, gone=gone, garbled=["t1"])
        evaluations += [
            read_evaluation(tmp_path / row, dataset="toy", documents=count, seed=count)
            for count in (2, 4)
        ]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(
            f'{{"step": {step}, "reward": 0.5, "actions/create": 0.{step}}}\n'
            for step in range(1, 5)
        )
    )
    write_report(evaluations, tmp_path / "out", title="A <b>report</b>", training=tmp_path)
    return tmp_path / "out" / "report.html"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        yield browser


DRAWN = """(async () => {
  const figures = [...document.querySelectorAll("figure")].filter((figure) => figure.offsetParent);
  for (const figure of figures) {
    figure.scrollIntoView();
    for (let wait = 0; wait < 200 && !figure.querySelector(".vega svg"); wait += 1) {
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
  }
  scrollTo(0, 0);
  return figures.filter((figure) => figure.querySelector(".vega svg path, .vega svg line"))
    .map((figure) => figure.querySelector("figcaption").textContent);
})()"""
"""Brings every chart into view; the captions of those that are drawn then."""
WIDER = """[...document.querySelectorAll("main *")].filter((node) => !node.closest(".scroll, svg")
  && node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.outerHTML.slice(0, 80))"""
"""What stands out of the page on the right, but for tables that can be scrolled."""


@pytest.mark.parametrize("width", [1280, 400])
async def test_every_chart_is_drawn_at_both_widths(
    report: Path, browser: Browser, width: int
) -> None:
    browser.resize(width)
    browser.open(report)
    on = " · toy, 2 documents"
    assert browser.evaluate(DRAWN) == [
        f"EM against model calls per task{on}",
        f"EM against tokens per task{on}",
        f"Differences in EM, and their tests{on}",
        "EM against documents: toy",
        f"Where answers are lost{on}",
        f"Entries in the store, mean by step{on}",
        "Actions per step over training",
        "Reward over training",
    ]
    assert browser.evaluate(WIDER) == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    keep = os.environ.get("SCREENSHOTS")
    browser.screenshot(Path(keep or report.parent, f"report_{width}.png"))
    browser.screenshot(Path(keep or report.parent, f"report_{width}_dark.png"), dark=True)
    assert browser.problems == []
    # What is printed needs no script: all columns, with the charts as images.
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "(selector) => [...document.querySelectorAll(selector)].filter((node) => node.offsetParent).length"
    figures = browser.evaluate("document.querySelectorAll('figure').length")
    assert browser.evaluate(f"({shown})('figure img')") == figures > 8
    assert browser.evaluate(f"({shown})('.vega, .controls, #episodes')") == 0
    assert browser.evaluate(f"({shown})('#costs caption')") == 4


async def test_the_report_is_clicked_through(report: Path, browser: Browser) -> None:
    browser.open(report)
    assert browser.text("h1") == "A <b>report</b>"
    # A table for each score, one at a time; then the tests behind the bold numbers.
    shown = "[...document.querySelectorAll('#scores > div caption')].filter(n => n.offsetParent).map(n => n.innerText)"
    assert browser.evaluate(shown) == ["EM"]
    browser.choose("#score", "sub_em")
    assert browser.evaluate(shown) == ["sub-EM"]
    browser.choose("#score", "em")
    assert "1 failed" in browser.text("#scores")
    browser.choose("select[data-shows=column]", "toy, 4 documents")
    assert "4 documents" in browser.text("#lost figure:not([hidden]) figcaption")
    assert "never entered" in browser.text("#lost div:not([hidden]) > .scroll table")

    # The filters; "all" counts 16 episodes of a column: two rows, eight tasks.
    browser.choose("select[data-shows=column]", "toy, 2 documents")
    counts = {"all": 16, "wrong": 7, "failed": 1, "malformed": 2, "right": 8}
    for status, count in counts.items():
        browser.click(f'#filters [data-status="{status}"]')
        assert browser.text(f'#filters [data-status="{status}"]') == f"{status} {count}"
        assert (
            browser.evaluate("document.querySelectorAll('#list li:not([hidden])').length") == count
        )
    browser.click('#filters [data-status="failed"]')
    assert "Failed: server gone" in browser.text("#detail")
    browser.click('#filters [data-status="malformed"]')
    browser.click("#list li:not([hidden]) button")
    assert "malformed" in browser.text("#detail h3")

    # An episode: opened at its answer, which came from the entry of step 0; then step by step.
    where = "#detail .step:not([hidden]) .where"
    browser.choose("#evaluation", "trained")
    browser.click('#filters [data-status="right"]')
    browser.click("#list li:not([hidden]) button")
    assert "Step 2 of 2: answering" in browser.text(where)
    browser.click("#previous")
    assert "Step 1 of 2: reading, chunk 2/2" in browser.text(where)
    assert "written at step 1" in browser.text("#detail .memory")
    browser.click('#detail .steps [data-step="0"]')
    assert "written at step 1" not in browser.text("#detail .memory")
    assert browser.text("#detail .operation ins") == "seen"
    assert "The first document." in browser.text("#detail .step:not([hidden])")
    browser.evaluate("document.querySelector('#detail').focus()")
    browser.press("ArrowRight")
    assert "Step 1 of 2" in browser.text(where)

    # A comparison, and from it into an episode that flipped.
    assert "trained (B) is better on 4 than untrained (A)" in browser.text("#outcome")
    assert "p = 0.062" in browser.text("#outcome")  # 1 in 16
    browser.click("#outcome button.flip")
    assert "untrained on toy, 2 documents" in browser.text("#detail .note")
    assert "wrong" in browser.text("#detail .answer")

    browser.click("#theme")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    assert browser.problems == []
    assert browser.requests == [report.resolve().as_uri()]


async def test_hostile_text_stays_text(tmp_path: Path, browser: Browser) -> None:
    """Wherever it stands: names of rows and data, tasks, questions, answers, what was shown and written."""
    evil = "</script></pre>'\"><img src=x onerror=hacked=1><script>hacked=1</script><!-- ${hacked=1} {{7*7}}"
    evaluations = []
    for row, wrong in (("a", []), ("b", NAMES)):
        tasks = [
            replace(task := make_task(name), id=f"{task.id} {evil}", source=evil) for name in NAMES
        ]
        await evaluated(tasks, tmp_path / row, wrong=wrong, garbled=["t1"])
        for trace in (tmp_path / row / "traces").iterdir():
            trace.write_text(
                trace.read_text()
                .replace("seen", json.dumps(evil)[1:-1])
                .replace("The first", evil[:9])
            )
        evaluations.append(
            read_evaluation(tmp_path / row, f"{row} {evil}", evil, parameters={"k": len(wrong)})
        )
    write_report(evaluations, tmp_path / "out", title=evil, reference=f"a {evil}")
    browser.open(tmp_path / "out" / "report.html")
    assert browser.text("h1") == evil
    assert browser.evaluate(DRAWN) != []
    browser.click("#list li:not([hidden]) button")
    assert evil in browser.text("#detail h3")
    browser.click('#detail .steps [data-step="0"]')
    assert browser.text("#detail .operation ins") == evil
    browser.click("#outcome button.flip")
    assert browser.evaluate("typeof hacked") == "undefined"
    assert (
        browser.evaluate("document.querySelectorAll('main img:not([alt]), main script').length")
        == 0
    )
    assert browser.problems == []
