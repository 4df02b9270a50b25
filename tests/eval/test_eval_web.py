"""`atommem eval` in the web environment, on a corpus: settings that are lists, the manifest, the judge's usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from atommem.envs.task import Question, Task
from atommem.envs.task_files import save_tasks
from atommem.envs.web.corpus import Corpus, Page, build_corpus
from atommem.eval.eval_cli import main
from atommem.trace import read_trace
from tests.envs.web.test_environment import ANSWER, call
from tests.loopback import make_checkpoint, serving

pytest.importorskip("tantivy")


def test_questions_are_asked_of_a_corpus_and_judged(tmp_path: Path) -> None:
    build_corpus([Page("Ann lives in Oakrest.", "Ann"), Page("Bob lives in Fenford.", "Bob")], tmp_path / "corpus")
    tasks = [Task(name, (Question(f"Where does {name} live?", ("the town of Oakrest",)),)) for name in ("Ann", "Bob")]
    save_tasks(tasks, tmp_path / "tasks.jsonl")
    folder = make_checkpoint(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def script(text: str) -> str:
        if "Answer to judge" in text:
            return "CORRECT"
        return ANSWER if "lives in" in text else call("search", query="lives")

    with serving(script, tokenizer) as url:
        flags = ["--policy", url, "--tokenizer", str(folder), "--data", str(tmp_path / "tasks.jsonl")]
        flags += ["--out", str(tmp_path / "out"), "--environment", "web", "--tools", "corpus"]
        flags += ["--corpus", str(tmp_path / "corpus"), "--embedder", "hashing", "--dialect", "paper"]
        flags += ["--templates", "full", "--reward", "judge", "--judge_url", url, "--judge_model", "tiny"]
        flags += ["--max_tokens", "256"]
        assert main(flags) == 0
        assert main(flags) == 0, "all there"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["metrics"]["judge"]["mean"] == 1.0
    assert summary["run"]["environment"]["corpus"] == Corpus(tmp_path / "corpus").version
    assert summary["services"]["judge"]["asked"] == 2
    trace = read_trace(tmp_path / "out" / "traces" / "Ann.0.jsonl")
    assert [step.observation.origin for step in trace.episode.steps] == [None, "search lives"]
