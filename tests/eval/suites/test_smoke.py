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
from atommem.eval import eval_cli
from atommem.eval.methods import READERS
from tests.chromium import Browser, find_chromium
from tests.envs.benchmark_rows import hotpot_row, musique_row, twowiki_row, write_json, write_lines
from tests.eval.test_report_browser import DRAWN, WIDER

pytestmark = pytest.mark.slow

SUITE = Path(__file__).parents[3] / "configs" / "eval" / "smoke.yaml"
TASKS = 6


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A model that cannot do anything."""
    torch.manual_seed(0)
    memory = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=16)
    tokenizer, folder = make_tokenizer(FULL.world, memory), tmp_path / "policy"
    make_model(PolicySize(width=16, layers=1, heads=2), tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    environment = environment_config("longdoc", chunking="documents", max_reads=0)
    save_config(folder, memory, EmbedderConfig("hashing", embedder_dim=64), environment)
    return folder


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    folder = tmp_path / "benchmarks"
    for name in ("hotpotqa", "2wikimultihopqa", "musique"):
        (folder / name).mkdir(parents=True)
    write_json(folder / "hotpotqa" / "hotpot_dev_distractor_v1.json", [hotpot_row(number) for number in range(8)])
    write_json(folder / "2wikimultihopqa" / "dev.json", [twowiki_row(number) for number in range(8)])
    write_lines(folder / "musique" / "musique_ans_v1.0_dev.jsonl", [musique_row(number) for number in range(8)])
    return folder


def test_every_method_runs_on_every_column_and_the_report_opens(policy: Path, benchmarks: Path, tmp_path: Path) -> None:
    flags = ["--policy", str(policy), "--benchmarks", str(benchmarks), "--limit", str(TASKS), "--max_tokens", "8"]
    flags += ["--out", str(tmp_path / "smoke"), "--data_cache", str(tmp_path / "data")]
    assert eval_cli.main(["--suite", str(SUITE), *flags]) == 0
    report = tmp_path / "smoke" / "report"
    results: dict[str, Any] = json.loads((report / "results.json").read_text())
    columns = ("synthetic", "hotpotqa", "2wikimultihopqa", "musique")
    cells = {(cell["row"], cell["dataset"]): (cell["failed"], cell["episodes"]) for cell in results["cells"]}
    assert cells == {(name, data): (0, TASKS if data == "synthetic" else 4) for name in READERS for data in columns}
    if find_chromium() is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    with Browser(tmp_path / "profile") as browser:
        for width in (400, 1280):
            browser.resize(width)
            browser.open(report / "report.html")
            drawn = browser.evaluate(DRAWN)
            for chart in ("EM against model calls", "EM against tokens", "Differences", "Where answers are lost"):
                assert any(caption.startswith(chart) for caption in drawn), chart
            assert browser.evaluate(WIDER) == []
        assert "mem0" in browser.text("#scores")
        assert browser.problems == []
        assert set(browser.requests) == {(report / "report.html").resolve().as_uri()}
