"""What scripts/real_eval checks of an evaluation, and the examples that it shows a model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.envs.task import Document, Question, Task
from atommem.prompts import PromptBuilder
from tests.fakes import WordTokenizer, load_script, longdoc

ROOT = Path(__file__).parent.parent
TASK = Task(
    "t0",
    (Question("Which river runs past Vesk?", ("Lorne",)),),
    (
        Document("Orrin", "Orrin makes cider. It is small."),
        Document("Vesk", "Vesk is a town. It lies on the Lorne.", gold=True),
        Document("The bell", "The bell hangs in Vesk. It is old.", gold=True),
    ),
    source="hotpotqa",
)


@pytest.mark.parametrize(
    "name",
    ["real_eval", "real_train", "real_inputs", "vllm_python", "setup", "demo", "smoke", "test"],
)
def test_shell_syntax(name: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / "scripts" / name)], check=True)


async def test_what_is_sound_of_an_evaluation_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = load_script("real_check")
    assert check.check_eval(tmp_path / "none", 1)["problems"] == ["0 of 1 episodes are recorded"]
    # A folder as `atommem eval` writes it, with one episode.
    folder = tmp_path / "hotpotqa"
    await load_script("gold_demonstrations").demonstrate(
        [TASK], WordTokenizer(), folder / "traces", chunk_tokens=21
    )
    questions = [{"metrics": {"em": 1.0, "f1": 1.0}}]
    record = {"task_id": "t0", "stop_reason": "answered", "error": None, "questions": questions}
    (folder / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    assert check.main(["eval", "--tasks", "1", str(folder)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["holds"] is True
    figures = result["hotpotqa"]
    assert (figures["tasks"], figures["traces"], figures["failed"], figures["steps"]) == (
        1,
        1,
        0,
        3,
    )
    assert (figures["em"], figures["f1"], figures["actions"], figures["operations"]) == (
        1.0,
        1.0,
        4,
        3,
    )

    assert check.check_eval(folder, 2)["problems"] == ["1 of 2 episodes are recorded"]
    trace = folder / "traces" / "0.jsonl"
    whole = trace.read_text().splitlines(keepends=True)
    for text, problem in (
        ("".join(whole[:-1]), "ends before its episode does"),
        ("nothing\n", "is not a trace"),
    ):
        trace.write_text(text)
        assert problem in check.check_eval(folder, 1)["problems"][0]
    trace.unlink()
    assert check.check_eval(folder, 1)["problems"] == ["t0 has no complete trace"]


def test_examples_in_chatml_parse() -> None:
    """The worked turns of the template file are what the parser accepts."""
    config = MemoryConfig(templates=str(ROOT / "configs" / "templates" / "chatml_examples.yaml"))
    dialect = get_dialect("paper", config.templates)
    system = PromptBuilder.of(WordTokenizer(), dialect, config, longdoc(WordTokenizer())).system
    replies = [
        turn.partition("\n")[2]
        for turn in system.split("<|im_start|>")
        if turn.startswith("assistant")
    ]
    parsed = [dialect.grammar().parse(reply) for reply in replies]
    kinds = [[str(action.kind) for action in one.actions] for one in parsed]
    assert kinds == [["create", "scratchpad", "read"], ["answer"]]
    assert all(not one.problems for one in parsed)
    assert parsed[1].actions[0].text == "Lorne"
