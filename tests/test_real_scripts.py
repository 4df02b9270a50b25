"""`scripts/real_check` on an evaluation, the shell scripts, and the examples shown to models."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.envs.task import Document, Question, Task
from atommem.prompts import PromptBuilder
from tests.fakes import WordTokenizer, load_script, longdoc

ROOT = Path(__file__).parents[1]
SHELL = ["real_eval", "real_train", "real_inputs", "vllm_python", "setup", "demo", "smoke", "test"]


def test_shell_scripts_have_valid_syntax() -> None:
    for name in SHELL:
        subprocess.run(["bash", "-n", str(ROOT / "scripts" / name)], check=True)


async def test_check_eval_accepts_a_whole_evaluation_and_names_what_is_missing(
    tmp_path: Path,
) -> None:
    documents = (
        Document("Orrin", "Orrin makes cider. It is small."),
        Document("Vesk", "Vesk is a town. It lies on the Lorne.", gold=True),
    )
    task = Task("t0", (Question("Which river runs past Vesk?", ("Lorne",)),), documents)
    traces = tmp_path / "traces"
    demonstrate = load_script("gold_demonstrations").demonstrate
    await demonstrate([task], WordTokenizer(), traces, chunk_tokens=21)
    questions = [{"metrics": {"em": 1.0, "f1": 1.0}}]
    record = {"task_id": "t0", "stop_reason": "answered", "error": None, "questions": questions}
    (tmp_path / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    check = load_script("real_check").check_eval
    found = check(tmp_path, 1)
    assert found["problems"] == []
    assert (found["tasks"], found["traces"], found["failed"], found["em"]) == (1, 1, 0, 1.0)
    assert check(tmp_path, 2)["problems"] == ["1 of 2 episodes are recorded"]
    trace = traces / "0.jsonl"
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:-1]))
    assert "ends before its episode does" in check(tmp_path, 1)["problems"][0]
    trace.unlink()
    assert check(tmp_path, 1)["problems"] == ["t0 has no complete trace"]


def test_examples_in_the_chatml_templates_parse() -> None:
    config = MemoryConfig(templates=str(ROOT / "configs" / "templates" / "chatml_examples.yaml"))
    dialect = get_dialect("paper", config.templates)
    system = PromptBuilder.of(WordTokenizer(), dialect, config, longdoc(WordTokenizer())).system
    turns = [turn.partition("\n") for turn in system.split("<|im_start|>")]
    parsed = [dialect.grammar().parse(text) for role, _, text in turns if role == "assistant"]
    kinds = [[str(action.kind) for action in one.actions] for one in parsed]
    assert kinds == [["create", "scratchpad", "read"], ["answer"]]
    assert all(not one.problems for one in parsed)
