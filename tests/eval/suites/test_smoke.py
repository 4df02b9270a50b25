"""The smoke suite as it is shipped, on files in the benchmarks' formats, and its report in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.demo.recipe import FULL, PolicySize
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.environment import environment_config
from atommem.envs.synthetic.world import generate
from atommem.eval import eval_cli, workbench
from atommem.eval.methods import READERS
from atommem.eval.suites.suite import SyntheticData
from atommem.eval.suites.suite_file import load_suite
from atommem.policy.contract import Completion, Sampling
from atommem.policy.local import LocalPolicy
from atommem.policy.opening import open_policy
from tests.chromium import Browser, find_chromium
from tests.eval.test_report_browser import DRAWN, WIDER

pytestmark = pytest.mark.slow

SUITE = Path(__file__).parents[3] / "configs" / "eval" / "smoke.yaml"
TASKS = 6


class Knowing:
    """A model that cannot do anything, and still answers what AtomMem is asked about the synthetic world."""

    def __init__(self, model: LocalPolicy, golds: dict[str, str]) -> None:
        self.tokenizer = model.tokenizer
        self._model = model
        self._golds = golds

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """What the model samples, or the answer."""
        completion = await self._model.complete(prompt_ids, sampling)
        prompt = self.tokenizer.decode(prompt_ids)
        gold = next((gold for question, gold in self._golds.items() if question in prompt), None)
        if gold is None or not prompt.endswith(" answer"):
            return completion
        text = f"<final_answer> \\boxed{{ {gold} }} </final_answer>"
        return Completion(completion.token_ids, completion.logprobs, text, "stop")

    async def close(self) -> None:
        """As the model's."""
        await self._model.close()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    memory = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=16)
    tokenizer = make_tokenizer(FULL.world, memory)
    folder = tmp_path / "policy"
    make_model(PolicySize(width=16, layers=1, heads=2), tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_config(
        folder,
        memory,
        EmbedderConfig("hashing", embedder_dim=64),
        environment_config("longdoc", chunking="documents", max_reads=0),
    )
    return folder


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    pages = [[f"Page {number}", [f"Person {number} lives in Town {number}.", " It is small."]] for number in range(24)]
    hotpot = [
        {
            "_id": f"q{number}",
            "question": f"Where does Person {number} live?",
            "answer": f"Town {number}",
            "supporting_facts": [[f"Page {number}", 0]],
            "context": pages[number::8],
            "type": "bridge",
            "level": "hard",
        }
        for number in range(8)
    ]
    musique = [
        {
            "id": f"2hop__{number}",
            "question": row["question"],
            "answer": row["answer"],
            "answer_aliases": [],
            "answerable": True,
            "question_decomposition": [
                {"id": 1, "question": "?", "answer": row["answer"], "paragraph_support_idx": 0},
            ],
            "paragraphs": [
                {"idx": place, "title": title, "paragraph_text": "".join(text), "is_supporting": place == 0}
                for place, (title, text) in enumerate(pages[number::8])
            ],
        }
        for number, row in enumerate(hotpot)
    ]
    twowiki = [{name: value for name, value in row.items() if name != "level"} | {"evidences": []} for row in hotpot]
    files = {
        "hotpotqa/hotpot_dev_distractor_v1.json": json.dumps(hotpot),
        "2wikimultihopqa/dev.json": json.dumps(twowiki),
        "musique/musique_ans_v1.0_dev.jsonl": "".join(json.dumps(row) + "\n" for row in musique),
    }
    for name, text in files.items():
        path = tmp_path / "benchmarks" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "benchmarks"


@pytest.fixture
def report(policy: Path, benchmarks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of all methods on all columns."""
    world = next(column.data for column in load_suite(SUITE).columns if isinstance(column.data, SyntheticData))
    golds = {
        question.text: question.answers[0]
        for task in generate(world.world, TASKS, world.seed)
        for question in task.questions
    }
    monkeypatch.setattr(workbench, "open_policy", lambda config: Knowing(open_policy(config), golds))  # type: ignore[arg-type]
    flags = ["--policy", str(policy), "--benchmarks", str(benchmarks), "--limit", str(TASKS), "--max_tokens", "8"]
    out = tmp_path / "smoke"
    assert (
        eval_cli.main(["--suite", str(SUITE), "--out", str(out), "--data_cache", str(tmp_path / "data"), *flags]) == 0
    )
    return out / "report"


def test_every_method_runs_on_every_column_and_the_report_opens(report: Path, tmp_path: Path) -> None:
    results: dict[str, Any] = json.loads((report / "results.json").read_text())
    columns = {cell["dataset"] for cell in results["cells"]}
    assert columns == {"synthetic", "hotpotqa", "2wikimultihopqa", "musique"}
    assert {(cell["row"], cell["dataset"]) for cell in results["cells"]} == {
        (method, column) for method in READERS for column in columns
    }
    for cell in results["cells"]:
        assert (cell["failed"], cell["episodes"]) == (0, TASKS if cell["dataset"] == "synthetic" else 4)
    first = results["cells"][0]
    assert (first["row"], first["dataset"], first["metrics"]["em"]["mean"]) == ("atommem", "synthetic", 1.0)
    if find_chromium() is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    with Browser(tmp_path / "profile") as browser:
        look_at(browser, report / "report.html", 9 * (TASKS + 3 * 4))


def look_at(browser: Browser, page: Path, episodes: int) -> None:
    """Open the page, and click through its charts, an episode, the filters and a comparison."""
    for width in (400, 1280):
        browser.resize(width)
        browser.open(page)
        assert browser.text("h1") == "Smoke test"
        drawn = browser.evaluate(DRAWN)
        for chart in ("EM against model calls", "EM against tokens", "Differences", "Where answers are lost"):
            assert any(caption.startswith(chart) for caption in drawn), chart
        assert browser.evaluate(WIDER) == []
    assert "mem0" in browser.text("#scores")

    columns = "[...document.querySelector('[data-shows=column]').options].map(option => option.value)"
    counts = dict.fromkeys(("all", "wrong", "failed", "malformed", "right"), 0)
    for column in reversed(browser.evaluate(columns)):
        browser.choose("[data-shows=column]", column)
        for status in counts:
            browser.click(f'#filters [data-status="{status}"]')
            name, count = browser.text(f'#filters [data-status="{status}"]').split()
            counts[name] += int(count)
            assert browser.evaluate("document.querySelectorAll('#list li:not([hidden])').length") == int(count)
    assert (counts["all"], counts["failed"]) == (episodes, 0)
    assert counts["right"] >= TASKS
    assert 0 < counts["wrong"] <= episodes - counts["right"]  # those that overflow are neither
    assert counts["malformed"] > 0

    # The last column is the synthetic one, the last filter "right".
    where = "#detail .step:not([hidden]) .where"
    browser.click("#list li:not([hidden]) button")
    last = browser.text(where)
    assert "answering" in last
    browser.click("#previous")
    assert browser.text(where) != last
    browser.press("ArrowRight")
    assert browser.text(where) == last

    options = "[...document.querySelectorAll('label:not([hidden]) > .pair option')]"
    against = browser.evaluate(f"{options}.find(option => option.text === 'no_memory against atommem').value")
    browser.choose("label:not([hidden]) > .pair", against)
    assert f"worse on {TASKS}" in browser.text("#outcome")
    browser.click("#outcome button.flip")
    assert "atommem on synthetic" in browser.text("#detail .note")
    assert browser.problems == []
    assert set(browser.requests) == {page.resolve().as_uri()}
